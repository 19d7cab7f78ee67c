"""The training metrics of all attempts of a job. grace is in another team than ada."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs.models import Attempt, Progress, TokenScope, clock
from tests.jobs.api import api_make as make
from tests.jobs.api.api_make import Caller

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada():
    make.cluster()
    return Caller(make.person(), TokenScope.SUBMIT)


@pytest.fixture
def grace(ada):
    return Caller(make.person("grace", in_team="speech"))


def report(attempt, steps, began):
    """Report a step per second, each with 1,000 tokens."""
    Progress.objects.bulk_create(
        Progress(attempt=attempt, step=step, tokens=1000 * step, mfu=0.4, at=began + timedelta(seconds=second))
        for second, step in enumerate(steps)
    )


def test_metrics_of_a_restarted_job_name_the_repeated_steps(ada, grace):
    job = make.running(make.job(gpus_per_node=1))
    now = clock.now()
    ended = {"state": "NODE_FAIL", "cause": "NodeLost", "ended_at": now - timedelta(seconds=50)}
    Attempt.objects.filter(job=job).update(**ended)
    first = Attempt.objects.get(job=job)
    second = Attempt.objects.create(job=job, number=2, key=f"{job}.2", confirmed_at=now)
    report(first, [10, 11, 12], now - timedelta(seconds=60))
    report(second, [11, 12, 13, 14], now - timedelta(seconds=20))

    found = ada.get(f"jobs/{job}/metrics/").json()

    assert found["job"] == str(job)
    assert [(one["attempt"], one["cause"], one["repeated_from_step"]) for one in found["attempts"]] == [
        (1, "NodeLost", 11),
        (2, "", None),
    ]
    assert [(point["step"], point["mfu"], point["tokens_per_s"]) for point in found["attempts"][0]["points"]] == [
        (10, 0.4, None),
        (11, 0.4, 1000.0),
        (12, 0.4, 1000.0),
    ]
    assert grace.get(f"jobs/{job}/metrics/").status_code == 404


def test_the_points_are_shared_by_all_attempts(ada):
    job = make.running(make.job(gpus_per_node=1))
    report(Attempt.objects.get(job=job), range(500), clock.now() - timedelta(seconds=500))

    [series] = ada.get(f"jobs/{job}/metrics/", {"points": 20}).json()["attempts"]

    assert len(series["points"]) == 20 and series["points"][-1]["step"] == 499


def test_a_job_that_never_started_has_no_metrics(ada):
    assert ada.get(f"jobs/{make.job()}/metrics/").json()["attempts"] == []


@pytest.mark.parametrize("wrong", ["points=1", "attempt=1"])
def test_an_invalid_parameter_of_the_metrics_is_named(ada, wrong):
    answer = ada.get(f"jobs/{make.job()}/metrics/?{wrong}")

    assert answer.status_code == 400 and list(answer.json()) == [wrong.partition("=")[0]]
