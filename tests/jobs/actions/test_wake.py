"""The turn debouncer: many requests become few updates, and callers never block."""

from __future__ import annotations

import threading

import pytest

from jobs.actions import wake
from jobs.actions.wake import TurnDebouncer
from tests.patience import PATIENCE_S


@pytest.fixture
def passed_on(monkeypatch):
    """The requests that the debouncer passes on, and an event that blocks them."""
    requests, gate = [], threading.Event()

    def request_turn(cluster_id):
        gate.wait(PATIENCE_S)
        requests.append(cluster_id)

    monkeypatch.setattr(wake, "request_turn", request_turn)
    return requests, gate


def join_thread(debouncer):
    if thread := debouncer.thread:
        thread.join(PATIENCE_S)


def test_requests_during_an_update_are_merged(passed_on):
    requests, gate = passed_on
    debouncer = TurnDebouncer(pause_s=0, quiet_s=0.01)

    debouncer.request(1)
    for _ in range(100):
        debouncer.request(1)
    gate.set()
    join_thread(debouncer)

    assert 1 <= len(requests) <= 2


def test_requests_of_all_clusters_are_passed_on_and_the_thread_ends(passed_on):
    requests, gate = passed_on
    gate.set()
    debouncer = TurnDebouncer(pause_s=0, quiet_s=0.01)

    for cluster in range(20):
        debouncer.request(cluster)
    join_thread(debouncer)

    assert set(requests) == set(range(20))
    assert debouncer.thread is None


def test_debouncer_works_again_after_a_quiet_period(passed_on):
    requests, gate = passed_on
    gate.set()
    debouncer = TurnDebouncer(pause_s=0, quiet_s=0.01)

    debouncer.request(1)
    join_thread(debouncer)
    debouncer.request(2)
    join_thread(debouncer)

    assert requests == [1, 2]
