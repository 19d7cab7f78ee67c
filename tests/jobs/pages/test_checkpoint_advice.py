"""How often a job should save: through the API and on its page, from its own failures and its measured stall."""

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


def test_a_job_is_told_how_often_to_save_and_from_what(ada):
    job = ran(7, saves=5, every_s=3600)

    told = ada.get(f"jobs/{job}/saving/").json()

    assert told["failures"] == 0 and told["mttf_s"] == pytest.approx(7 * 3600 / 0.7, rel=0.01)
    assert told["every_s"] == pytest.approx((2 * 4 * 36_000) ** 0.5, rel=0.02)
    assert told["usual_s"] == pytest.approx(3600, abs=2) and told["usual_waste"] > told["waste"]
    assert "Saving every 3600 s as now costs" in told["why"]


@pytest.mark.parametrize("known", [{"saves": 0}, {"saves": 3, "stall_s": None}])
def test_without_a_measured_stall_there_is_no_advice_and_that_is_said(ada, known):
    told = ada.get(f"jobs/{ran(7, **known)}/saving/").json()

    assert told["every_s"] is None and "Too little is known" in told["why"]


def test_who_may_not_see_the_job_is_not_told(ada):
    grace = Caller(make.person("grace", in_team="speech"))

    assert grace.get(f"jobs/{ran(7, saves=3)}/saving/").status_code == 404


def test_the_page_says_it(ada, client):
    job = ran(7, saves=3)
    client.force_login(ada.user)

    page = client.get(f"/jobs/{job}/").content.decode()

    assert "Save every" in page and "0 failures in 7.0 h" in page


def test_a_job_that_never_saved_has_no_such_line(ada, client):
    job = make.running(make.job(gpus_per_node=1))
    client.force_login(ada.user)

    assert "Save every" not in client.get(f"/jobs/{job}/").content.decode()
