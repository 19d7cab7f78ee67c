"""The submitter's memory of submitted jobs, also after a failover that lost some of them."""

from __future__ import annotations

import threading
import time

import httpx
import pytest

from tests.chaos.submitter import Submitter


class Api:
    """Accepts every request with new ids; ends the storm after `most` requests."""

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
    """A database in which every known job has ended."""

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
    return Submitter(api, record, clusters=["seren"], draw=request, seed="7", most_unfinished=100, batch=2)


def test_confirmed_requests_are_accepted_under_their_names(record):
    api = Api(most=2)
    ours = submitter(api, record)

    ours.submit_until(threading.Event(), most=100)

    assert ours.accepted == {"1-0": "storm-0", "1-1": "storm-1", "2-0": "storm-2", "2-1": "storm-3"}
    assert len(set(api.keys)) == 2


def test_requests_lost_in_a_failover_are_sent_again_with_the_same_key(record):
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


def test_final_state_observed_after_the_backup_is_forgotten(record):
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


def test_response_to_a_request_from_before_a_failover_does_not_count(record):
    class SlowApi(Api):
        def ask(self, path, body, *, key, over):
            response = super().ask(path, body, key=key, over=over)
            if path == "jobs/bulk/" and len(self.keys) == 1:
                ours.failed_over(0.0)  # before the response arrives
            return response

    api = SlowApi(most=2)
    ours = submitter(api, record)

    ours.submit_until(threading.Event(), most=100)

    assert api.keys[0] == api.keys[1]
    assert list(ours.accepted) == ["2-0", "2-1"]
