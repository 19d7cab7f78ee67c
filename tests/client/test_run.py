"""A run reports without ever blocking or failing the training."""

from __future__ import annotations

import json
import os
import threading

import httpx
import pytest
from acme_client import Run
from acme_client import run as run_module

from jobs.actions import progress
from jobs.models import Checkpoint, Progress
from tests.jobs.api import api_make as make
from tests.patience import until

ENVIRONMENT = {"ACME_URL": "http://acme.test", "ACME_PROGRESS_TOKEN": "acme_run_x.y"}


class Server:
    """Answers with the given statuses in turn, and repeats the last one."""

    def __init__(self, *statuses):
        self.statuses, self.bodies, self.lock = list(statuses), [], threading.Lock()
        self.requests = 0

    def __call__(self, request):
        with self.lock:
            self.requests += 1
            status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
            if status == 0:
                raise httpx.ConnectError("away")
            if status == 200:
                self.bodies.append(json.loads(request.content))
            return httpx.Response(status, json={"stop_state": "CANCELLED"})

    @property
    def steps(self):
        return [beat["step"] for body in self.bodies for beat in body.get("heartbeats", ())]


def started(server, every_s=0.01, **environment):
    return Run(every_s=every_s, environment=ENVIRONMENT | environment, transport=httpx.MockTransport(server))


def test_steps_are_sent_in_batches():
    server = Server(200)
    with started(server, every_s=5) as run:
        for _ in range(1200):
            run.step(loss=1.5)

    assert server.steps == list(range(1200))
    assert [len(body["heartbeats"]) for body in server.bodies] == [500, 500, 200]
    assert server.bodies[0]["heartbeats"][0]["loss"] == 1.5
    assert run.stop_state == "CANCELLED"


def test_checkpoint_is_sent_at_once_and_again_when_durable():
    server = Server(200)
    with started(server, every_s=60) as run:
        run.step(7)
        run.checkpoint_saved("/ckpt/7", stall_s=0.25)
        until(lambda: server.bodies)
        run.checkpoint_durable("/ckpt/7", 7)

    saved = [one for body in server.bodies for one in body["checkpoints"]]
    assert [(one["path"], one["step"], one["durable"]) for one in saved] == [
        ("/ckpt/7", 7, False),
        ("/ckpt/7", 7, True),
    ]
    assert [one.get("stall_s") for one in saved] == [0.25, None]


def test_server_gets_all_reports_in_order_after_an_outage():
    server = Server(0, 503, 429, 200)
    with started(server) as run:
        for step in range(5):
            run.step(step)
        until(lambda: len(server.steps) == 5)

    assert server.steps == [0, 1, 2, 3, 4]


def test_only_the_newest_reports_are_kept_during_an_outage():
    server, last = Server(0), 3 * run_module.MAX_PENDING
    run = started(server)
    for step in range(last):
        run.step(step)
    until(lambda: server.requests > 1)
    run.step(last)

    server.statuses = [200]
    until(lambda: server.bodies and server.bodies[-1]["heartbeats"][-1]["step"] == last)
    run.close()

    # One batch may be on its way while the queue fills up again
    assert len(server.steps) <= run_module.MAX_PENDING + run_module.MAX_HEARTBEATS_PER_REQUEST
    assert server.steps == sorted(server.steps)


def test_hanging_server_does_not_block_the_training():
    freed = threading.Event()

    def hang(request):
        freed.wait()
        return httpx.Response(200, json={})

    run = started(hang)
    for step in range(10_000):
        run.step(step, loss=1.0)
    run.checkpoint_saved("/x")
    run.close(timeout_s=0.1)  # returns although the server has not answered

    assert not freed.is_set()
    freed.set()


def test_rejected_token_ends_the_reports(caplog):
    run = started(Server(401))
    run.step(1)

    until(lambda: not run.active)
    run.step(2)

    assert "token" in caplog.text
    assert "acme_run_x" not in caplog.text


def test_rejected_report_is_dropped_and_the_next_is_sent():
    server = Server(400, 200)
    with started(server) as run:
        run.step(1)
        until(lambda: server.statuses == [200])
        run.step(2)

    assert server.steps == [2]


class Tensor:
    def __init__(self, value, fails=False):
        self.value, self.fails = value, fails

    def detach(self):
        return self

    def __float__(self):
        if self.fails:
            raise RuntimeError("CUDA error")
        assert threading.current_thread().name == "acme-progress"
        return self.value


def test_tensors_are_read_by_the_thread_and_strange_values_left_out():
    server = Server(200)
    with started(server, every_s=5) as run:
        run.step(1, loss=Tensor(2.0), grad_norm=Tensor(0, fails=True), tokens="many", learning_rate=float("nan"))
        run.step(2, loss=float("inf"), step_time_s=object())

    first, second = server.bodies[0]["heartbeats"]
    assert (first["loss"], first["learning_rate"]) == (2.0, "NaN") and not {"grad_norm", "tokens"} & set(first)
    assert second["loss"] == "Infinity" and "step_time_s" not in second


@pytest.mark.parametrize(
    "missing", [{"ACME_URL": ""}, {"ACME_PROGRESS_TOKEN": ""}, {"RANK": "1"}, {"ACME_URL": "\x00"}]
)
def test_run_without_variables_does_nothing(missing):
    server = Server(200)
    with started(server, **missing) as run:
        run.step(1)
        run.checkpoint_saved("/x")

    assert not run.active and not server.bodies


def test_forked_child_reports_nothing(monkeypatch):
    server = Server(200)
    with started(server, every_s=5) as run:
        monkeypatch.setattr(os, "getpid", lambda: -1)
        run.step(1)
        monkeypatch.undo()

    assert not server.bodies


@pytest.mark.django_db(transaction=True)
def test_real_server_accepts_the_reports_of_a_run(door):
    attempt = make.running(make.job(make.person("ada"), gpus_per_node=1)).attempts.get()
    environment = {"ACME_URL": "http://localhost", "ACME_PROGRESS_TOKEN": progress.run_token(attempt.key)}

    # A second thread would have its own connection, which would not be closed
    from django.core.signals import request_finished
    from django.db import close_old_connections

    request_finished.connect(close_old_connections)
    with Run(every_s=30, environment=environment, transport=door) as run:
        run.step(1, loss=float("nan"), tokens=5)
        run.step(2, loss=0.5)
        run.checkpoint_saved("/ckpt/2")
    request_finished.disconnect(close_old_connections)

    assert Progress.objects.count() == 2
    assert Checkpoint.objects.get().step == 2


def test_section_is_reported_at_once_and_ended_even_on_errors():
    server = Server(200)
    with started(server, every_s=30) as run, pytest.raises(ValueError, match="no"), run.section("evaluation"):
        until(lambda: server.bodies)
        raise ValueError("no")

    [began, ended] = [one for body in server.bodies for one in body.get("sections", ())]
    assert began["name"] == "evaluation" and "ended_at" not in began
    assert (ended["began_at"], ended["ended_at"] >= began["began_at"]) == (began["began_at"], True)


def test_times_of_ranks_are_sent_with_their_nodes():
    server = Server(200)
    with started(server, every_s=30) as run:
        run.rank_times([1.0, 1.5], ["gpu001", "gpu002"], ["stage0", "stage0"])

    [told] = [one for body in server.bodies for one in body.get("ranks", ())]
    assert told == {"seconds": [1.0, 1.5], "nodes": ["gpu001", "gpu002"], "groups": ["stage0", "stage0"]}


def test_invalid_rank_times_do_not_drop_steps():
    server = Server(200)
    with started(server, every_s=30) as run:
        run.step(1)
        run.rank_times([1.0], ["gpu001", "gpu002"])
        run.rank_times([object()], ["gpu001"])
        run.rank_times([], [])

    assert server.steps == [1]
    assert not any("ranks" in body for body in server.bodies)
