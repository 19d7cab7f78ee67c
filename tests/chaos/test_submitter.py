"""What a storm remembers of the jobs that it submitted, also after a failover that lost some of them."""

from __future__ import annotations

import threading
import time

import httpx
import pytest

from tests.chaos.submitter import Submitter


class Api:
    """Accepts every request and gives new ids for it; stops the storm after so many."""

    def __init__(self, most):
        self.most, self.keys = most, []

    def ask(self, path, body, *, key, over):
        if path == "jobs/bulk/":
            self.keys.append(key)
            if len(self.keys) == self.most:
                over.set()
        results = [{"id": f"{len(self.keys)}-{position}"} for position in range(len(body.get("jobs", ())))]
        return time.monotonic(), httpx.Response(201, json={"results": results})


class Rows:
    """A record in which every known job has ended."""

    def __init__(self):
        self.states = {}

    def finals(self):
        return self.states


def request(dice, number):
    return {"name": f"storm-{number}"}


@pytest.fixture
def record():
    return Rows()


def submitter(api, record):
    return Submitter(api, record, draw=request, seed=7, most_unfinished=100, batch=2)


def test_every_answered_request_is_accepted_under_its_name(record):
    api = Api(most=2)
    ours = submitter(api, record)

    ours.submit_until(threading.Event(), most=100)

    assert ours.accepted == {"1-0": "storm-0", "1-1": "storm-1", "2-0": "storm-2", "2-1": "storm-3"}
    assert len(set(api.keys)) == 2


def test_what_a_failover_lost_is_forgotten_and_sent_again_under_the_same_key(record):
    class FailingOver(Api):
        backup_began = 0.0

        def ask(self, path, body, *, key, over):
            if path == "jobs/bulk/" and len(self.keys) == 1:
                self.backup_began = time.monotonic()
            if path == "jobs/bulk/" and len(self.keys) == 2:
                ours.failed_over(self.backup_began)  # before the third request is sent
            return super().ask(path, body, key=key, over=over)

    api = FailingOver(most=4)
    ours = submitter(api, record)

    ours.submit_until(threading.Event(), most=100)

    first, second, third, fourth = api.keys
    assert fourth == second and len({first, second, third}) == 3
    assert ours.accepted == {
        f"{n}-{i}": f"storm-{m}" for n, i, m in [(1, 0, 0), (1, 1, 1), (3, 0, 4), (3, 1, 5), (4, 0, 2), (4, 1, 3)]
    }


def test_a_final_state_that_was_seen_after_the_backup_may_change_again(record):
    ours, over = submitter(Api(most=1), record), threading.Event()
    watching = threading.Thread(target=ours.watch_until, args=(over,))
    record.states = {"a": "COMPLETED"}
    watching.start()
    try:
        while not ours.final_once:
            over.wait(0.02)
    finally:
        over.set()
        watching.join()

    ours.failed_over(time.monotonic() + 1)
    assert ours.final_once == {"a": "COMPLETED"}
    ours.failed_over(0.0)
    assert ours.final_once == {}


def test_an_answer_to_a_request_from_before_a_failover_does_not_count(record):
    class SlowApi(Api):
        def ask(self, path, body, *, key, over):
            found = super().ask(path, body, key=key, over=over)
            if path == "jobs/bulk/" and len(self.keys) == 1:
                ours.failed_over(0.0)  # while the answer is on its way
            return found

    api = SlowApi(most=2)
    ours = submitter(api, record)

    ours.submit_until(threading.Event(), most=100)

    assert api.keys[0] == api.keys[1]
    assert list(ours.accepted) == ["2-0", "2-1"]
