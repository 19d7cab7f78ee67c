"""The preview beside the submit form: what it says, what it costs, and what it must not reveal or change."""

import json
from datetime import timedelta

import pytest
from django.test import Client
from django.utils.dateparse import parse_datetime

from jobs.models import Cluster, ClusterMode, Job, Quota, TeamRole, clock
from jobs.rest.throttle import counter
from scheduling.models import ClusterEndpoint, EstimateError, EstimateLead, LearnedRunTime, OpenCircuit
from scheduling.queries.submission_preview import PREVIEWS_PER_MINUTE
from tests import make
from tests.jobs.api import api_make
from tests.page_text import page_text

pytestmark = pytest.mark.django_db
HTMX = {"HX-Request": "true", "HX-Target": "section#preview"}


@pytest.fixture
def seren():
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    make.team("speech", ben=TeamRole.RESEARCHER)
    return make.cluster(policy="easy")


@pytest.fixture
def ada(client, seren):
    client.force_login(make.user("ada"))
    return client


def fields(seren, **changes):
    values = {"team": make.team("pretraining").pk, "cluster": seren.pk, "kind": "other", "command": "python train.py"}
    return values | {"nodes": "1", "gpus_per_node": "8", "time_limit": "12:00:00"} | changes


def preview(client, seren, **changes):
    answer = client.post("/jobs/new/preview/", fields(seren, **changes), headers=HTMX)
    assert answer.status_code == 200
    return page_text(answer)


def fill(seren, nodes, by="ben", **asked):
    for number in range(1, nodes + 1):
        job = make.job(by=by, gpus_per_node=8, time_limit=7200, name=f"holder-{number}", **asked)
        make.running(job, on=[f"seren-{number:03d}"])


def test_a_job_that_fits_starts_in_the_next_turn(ada, seren):
    text = preview(ada, seren)

    assert "In the next scheduling turn" in text
    assert "32 GPUs" in text and "4 of 4 nodes have room" in text
    assert "Nothing blocks it." in text
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("fields_of_cluster", "why"),
    [
        ({"policy": "srtf"}, "The policy srtf does not start jobs on clusters."),
        ({"policy": "acme", "policy_settings": {"order": "alphabet"}}, "because the policy settings are invalid"),
    ],
)
def test_a_cluster_whose_policy_starts_no_jobs_is_not_said_to_start_one(ada, seren, fields_of_cluster, why):
    make.cluster(**fields_of_cluster)

    text = preview(ada, seren)

    assert why in text
    assert "In the next scheduling turn" not in text and "Nothing blocks it." not in text


def test_a_full_cluster_shows_blockers_and_an_estimate_without_names_of_other_teams(ada, seren):
    fill(seren, 4)
    for lead in EstimateLead.values:
        EstimateError.objects.create(
            cluster=seren, lead=lead, jobs=340, median_s=720, within_p90=0.91, updated_at=clock.now()
        )

    text = preview(ada, seren)

    assert "90% likely by" in text
    assert "Half of 340 such estimates were within 12m" in text and "91% of the jobs" in text
    assert "8 GPUs missing" in text
    assert "holder-1" not in text


def test_quota_is_that_of_the_queue_page(ada, seren):
    Quota.objects.create(cluster=seren, team=make.team("pretraining"), gpus=12)
    fill(seren, 1, by="ada")

    text, queue = preview(ada, seren), page_text(ada.get("/queue/"))

    assert "<strong>4 GPUs</strong> left" in text
    assert "8 of 12 allocated" in text and "<b>8</b> of 12 allocated" in queue
    assert "over the quota" in text


def test_all_invalid_fields_are_listed_at_once(ada, seren):
    text = preview(ada, seren, nodes="many", time_limit="soon", labels="broken")

    assert "Nodes" in text and "Time limit" in text and "Labels" in text
    assert "The commands appear when" in text


def test_without_a_command_everything_but_the_commands_is_previewed(ada, seren):
    text = preview(ada, seren, command=" ")

    assert "In the next scheduling turn" in text
    assert "The commands appear when" in text
    assert "Correct these fields" not in text


@pytest.mark.parametrize(
    ("price", "limit", "array", "shown"),
    [
        (2.5, "12:00:00", "", ("96.0 GPU-hours", "240.00", "After 12h")),
        (None, "12:00:00", "0-9", ("960 GPU-hours", "for 10 tasks")),
        (2.5, "UNLIMITED", "", ("No upper limit", "No time limit")),
    ],
)
def test_cost_at_the_time_limit(ada, seren, price, limit, array, shown):
    make.cluster(gpu_hour_price=price)

    text = preview(ada, seren, time_limit=limit, array=array)

    assert all(words in text for words in shown)


def test_an_observed_cluster_says_that_acme_does_not_start_jobs_there(ada, seren):
    make.cluster(mode=ClusterMode.OBSERVE)

    text = preview(ada, seren)

    assert "Acme only observes seren" in text
    assert "Not known" in text


def test_an_open_circuit_says_that_the_cluster_does_not_respond(ada, seren):
    now = clock.now()
    OpenCircuit.objects.create(
        cluster=seren, endpoint=ClusterEndpoint.CONTROL, address=seren.address, since=now, retry_at=now, why="slow"
    )

    assert "seren does not respond in time" in preview(ada, seren)


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"hold": "on"}, "It starts after you release it."),
        ({"begin_at": "2031-01-31T08:00:00Z"}, "Its earliest start is 2031-01-31"),
    ],
)
def test_a_job_that_is_not_due_has_a_reason_and_no_estimate(ada, seren, changes, shown):
    text = preview(ada, seren, **changes)

    assert shown in text
    assert "No estimate, because the job does not wait for GPUs yet." in text


def test_a_dependency_counts_until_it_ends(ada, seren):
    first = make.job(by="ada", name="first")
    asked = {"dependencies": f"afterok:{first}"}

    assert f"It waits for {first} to end." in preview(ada, seren, **asked)
    make.ended(first)
    assert "In the next scheduling turn" in preview(ada, seren, **asked)


def test_a_long_queue_has_no_estimate_in_advance(ada, seren):
    fill(seren, 4)
    make.jobs(*[{"gpus_per_node": 8, "array": "0-999"}], by="ben")

    assert "The cluster has too many jobs for an estimate now." in preview(ada, seren)


def test_hostile_text_is_escaped_in_the_commands(ada, seren):
    answer = ada.post(
        "/jobs/new/preview/", fields(seren, command="</pre><script>alert(1)</script>'; rm -rf /"), headers=HTMX
    )

    assert "<script>alert" not in answer.content.decode()


def test_the_link_fills_in_the_form_again_without_secrets(ada, seren):
    answer = ada.post(
        "/jobs/new/preview/",
        fields(seren, nodes="2", environment="HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789\nLR=3e-4", hold="on"),
        headers=HTMX,
    )
    link = answer.context["link"]

    form = ada.get(f"/jobs/new/?{link}").context["form"]

    assert "hf_abc" not in link
    assert (form["nodes"].value(), form["environment"].value(), form["hold"].value()) == ("2", "LR=3e-4", True)
    assert form["command"].value() == "python train.py"


def test_the_preview_works_without_scripts_and_keeps_the_fields(ada, seren):
    answer = ada.post("/jobs/new/preview/", fields(seren, name="my-run"))

    text = page_text(answer)
    assert answer.status_code == 200
    assert "my-run" in text and "In the next scheduling turn" in text
    assert "Not submitted" not in text


def test_previews_are_limited_per_user(ada, seren):
    counter.increment_many({f"api:preview:{make.user('ada').pk}": PREVIEWS_PER_MINUTE}, 60)

    assert "The next one is possible in" in preview(ada, seren)


def test_previews_of_the_page_and_of_the_api_have_one_limit(ada, seren, door):
    used = f"api:preview:{make.user('ada').pk}"

    preview(ada, seren)
    api_preview(door)

    assert counter.look(used, 60) == 2


def test_a_team_of_others_cannot_be_previewed(ada, seren):
    assert "Team" in preview(ada, seren, team=make.team("speech").pk)


def test_a_preview_needs_a_login(seren):
    assert Client().post("/jobs/new/preview/", fields(seren)).status_code == 302


def test_the_number_of_queries_does_not_depend_on_the_queue(ada, seren, django_assert_num_queries):
    fill(seren, 4)
    make.jobs(*[{"gpus_per_node": 8}] * 5, by="ben")

    # session, user, teams, clusters, shape, snapshot and its version, circuit, past jobs, learned run times
    with django_assert_num_queries(32):
        preview(ada, seren)
    # The snapshot, the past jobs and the engine's answer are cached
    with django_assert_num_queries(16):
        preview(ada, seren, command="python train.py --lr 3e-4", name="python")


# the API


@pytest.fixture
def door(seren):
    return api_make.Caller(make.user("ada"))


def api_preview(door, status=200, **asked):
    answer = door.post("jobs/preview/", {"team": "pretraining", "cluster": "seren", "command": "train", **asked})
    assert answer.status_code == status, answer.content
    return answer.json()


def test_the_api_previews_without_creating_a_job(door, seren):
    make.cluster(gpu_hour_price=2.0)
    Quota.objects.create(cluster=seren, team=make.team("pretraining"), gpus=12)

    said = api_preview(door, nodes=2, gpus_per_node=4, time_limit="1:00:00")

    assert (said["starts_now"], said["free_gpus"], said["fitting_nodes"]) == (True, 32, 4)
    assert (said["most_gpu_hours"], said["most_cost"]) == (8.0, 16.0)
    assert said["quotas"] == [{"kind": None, "gpu_model": "", "quota_gpus": 12, "allocated_gpus": 0, "left_gpus": 12}]
    assert not Job.objects.exists()


def test_the_api_says_why_the_job_would_wait_and_when_it_would_start(door, seren):
    fill(seren, 4)

    said = api_preview(door, gpus_per_node=8, time_limit="1:00:00")

    assert said["blockers"][0]["kind"] == "capacity"
    assert said["estimate"]["p50"] <= said["estimate"]["p90"]
    assert "holder-1" not in str(said)


def test_the_api_reports_the_errors_of_a_submission(door, seren):
    assert set(api_preview(door, 400, nodes=0, time_limit="soon")) == {"nodes", "time_limit"}
    assert set(api_preview(door, 400, dependencies="afterok:nope")) == {"dependencies"}
    assert set(api_preview(door, 400, team="speech")) == {"team"}


def test_previews_of_the_api_have_a_limit_of_their_own(door, seren):
    counter.increment_many({f"api:preview:{make.user('ada').pk}": PREVIEWS_PER_MINUTE}, 60)

    answer = door.post("jobs/preview/", {"command": "train"})

    assert answer.status_code == 429 and "Retry-After" in answer.headers
    assert door.get("jobs/").status_code == 200


def test_start_of_the_previewed_job_follows_its_prediction_under_sjf(door, seren):
    Cluster.objects.update(policy="sjf")
    user = make.user("ada").pk
    LearnedRunTime.objects.bulk_create(
        LearnedRunTime(cluster=seren, scope=json.dumps([str(user), name]), mean_s=seconds, version=1)
        for name, seconds in (("short", 60.0), ("waiting", 20_000.0), ("long", 30_000.0))
    )
    fill(seren, 4)
    make.job(by="ada", name="waiting", nodes=4, gpus_per_node=8, time_limit="12:00:00")

    asked = {"nodes": 4, "gpus_per_node": 8, "time_limit": "12:00:00"}
    short, long = (
        parse_datetime(api_preview(door, name=name, **asked)["estimate"]["p50"]) for name in ("short", "long")
    )

    assert long - short > timedelta(hours=1)
