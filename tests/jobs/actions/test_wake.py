"""The bell: many ring, few wishes come of it, and nobody waits."""

from __future__ import annotations

import threading

import pytest

from jobs.actions import wake
from jobs.actions.wake import TurnDebouncer
from tests.patience import PATIENCE_S


@pytest.fixture
def heard(monkeypatch):
    """What the bell passes on, and a gate that holds it up."""
    found, gate = [], threading.Event()

    def want_turn(cluster_id):
        gate.wait(PATIENCE_S)
        found.append(cluster_id)

    monkeypatch.setattr(wake, "request_turn", want_turn)
    return found, gate


def finished(bell):
    if thread := bell.thread:
        thread.join(PATIENCE_S)


def test_rings_that_come_during_a_wish_become_one(heard):
    found, gate = heard
    bell = TurnDebouncer(pause_s=0, quiet_s=0.01)

    bell.request(1)
    for _ in range(100):
        bell.request(1)
    gate.set()
    finished(bell)

    assert 1 <= len(found) <= 2


def test_no_cluster_is_forgotten_and_the_thread_ends_by_itself(heard):
    found, gate = heard
    gate.set()
    bell = TurnDebouncer(pause_s=0, quiet_s=0.01)

    for cluster in range(20):
        bell.request(cluster)
    finished(bell)

    assert set(found) == set(range(20))
    assert bell.thread is None


def test_it_rings_again_after_it_was_quiet(heard):
    found, gate = heard
    gate.set()
    bell = TurnDebouncer(pause_s=0, quiet_s=0.01)

    bell.request(1)
    finished(bell)
    bell.request(2)
    finished(bell)

    assert found == [1, 2]
