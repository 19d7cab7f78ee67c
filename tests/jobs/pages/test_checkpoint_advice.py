"""The suggested checkpoint interval in the API and on the job page, from failures and the measured stall."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs.models import Attempt, Checkpoint, TokenScope, clock
from tests.jobs.api import api_make as make
from tests.jobs.api.api_make import Caller

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture
def ada():
    make.cluster()
    return Caller(make.person(), TokenScope.SUBMIT)


def ran(hours, *, saves=0, every_s=600, stall_s=4.0):
    job = make.running(make.job(gpus_per_node=1, checkpoint_dir="/ckpt"))
    attempt, now = Attempt.objects.get(job=job), clock.now()
    Attempt.objects.filter(pk=attempt.pk).update(confirmed_at=now - hours * HOUR)
    for n in range(saves):
        at = now - timedelta(seconds=(saves - n) * every_s)
        Checkpoint.objects.create(
            job=job, attempt=attempt, step=n, path=f"/ckpt/{n}", saved_at=at, stall_s=stall_s or None
        )
    return job


def test_the_api_suggests_a_checkpoint_interval_with_its_basis(ada):
    job = ran(7, saves=5, every_s=3600)

    told = ada.get(f"jobs/{job}/checkpoint-advice/").json()

    assert told["failures"] == 0 and told["mttf_s"] == pytest.approx(7 * 3600 / 0.7, rel=0.01)
    assert told["interval_s"] == pytest.approx((2 * 4 * 36_000) ** 0.5, rel=0.02)
    assert (
        told["current_interval_s"] == pytest.approx(3600, abs=2)
        and told["current_lost_fraction"] > told["lost_fraction"]
    )
    assert "The current interval of 3600 s costs" in told["why"]


@pytest.mark.parametrize("known", [{"saves": 0}, {"saves": 3, "stall_s": None}])
def test_a_job_without_a_measured_stall_gets_no_suggestion_and_a_reason(ada, known):
    told = ada.get(f"jobs/{ran(7, **known)}/checkpoint-advice/").json()

    assert told["interval_s"] is None and "Not enough data" in told["why"]


def test_the_suggestion_is_hidden_from_users_who_cannot_see_the_job(ada):
    grace = Caller(make.person("grace", in_team="speech"))

    assert grace.get(f"jobs/{ran(7, saves=3)}/checkpoint-advice/").status_code == 404


def test_the_job_page_shows_the_suggested_interval(ada, client):
    job = ran(7, saves=3)
    client.force_login(ada.user)

    page = client.get(f"/jobs/{job}/").content.decode()

    assert "Suggested interval" in page and "0 failures in 7.0 h" in page


def test_the_page_of_a_job_without_checkpoints_shows_no_suggestion(ada, client):
    job = make.running(make.job(gpus_per_node=1))
    client.force_login(ada.user)

    assert "Suggested interval" not in client.get(f"/jobs/{job}/").content.decode()
