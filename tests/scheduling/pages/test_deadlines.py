"""Deadlines from the submission on: answers, cluster settings, pages, forecasts of the loop."""

from datetime import timedelta

import pytest

from jobs.models import Job, TeamRole, clock
from jobs.rest.throttle import WINDOW_S, counter
from scheduling.loops.start_estimates import estimate_starts_once
from tests import make
from tests.jobs.api import api_make
from tests.page_text import page_text

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
HTMX = {"HX-Request": "true", "HX-Target": "section#preview"}


@pytest.fixture
def seren():
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    return make.cluster(policy="easy")


@pytest.fixture
def ada(client, seren):
    client.force_login(make.user("ada"))
    return client


@pytest.fixture
def api(seren):
    return api_make.Caller(make.user("ada"))


@pytest.fixture
def history(seren):
    """Twenty jobs named train of about an hour."""
    now = clock.now()
    for minutes in range(50, 70):
        job = make.job(name="train", gpus_per_node=8)
        Job.objects.filter(pk=job.pk).update(
            state="COMPLETED", started_at=now - HOUR * 5, ended_at=now - HOUR * 5 + timedelta(minutes=minutes)
        )


def request(**changes):
    asked = {"team": "pretraining", "cluster": "seren", "command": "train", "gpus_per_node": 8, "kind": "other"}
    return asked | {"name": "train", "time_limit": "12:00:00", "deadline_at": "now+3hours"} | changes


def submit(api, key="k", **changes):
    return api.post("jobs/", request(**changes), Idempotency_Key=key)


def test_submission_is_answered_with_a_probability(api, history):
    submitted = submit(api)

    answered = submitted.json()["deadline"]
    job = Job.objects.get(public_id=submitted.json()["id"])
    assert submitted.status_code == 201
    assert 0.6 < answered["probability"] <= 1.0
    assert answered["why"].startswith("predicted run 1 h") and "predicted start" in answered["why"]
    assert answered["warning"] == ""
    assert (job.deadline_probability, job.deadline_why) == (answered["probability"], answered["why"])


def test_submission_without_a_deadline_is_answered_without(api):
    assert submit(api, deadline_at=None).json()["deadline"] is None


def test_unlikely_deadline_is_answered_with_a_warning(api, history):
    answered = submit(api, deadline_at="now+10minutes").json()["deadline"]

    assert answered["probability"] < 0.3
    assert answered["warning"].startswith("The deadline will be met with ")


def test_cluster_that_refuses_unlikely_deadlines_names_the_field(api, history):
    make.cluster(unlikely_deadlines="refuse", min_deadline_percent=60)

    refused = submit(api, deadline_at="now+10minutes")

    assert refused.status_code == 400
    assert "less than the 60% that the cluster expects" in refused.json()["deadline_at"][0]
    assert submit(api, "other").status_code == 201


def test_cluster_that_ignores_unlikely_deadlines_does_not_warn(api, history):
    make.cluster(unlikely_deadlines="ignore")

    answered = submit(api, deadline_at="now+10minutes").json()["deadline"]

    assert answered["probability"] < 0.3 and answered["warning"] == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"deadline_at": "2026-01-31T08:00:00Z"}, "has passed"),
        ({"deadline_at": "soon"}, "is not an ISO 8601 time"),
        ({"deadline_at": 5}, "is a number, not text"),
        ({"deadline_action": "cancel"}, "is earlier than now plus the time limit of 12:00:00"),
    ],
    ids=["past", "word", "number", "limit"],
)
def test_bad_deadline_is_refused_at_its_field(api, changes, why):
    for answered in (submit(api, **changes), api.post("jobs/preview/", request(**changes))):
        assert answered.status_code == 400
        assert why in answered.json()["deadline_at"][0]


def test_unknown_action_is_refused(api):
    assert "is not one of continue, cancel" in submit(api, deadline_action="stop").json()["deadline_action"][0]


def test_many_jobs_are_answered_up_to_a_number(api):
    jobs = [request(key=f"k{n}") for n in range(22)]

    results = api.post("jobs/bulk/", {"jobs": jobs, "mode": "each"}, Idempotency_Key="b").json()["results"]

    known = [result["deadline"]["probability"] is not None for result in results]
    assert known == [True] * 20 + [False] * 2


def test_cluster_that_refuses_checks_every_deadline_of_a_request(api, seren):
    make.cluster(unlikely_deadlines="refuse")
    jobs = [request(deadline_at="now+9days", time_limit="01:00:00") for _ in range(22)]

    results = api.post("jobs/bulk/", {"jobs": jobs, "mode": "each"}, Idempotency_Key="b").json()["results"]

    assert [result["status"] for result in results] == [201] * 20 + [400] * 2
    assert "At most 20 jobs of a request" in results[-1]["errors"]["deadline_at"][0]


def test_user_who_asks_too_often_gets_no_forecast_and_no_refuge_from_a_check(api, history):
    counter.increment_many({f"deadline:{make.user('ada').pk}": 60}, WINDOW_S)

    answered = submit(api).json()["deadline"]
    make.cluster(unlikely_deadlines="refuse")
    refused = submit(api, "other")

    assert answered["probability"] is None and "60 jobs per minute" in answered["why"]
    assert refused.status_code == 400 and "cannot be checked" in refused.json()["deadline_at"][0]


def posted(seren, **changes):
    values = {"team": make.team("pretraining").pk, "cluster": seren.pk, "kind": "other", "command": "train"}
    return values | {"nodes": "1", "gpus_per_node": "8", "name": "train", "deadline_at": "now+3hours"} | changes


def test_form_previews_and_submits_a_deadline(ada, seren, history):
    shown = page_text(ada.post("/jobs/new/preview/", posted(seren), headers=HTMX))
    assert "% likely: predicted run 1 h" in shown and "--deadline=" in shown

    ada.post("/jobs/new/", posted(seren, deadline_at="now+10minutes"))

    job = Job.objects.latest("id")
    assert abs(job.deadline_at - clock.now() - timedelta(minutes=10)) < HOUR / 30
    assert job.deadline_probability < 0.3


def test_preview_says_that_the_cluster_would_refuse_the_job(ada, seren, history):
    make.cluster(unlikely_deadlines="refuse")

    shown = page_text(ada.post("/jobs/new/preview/", posted(seren, deadline_at="now+10minutes"), headers=HTMX))

    assert "seren would refuse the job: its deadline will be met with" in shown


def test_held_job_has_no_forecast_but_a_reason(api, history):
    answered = submit(api, hold=True).json()["deadline"]

    assert answered["probability"] is None and "does not wait for GPUs yet" in answered["why"]


def test_loop_updates_the_forecasts_of_waiting_and_running_jobs(api, seren, history):
    waiting, running = (make.job(name="train", gpus_per_node=8, **late) for late in (_late(2), _late(2)))
    make.running(running)
    now = clock.now()

    estimate_starts_once(seren, now)

    assert all(job.deadline_probability > 0.5 for job in Job.objects.filter(pk__in=[waiting.pk, running.pk]))
    assert "started" in Job.objects.get(pk=running.pk).deadline_why
    assert "predicted start" in Job.objects.get(pk=waiting.pk).deadline_why


def test_probability_of_a_running_job_falls_as_time_passes(api, seren, history):
    attempt = make.running(make.job(name="train", gpus_per_node=8, **_late(0.25)))
    now = clock.now()
    Job.objects.filter(pk=attempt.job_id).update(started_at=now - timedelta(minutes=40))
    estimate_starts_once(seren, now)
    fresh = Job.objects.get(pk=attempt.job_id).deadline_probability

    Job.objects.filter(pk=attempt.job_id).update(deadline_at=now + timedelta(minutes=8))
    estimate_starts_once(seren, now + HOUR / 10)

    assert Job.objects.get(pk=attempt.job_id).deadline_probability < fresh


def _late(hours):
    return {"deadline_at": (clock.now() + hours * HOUR).isoformat()}


def test_pages_show_the_deadline(ada, seren):
    job = make.job(gpus_per_node=8, **_late(2))
    Job.objects.filter(pk=job.pk).update(deadline_probability=0.83, deadline_why="predicted run 1 h ± 5 min.")

    assert "83% likely: predicted run 1 h ± 5 min." in page_text(ada.get(f"/jobs/{job}/"))
    assert "(83%)" in page_text(ada.get("/queue/"))


def test_queue_without_deadlines_has_no_column(ada, seren):
    make.job(gpus_per_node=8)

    assert "Deadline" not in page_text(ada.get("/queue/"))


def test_api_sets_what_happens_to_unlikely_deadlines(seren):
    admin = api_make.Caller(make.user("root", is_superuser=True), "admin")
    tag = admin.get("clusters/seren/").headers["ETag"]

    changed = admin.patch("clusters/seren/", {"unlikely_deadlines": "refuse", "min_deadline_percent": 80}, If_Match=tag)

    assert changed.status_code == 200, changed.content
    seren.refresh_from_db()
    assert (seren.unlikely_deadlines, seren.min_deadline_percent) == ("refuse", 80)
