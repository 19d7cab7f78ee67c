"""The progress panel of the job page: visibility, jobs without reports, and non-finite values."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs.models import Checkpoint, LatestProgress, TeamRole, clock
from tests import make

pytestmark = pytest.mark.django_db


@pytest.fixture
def attempt():
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    return make.running(make.job(by="ada", gpus_per_node=8, kind="pretrain"))


def page(attempt, name="ada", **headers):
    return make.browser(name).get(f"/jobs/{attempt.job}/", headers=headers).content.decode()


def fragment(attempt):
    return page(attempt, **{"HX-Request": "true", "HX-Target": "section#progress"})


def test_the_panel_of_a_job_without_reports_says_so(attempt):
    assert "The job has not reported any progress." in fragment(attempt)


def test_the_panel_shows_the_newest_values(attempt):
    LatestProgress.objects.create(
        attempt=attempt, at=clock.now(), step=12_300, loss=2.31415, step_time_s=1.25, tokens=5 * 10**9
    )

    text = fragment(attempt)

    for word in ("12,300", "2.3142", "1.25", "5,000,000,000", f"/api/v1/jobs/{attempt.job}/metrics/"):
        assert word in text
    assert "gradient norm" not in text


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_non_finite_loss_is_highlighted(attempt, loss):
    LatestProgress.objects.create(attempt=attempt, at=clock.now(), step=7, loss=loss)

    assert "loss is not a number" in fragment(attempt)


def test_the_verified_checkpoint_is_durable_and_not_bad(attempt):
    now = clock.now()
    for step, saved, durable, verdict in ((1, 90, 80, ""), (2, 50, 40, "bad"), (3, 5, None, "")):
        Checkpoint.objects.create(
            job=attempt.job,
            attempt=attempt,
            step=step,
            path=f"/c/{step}",
            saved_at=now - timedelta(minutes=saved),
            durable_at=durable and now - timedelta(minutes=durable),
            verdict=verdict,
            verdict_why="<b>torn</b>",
        )

    text = fragment(attempt)

    assert "1h30m ago" in text.split("verified checkpoint")[1].split("</div>")[0]
    assert text.index("/c/3") < text.index("/c/2") < text.index("/c/1")
    assert "<b>torn" not in text and "not yet" in text
