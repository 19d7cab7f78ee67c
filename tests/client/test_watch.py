"""`acme watch`: a job is followed through its states and its log until it has ended."""

from __future__ import annotations

import json

import httpx
import pytest
from acme_client import Acme
from acme_client.watch import JobWatcher

from jobs.actions import jobs as job_actions
from jobs.actions.journal import Author
from jobs.models import Attempt, Cluster, clock
from tests.jobs.api import api_make as make


def stream(attempt, *texts):
    """The server-sent events of an attempt that has ended."""
    lines = "".join(f"data: {text}\ndata: \n\n" for text in texts)
    start, end = json.dumps({"attempt": attempt, "offset": 0}), json.dumps({"attempt": attempt, "why": "Ended."})
    return f"event: start\ndata: {start}\n\n{lines}event: end\ndata: {end}\n\n"


def watched(states, logs):
    """Watch a job whose successive requests return these states; `logs` by the attempt that the client asks for."""
    states = iter(states)

    def answer(request):
        if not request.url.path.endswith("/follow/"):
            state, why = next(states)
            return httpx.Response(200, json={"state": state, "title": state, "reason": "", "why": why})
        log = logs.get(request.url.params.get("attempt"))
        if log is None:
            return httpx.Response(404, json={"detail": "The job has not started yet."})
        return httpx.Response(200, content=log.encode())

    shown = []
    watcher = JobWatcher(
        acme=Acme("http://acme.test", "t", httpx.MockTransport(answer)),
        path="jobs/1/",
        show_state=lambda job: shown.append(job["title"]),
        show_log=shown.append,
        sleep=lambda seconds: shown.append("wait"),
    )
    assert watcher.follow()["state"] == shown[-1] or shown[-1].endswith("\n")
    return shown


def test_states_and_logs_of_all_attempts_are_shown_in_order():
    states = [("PENDING", "a"), ("RUNNING", ""), ("PENDING", "requeued"), ("RUNNING", "again"), ("COMPLETED", "")]
    logs = {None: stream(1, "one"), "2": stream(2, "two")}

    shown = watched(states, logs)

    assert shown == ["PENDING", "wait", "RUNNING", "one\n", "PENDING", "wait", "RUNNING", "two\n", "COMPLETED"]


def test_unchanged_state_is_shown_once():
    shown = watched([("PENDING", "a"), ("PENDING", "a"), ("PENDING", "b"), ("CANCELLED", "")], {})

    assert shown == ["PENDING", "wait", "wait", "PENDING", "wait", "CANCELLED"]


def test_log_of_a_job_that_ended_between_two_looks_is_shown():
    assert watched([("PENDING", ""), ("COMPLETED", "")], {None: stream(1, "short")})[-1] == "short\n"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("state", "exit_code"), [("COMPLETED", 0), ("FAILED", 1)])
def test_exit_code_says_whether_the_job_completed(acme, tmp_path, state, exit_code):
    Cluster.objects.update(log_root=str(tmp_path))
    job = make.running(make.job(make.person("ada"), name="train", gpus_per_node=1))
    Attempt.objects.update(log_path="a.log")
    (tmp_path / "a.log").write_bytes(b"one\ntwo\n")
    ended = job_actions.AttemptEnd(state=state, at=clock.now(), exit_code=exit_code)
    job_actions.finish(job.attempts.get(), ended, author=Author(by="test"))

    result = acme("watch", job)

    assert (result.exit_code, result.stdout) == (exit_code, "one\ntwo\n")
    assert f" {state} " in result.stderr.splitlines()[0]
    assert ("Attempts" in result.stderr) == bool(exit_code)
