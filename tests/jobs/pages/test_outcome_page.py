"""Jobs with an unknown outcome, on pages and in the API: one click records the outcome."""

from __future__ import annotations

import pytest
from django.test import Client

from jobs.actions import outcomes as outcome_actions
from jobs.core.lifecycle import State
from jobs.models import Attempt, Job, TeamRole, clock
from tests import make

pytestmark = pytest.mark.django_db


@pytest.fixture
def unknown():
    attempt = make.running(make.job(gpus_per_node=1))
    now = clock.now()
    Attempt.objects.update(missing_since=now)
    outcome_actions.mark_outcome_unknown(attempt, "The cluster has forgotten it.", missing_since=now, author=make.LOOP)
    return Job.objects.get()


def client(name="ada", role=TeamRole.RESEARCHER):
    make.team("pretraining", **{name: role})
    return make.browser(name)


@pytest.mark.parametrize("page", ["/", "/jobs/{}/"])
def test_the_page_asks_for_the_outcome_of_the_job(unknown, page):
    text = client().get(page.format(unknown.public_id)).content.decode()

    assert "OUTCOME_UNKNOWN" in text
    for verb in ("mark-succeeded", "mark-failed", "run-again"):
        assert f"/jobs/{unknown.public_id}/{verb}/" in text


@pytest.mark.parametrize(
    ("verb", "state"),
    [("mark-succeeded", State.COMPLETED), ("mark-failed", State.FAILED), ("run-again", State.PENDING)],
)
def test_one_click_records_the_outcome(unknown, verb, state):
    answer = client().post(f"/jobs/{unknown.public_id}/{verb}/")

    unknown.refresh_from_db()
    assert answer.status_code == 302
    assert (unknown.state, unknown.hold) == (state, "")


def test_a_viewer_sees_no_buttons_and_records_nothing(unknown):
    viewer = client("ben", TeamRole.VIEWER)

    assert "mark-succeeded" not in viewer.get(f"/jobs/{unknown.public_id}/").content.decode()
    viewer.post(f"/jobs/{unknown.public_id}/mark-succeeded/")
    unknown.refresh_from_db()
    assert unknown.state == State.PENDING


def test_a_job_with_a_known_outcome_shows_no_outcome_buttons():
    job = make.job()

    assert "mark-succeeded" not in client().get(f"/jobs/{job.public_id}/").content.decode()


def test_a_job_of_another_installation_says_so():
    job = make.running(make.job()).job
    Job.objects.update(foreign_id="7@1795403401", foreign_user="eve", foreign_key="other123:0vq.1")

    text = client(role=TeamRole.ADMIN).get(f"/jobs/{job.public_id}/").content.decode()

    assert "another Acme installation" in text
    assert "other123" in text
    assert f"/jobs/{job.public_id}/adopt/" not in text  # this takes the right to operate clusters


def test_an_operator_of_clusters_is_offered_to_adopt_it():
    job = make.running(make.job()).job
    Job.objects.update(foreign_id="7@1795403401", foreign_user="eve", foreign_key="other123:0vq.1")
    make.user("root", is_superuser=True)
    browser = Client()
    browser.force_login(make.user("root"))

    assert f"/jobs/{job.public_id}/adopt/" in browser.get(f"/jobs/{job.public_id}/").content.decode()
    assert browser.post(f"/jobs/{job.public_id}/adopt/").status_code == 302
    assert not Job.objects.get().is_foreign
