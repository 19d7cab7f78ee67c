"""The contract of a preemptible job: shown before and after it is submitted, and set per cluster."""

from datetime import timedelta

import pytest

from jobs.models import Attempt, Cluster, Job, TeamRole, clock
from tests import make
from tests.jobs.api import api_make
from tests.page_text import page_text

pytestmark = pytest.mark.django_db
SENTENCE = "Can be preempted after 30 min, then at checkpoints, at most 2 times a day."
NOTE = "A job that reports no checkpoints is not preempted."
TERMS = {"preemptible": True, "preempt_exempt_time": "30:00", "preempt_at_checkpoint": True, "preemptions_per_day": 2}
OFFER = {"max_exempt_minutes": 60, "checkpoint_clause": "optional", "min_preemptions_per_day": 1}
HTMX = {"HX-Request": "true", "HX-Target": "section#preview"}


@pytest.fixture
def seren():
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    return make.cluster(**OFFER)


@pytest.fixture
def ada(client, seren):
    client.force_login(make.user("ada"))
    return client


@pytest.fixture
def api(seren):
    return api_make.Caller(make.user("ada"))


def posted(seren, **changes):
    values = {"team": make.team("pretraining").pk, "cluster": seren.pk, "kind": "other", "command": "train"}
    terms = {name: "on" if value is True else str(value) for name, value in TERMS.items()}
    return values | {"nodes": "1", "gpus_per_node": "8"} | terms | changes


def test_preview_of_the_form_shows_the_contract(ada, seren):
    text = page_text(ada.post("/jobs/new/preview/", posted(seren), headers=HTMX))

    assert f"{SENTENCE} {NOTE}" in text
    assert "--preempt-exempt-time=30:00" in text and "--preempt-at-checkpoint" in text


def test_preview_names_the_field_that_the_cluster_does_not_offer(ada, seren):
    make.cluster(max_exempt_minutes=20)

    text = page_text(ada.post("/jobs/new/preview/", posted(seren), headers=HTMX))

    assert "30 min is more than 20 min, the maximum of seren" in text


def test_form_submits_the_contract_and_offers_it_again(ada, seren):
    ada.post("/jobs/new/", posted(seren))

    job = Job.objects.get()
    assert (job.preempt_exempt_time, job.preempt_at_checkpoint) == (timedelta(minutes=30), True)
    assert job.preemption_text == SENTENCE
    again = ada.get(f"/jobs/new/?from={job}").content.decode()
    assert 'value="00:30:00"' in again and 'name="preemptions_per_day" value="2"' in again


def test_page_of_a_running_job_says_whether_it_may_be_preempted_now(ada):
    attempt = make.running(make.job(gpus_per_node=8, **TERMS))
    Attempt.objects.filter(pk=attempt.pk).update(seen_running_at=clock.now() - timedelta(hours=1))

    text = page_text(ada.get(f"/jobs/{attempt.job}/"))

    assert SENTENCE in text
    assert "It is protected from preemption: it has not reported a checkpoint since its start." in text


def test_page_of_a_job_without_terms_says_that_it_can_be_preempted(ada):
    job = make.job(gpus_per_node=8, preemptible=True)

    assert "Can be preempted at any time." in page_text(ada.get(f"/jobs/{job}/"))


def test_api_shows_the_contract_of_a_job_and_of_a_preview(api):
    request = {"team": "pretraining", "cluster": "seren", "command": "train", **TERMS}
    assert api.post("jobs/preview/", request).json()["preemption"] == f"{SENTENCE} {NOTE}"

    job = api.post("jobs/", request, Idempotency_Key="k").json()["id"]

    shown = api.get(f"jobs/{job}/").json()
    assert [shown[name] for name in ("preemption", "preempt_exempt_time", "preemptions_per_day")] == [SENTENCE, 1800, 2]


def test_job_that_states_nothing_keeps_the_terms_of_its_submission(seren):
    make.cluster(min_exempt_minutes=10, max_preemptions_per_day=4)
    job = make.job(preemptible=True)
    make.cluster(min_exempt_minutes=0, max_preemptions_per_day=None)

    assert Job.objects.get(pk=job.pk).preemption_text == "Can be preempted after 10 min, at most 4 times a day."
    assert make.job(preemptible=True).preemption_text == "Can be preempted at any time."


def test_defaults_of_a_cluster_offer_nothing():
    cluster = Cluster.objects.create(name="kalos", address="http://127.0.0.1:1")

    assert cluster.contract_limits.columns({}, cluster="kalos", preemptible=True) == {
        "preempt_exempt_time": timedelta(0),
        "preempt_at_checkpoint": False,
        "preemptions_per_day": None,
    }


@pytest.fixture
def admin(seren):
    return api_make.Caller(make.user("root", is_superuser=True), "admin")


def test_api_sets_and_removes_limits(admin, seren):
    tag = admin.get("clusters/seren/").headers["ETag"]
    changed = admin.patch("clusters/seren/", {"max_preemptions_per_day": 5, "min_exempt_minutes": 5}, If_Match=tag)
    assert (changed.status_code, changed.json()["max_preemptions_per_day"]) == (200, 5), changed.content

    admin.patch("clusters/seren/", {"max_preemptions_per_day": None}, If_Match=changed.headers["ETag"])

    seren.refresh_from_db()
    assert (seren.max_preemptions_per_day, seren.min_exempt_minutes) == (None, 5)


@pytest.mark.parametrize(
    ("change", "field", "why"),
    [
        ({"min_exempt_minutes": 61}, "min_exempt_minutes", "61 is more than the maximum, 60."),
        ({"max_preemptions_per_day": 0}, "min_preemptions_per_day", "1 is more than the maximum, 0."),
        ({"checkpoint_clause": "maybe"}, "checkpoint_clause", "is not one of refused, optional, required"),
        ({"max_exempt_minutes": 99_999}, "max_exempt_minutes", "is not between 0 and 10080"),
    ],
)
def test_limits_that_make_no_sense_are_refused_with_their_field(admin, seren, change, field, why):
    tag = admin.get("clusters/seren/").headers["ETag"]

    answer = admin.patch("clusters/seren/", change, If_Match=tag)

    assert answer.status_code == 400
    assert why in answer.json()[field][0]
