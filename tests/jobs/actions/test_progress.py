"""Progress reports of running attempts, and the limits of their tokens."""

from __future__ import annotations

import json
import math

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobs.actions import jobs as job_actions
from jobs.actions import progress
from jobs.actions.jobs import AttemptEnd
from jobs.actions.journal import SYNC
from jobs.core.lifecycle import State
from jobs.models import Checkpoint, Event, LatestProgress, Progress, clock
from tests.jobs.api import api_make as make
from tests.jobs.api.api_make import Caller

pytestmark = pytest.mark.django_db


@pytest.fixture
def attempt():
    return make.running(make.job(make.person("ada"), gpus_per_node=1)).attempts.get()


@pytest.fixture
def report(attempt):
    return reporter(attempt.key)


def reporter(key, token=None):
    headers = {"Authorization": f"Bearer {progress.run_token(key) if token is None else token}"}

    def send(body, status=200):
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = Client().post("/api/v1/progress/", raw, content_type="application/json", headers=headers)
        assert answer.status_code == status, answer.content
        return answer.json()

    return send


def beats(*steps, **more):
    return {"heartbeats": [{"step": step, "at": f"2026-01-01T00:00:{step:02d}Z", **more} for step in steps]}


def test_batch_is_stored_and_the_newest_report_becomes_the_latest_progress(report, attempt):
    taken = report(beats(1, 3, 2, loss=2.5, tokens=10))

    assert taken == {"heartbeats": 3, "checkpoints": 0, "stop_state": ""}
    assert sorted(Progress.objects.values_list("step", flat=True)) == [1, 2, 3]
    latest = LatestProgress.objects.get(attempt=attempt)
    assert (latest.step, latest.loss, latest.tokens) == (3, 2.5, 10)


def test_batch_needs_one_statement(report):
    with CaptureQueriesContext(
        connection,
    ) as queries:
        report(beats(*range(1, 60)))

    assert len(queries) == 1


def test_repeated_report_with_an_idempotency_key_gets_the_stored_response(attempt):
    def send(key, body, of=attempt):
        headers = {"Authorization": f"Bearer {progress.run_token(of.key)}", "Idempotency-Key": key}
        return Client().post("/api/v1/progress/", json.dumps(body), content_type="application/json", headers=headers)

    first, again, other = send("k1", beats(1, 2)), send("k1", beats(1, 2)), send("k1", beats(3))

    assert first.json() == again.json() == {"heartbeats": 2, "checkpoints": 0, "stop_state": ""}
    assert again.headers["Idempotency-Replayed"] == "true"
    assert other.status_code == 409
    assert send("\t", beats(4)).status_code == 400
    sibling = make.running(make.job(attempt.job.user, gpus_per_node=1), gpus=(1,)).attempts.get()
    assert send("k1", beats(1, 2), of=sibling).json()["heartbeats"] == 2, "another run's key is another key"


def test_duplicate_report_is_stored_once(report):
    report(beats(1, 2))

    assert report(beats(1, 2, 3))["heartbeats"] == 1
    assert Progress.objects.count() == 3


def test_fields_that_a_heartbeat_omits_keep_their_values(report, attempt):
    report(beats(1, loss=2.5))
    report(beats(2))

    latest = LatestProgress.objects.get(attempt=attempt)
    assert (latest.step, latest.loss) == (2, 2.5)


def test_late_report_does_not_replace_newer_progress(report, attempt):
    report(beats(5))
    report(beats(4))

    assert LatestProgress.objects.get(attempt=attempt).step == 5


def test_future_timestamp_is_replaced_by_the_present_time(report):
    report({"heartbeats": [{"step": 1, "at": "2999-01-01T00:00:00Z"}]})

    assert Progress.objects.get().at <= clock.now()


def test_nan_loss_is_stored(report):
    report({"heartbeats": [{"step": 1, "loss": "NaN", "grad_norm": "Infinity"}]})

    row = Progress.objects.get()
    assert math.isnan(row.loss) and row.grad_norm == math.inf


def test_checkpoints_are_saved_and_then_durable(report, attempt):
    saved = {"path": "/ckpt/10", "step": 10}

    assert report({"checkpoints": [saved]})["checkpoints"] == 1
    assert report({"checkpoints": [saved]})["checkpoints"] == 0
    assert Checkpoint.objects.get().durable_at is None
    assert report({"checkpoints": [{**saved, "durable": True}]})["checkpoints"] == 1

    row = Checkpoint.objects.get()
    assert row.durable_at and (row.job, row.attempt, row.step) == (attempt.job, attempt, 10)
    events = Event.objects.filter(type__startswith="checkpoint.").order_by("id")
    assert [(one.type, one.by) for one in events] == [
        ("checkpoint.saved", attempt.key),
        ("checkpoint.durable", attempt.key),
    ]


def test_stall_is_kept_when_a_checkpoint_becomes_durable_but_not_for_another_step(report):
    report({"checkpoints": [{"path": "/ckpt/last", "step": 10, "stall_s": 1.5}]})
    report({"checkpoints": [{"path": "/ckpt/last", "step": 10, "durable": True}]})
    assert Checkpoint.objects.get().stall_s == 1.5

    report({"checkpoints": [{"path": "/ckpt/last", "step": 20}]})
    assert Checkpoint.objects.get().stall_s is None


def test_path_that_is_written_again_is_a_new_checkpoint(report):
    report({"checkpoints": [{"path": "/ckpt/last", "step": 10, "durable": True}]})
    report({"checkpoints": [{"path": "/ckpt/last", "step": 20}]})

    row = Checkpoint.objects.get()
    assert (row.step, row.durable_at) == (20, None)


def test_report_response_contains_a_requested_stop(report, attempt):
    job_actions.cancel(attempt.job, author=SYNC, why="enough")

    assert report({})["stop_state"] == State.CANCELLED


def test_token_is_invalid_after_the_end_of_the_attempt(report, attempt):
    job_actions.finish(attempt, AttemptEnd(state=State.COMPLETED, at=clock.now(), exit_code=0), author=SYNC)

    for body in (beats(1), {"checkpoints": [{"path": "/x", "step": 1}]}):
        assert "has ended" in report(body, 401)["detail"]
    assert not Progress.objects.exists() and not Checkpoint.objects.exists()


def test_token_is_valid_only_for_its_own_attempt(attempt):
    theirs = make.running(make.job(make.person("ada"), gpus_per_node=1), gpus=(1,)).attempts.get()
    signature = progress.run_token(attempt.key).rpartition(".")[2]

    reporter("", token=f"{progress.RUN_TOKEN_PREFIX}{theirs.key}.{signature}")(beats(1), 401)
    reporter(attempt.key)(beats(1))

    assert set(Progress.objects.values_list("attempt__key", flat=True)) == {attempt.key}


@pytest.mark.parametrize(
    "token", ["", "x", "acme_run_", "acme_run_x.", "acme_run_..", "acme_run_ä.ö", "acme_" + "x" * 43]
)
def test_other_tokens_are_rejected(token, attempt):
    reporter("", token=token.encode().decode("latin-1"))(beats(1), 401)


def test_users_cannot_report_for_a_job(attempt):
    ada = Caller(make.person("ada"))
    browser = Client()
    browser.force_login(ada.user)

    assert ada.post("progress/", beats(1)).status_code == 401
    assert browser.post("/api/v1/progress/", b"{}", content_type="application/json").status_code == 401


@pytest.mark.parametrize("path", ["jobs/", "me/", "nodes/", "schema/"])
def test_run_token_is_rejected_by_other_endpoints(path, attempt):
    headers = {"Authorization": f"Bearer {progress.run_token(attempt.key)}"}

    assert Client().get(f"/api/v1/{path}", headers=headers).status_code == 401


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"heartbeats": []}, "heartbeats"),
        ({"heartbeats": {}}, "heartbeats"),
        ({"heartbeats": [1]}, "heartbeats"),
        ({"heartbeats": [{}] * 1001}, "heartbeats"),
        ({"heartbeats": [{"step": -1}]}, "step"),
        ({"heartbeats": [{"step": 1.5}]}, "step"),
        ({"heartbeats": [{"step": True}]}, "step"),
        ({"heartbeats": [{"step": 2**63}]}, "step"),
        ({"heartbeats": [{"loss": "nan"}]}, "loss"),
        ({"heartbeats": [{"loss": []}]}, "loss"),
        ({"heartbeats": [{"loss": 10**400}]}, "digits"),
        ({"heartbeats": [{"loss": 10**350}]}, "loss"),
        (b'{"heartbeats": [{"loss": NaN}]}', "NaN"),
        ({"heartbeats": [{"at": "yesterday"}]}, "at"),
        ({"heartbeats": [{"at": "2026-01-01T00:00:00"}]}, "at"),
        ({"heartbeats": [{"speed": 1}]}, "speed"),
        ({"checkpoints": [{"step": 1}]}, "path"),
        ({"checkpoints": [{"path": "/x"}]}, "step"),
        ({"checkpoints": [{"path": "", "step": 1}]}, "path"),
        ({"checkpoints": [{"path": "/x\n", "step": 1}]}, "path"),
        ({"checkpoints": [{"path": "x" * 501, "step": 1}]}, "path"),
        ({"checkpoints": [{"path": "/x", "step": 1, "durable": 1}]}, "durable"),
        ({"checkpoints": [{"path": "/x", "step": 1, "stall_s": -1}]}, "stall_s"),
        ({"checkpoints": [{"path": "/x", "step": 1, "stall_s": "NaN"}]}, "stall_s"),
        ({"checkpoints": [{"path": "/x", "step": 1, "stall_s": 1e9}]}, "stall_s"),
        ({"attempt": "x"}, "attempt"),
        ([], "object"),
    ],
)
def test_invalid_report_is_rejected_with_its_field_and_not_stored(report, body, named):
    assert named in json.dumps(report(body, 400))
    assert not Progress.objects.exists() and not LatestProgress.objects.exists() and not Checkpoint.objects.exists()


def test_repeated_section_report_changes_nothing(report, attempt):
    began = {"name": "evaluation", "began_at": "2026-01-01T00:00:00Z"}

    for payload in (began, began, {**began, "ended_at": "2026-01-01T00:05:00Z"}, began):
        report({"sections": [payload]})

    [section] = attempt.sections.all()
    assert (section.ended_at - section.began_at).total_seconds() == 300


def test_section_in_the_future_starts_now(report, attempt):
    report({"sections": [{"name": "compile", "began_at": "2126-01-01T00:00:00Z"}]})

    section = attempt.sections.get()
    assert section.began_at <= clock.now() and section.ended_at is None


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({"began_at": "2026-01-01T00:00:00Z"}, "name"),
        ({"name": "evaluation"}, "began_at: is missing"),
        ({"name": "x" * 41, "began_at": "2026-01-01T00:00:00Z"}, "name"),
        ({"name": "evaluation", "began_at": "yesterday"}, "began_at"),
    ],
)
def test_invalid_section_is_rejected_with_its_position(report, payload, why):
    answer = report({"sections": [{"name": "compile", "began_at": "2026-01-01T00:00:00Z"}, payload]}, status=400)

    assert "number 1" in json.dumps(answer) and why in json.dumps(answer)


def test_only_the_newest_rank_times_are_kept(report, attempt):
    for number in range(20):
        report({"ranks": [{"seconds": [number, 1.0], "nodes": ["gpu001", "gpu002"]}]})

    stored = [row.seconds[0] for row in attempt.rank_times.order_by("pk")]
    assert stored == list(range(4, 20))


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({"seconds": [1.0, 1.0], "nodes": ["gpu001"]}, "nodes: length is 1, but seconds has length 2"),
        (
            {"seconds": [1.0], "nodes": ["gpu001"], "groups": ["a", "b"]},
            "groups: length is 2, but seconds has length 1",
        ),
        ({"seconds": [-1.0], "nodes": ["gpu001"]}, "not a valid step time"),
        ({"seconds": ["NaN"], "nodes": ["gpu001"]}, "not a valid step time"),
    ],
)
def test_invalid_rank_times_are_rejected(report, attempt, payload, why):
    assert why in json.dumps(report({"ranks": [payload]}, status=400))
    assert not attempt.rank_times.exists()


# --- stacks


def test_job_declares_its_stacks_signal_once(report, attempt):
    report({"stacks": "usr2"})
    report({"heartbeats": [{"step": 1}]})
    attempt.refresh_from_db()
    assert attempt.stacks_signal == "USR2"

    report({"stacks": ""})
    attempt.refresh_from_db()
    assert attempt.stacks_signal == ""


def test_invalid_stacks_signal_is_rejected_with_the_field(report):
    answer = report({"stacks": "hello"}, status=400)

    assert "'hello' is not a signal such as USR1" in str(answer["stacks"])
    assert "TERM is not one of USR1, USR2" in str(report({"stacks": "B:TERM"}, status=400)["stacks"])


def test_sum_of_squared_lengths_is_stored_with_the_tokens(report, attempt):
    report({"heartbeats": [{"step": 1, "tokens": 4096, "sum_sq": 3.5e9}]})

    assert Progress.objects.get().sum_sq == 3.5e9
