"""The turn debouncer: many requests become few updates, and callers never block."""

from __future__ import annotations

import threading

from jobs.actions.wake import TurnDebouncer
from tests.patience import PATIENCE_S


class Turns:
    """Collects the requests that the debouncer passes on, once the gate is open."""

    def __init__(self):
        self.requests, self.gate = [], threading.Event()

    def request(self, cluster_id):
        self.gate.wait(PATIENCE_S)
        self.requests.append(cluster_id)


def join_thread(debouncer):
    if thread := debouncer.thread:
        thread.join(PATIENCE_S)


def test_requests_during_an_update_are_merged():
    turns = Turns()
    debouncer = TurnDebouncer(turns.request, pause_s=0, quiet_s=0.01)

    debouncer.request(1)
    for _ in range(100):
        debouncer.request(1)
    turns.gate.set()
    join_thread(debouncer)

    assert 1 <= len(turns.requests) <= 2


def test_requests_of_all_clusters_are_passed_on_and_the_thread_ends():
    turns = Turns()
    turns.gate.set()
    debouncer = TurnDebouncer(turns.request, pause_s=0, quiet_s=0.01)

    for cluster in range(20):
        debouncer.request(cluster)
    join_thread(debouncer)

    assert set(turns.requests) == set(range(20))
    assert debouncer.thread is None


def test_debouncer_works_again_after_a_quiet_period():
    turns = Turns()
    turns.gate.set()
    debouncer = TurnDebouncer(turns.request, pause_s=0, quiet_s=0.01)

    debouncer.request(1)
    join_thread(debouncer)
    debouncer.request(2)
    join_thread(debouncer)

    assert turns.requests == [1, 2]
