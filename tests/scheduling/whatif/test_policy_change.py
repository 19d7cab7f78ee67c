"""What a change of policy would do to today's queue, on the page and over the API, and the link to What if."""

from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from jobs.models import Cluster, ClusterMode, Event, Job, TeamRole, TokenScope, clock
from jobs.rest.throttle import counter
from scheduling.core.policy_choice import PolicyChoice
from scheduling.loops.start_estimates import estimate_starts_once
from scheduling.models import Estimate
from scheduling.queries.queue_order import queue_states
from scheduling.queries.submission_preview import PREVIEWS_PER_MINUTE
from scheduling.whatif.pages.replay_form import ReplayForm, linked_values, replay_link
from scheduling.whatif.reads.policy_preview import preview_policy
from tests import make
from tests.jobs.api import api_make
from tests.page_text import page_text

pytestmark = pytest.mark.django_db

FORM = {"policy": "acme", "placement": "consolidate", "order": "sjf", "backfill": "easy"}
FORM |= {"aging_s": "86400", "class_s": "86400", "reserve": ["pretrain"], "why": "short ones first"}
SJF = {"policy": "acme", "settings": {"order": "sjf", "aging_s": 1e9}}


@pytest.fixture
def seren():
    make.team("pretraining", ada=TeamRole.RESEARCHER, olga=TeamRole.VIEWER)
    make.team("speech", ben=TeamRole.RESEARCHER)
    make.user("olga").user_permissions.add(Permission.objects.get(codename="operate_cluster"))
    return make.cluster(policy="acme")


@pytest.fixture
def olga(seren):
    client = Client()
    client.force_login(make.user("olga"))
    return client


@pytest.fixture
def queue(seren):
    """All GPUs are held by two jobs; a long and a short job wait, in this order, and a short one of another team."""
    for number, hours in ((1, 1), (2, 2), (3, 3), (4, 4)):
        make.running(make.job(by="ben", gpus_per_node=8, time_limit=hours * 3600), on=[f"seren-00{number}"])
    waits = {"gpus_per_node": 8}
    long, short, hidden = (
        make.job(by=by, name=name, time_limit=hours * 3600, **waits)
        for by, name, hours in (("ada", "long", 20), ("ada", "short", 1), ("ben", "secret", 2))
    )
    for job, hours in ((long, 20), (short, 1), (hidden, 2)):
        Job.objects.filter(pk=job.pk).update(predicted_s=hours * 3600)
    return long, short, hidden


def choice(**settings):
    return PolicyChoice(policy="acme", placement="consolidate", settings={"order": "sjf", "aging_s": 1e9, **settings})


def test_preview_compares_the_order_of_the_queue_page_with_the_proposed_one(seren, queue):
    long, short, hidden = queue

    preview = preview_policy(seren, choice())

    places = {job.job_id: (job.place_before, job.place_after) for job in preview.queue.jobs}
    assert places == {long.pk: (1, 3), short.pk: (2, 1), hidden.pk: (3, 2)}
    line = queue_states.of(seren, clock.now()).order.line
    assert [pk for pk, _ in sorted(places.items(), key=lambda one: one[1][0])] == list(line)
    assert not Event.objects.filter(type="policy.changed").exists()


def test_saved_policy_gives_the_order_that_the_preview_promised(seren, queue):
    promised = [job.job_id for job in preview_policy(seren, choice()).queue.jobs]

    make.cluster(policy_settings=dict(choice().settings))

    assert list(queue_states.of(Cluster.objects.get(), clock.now()).order.line) == promised


def test_starts_of_the_current_policy_are_those_of_the_estimate_loop(seren, queue):
    preview = preview_policy(seren, choice())
    estimate_starts_once(seren, preview.at)

    stored = dict(Estimate.objects.values_list("job", "p50"))
    assert {job.job_id: job.start_before for job in preview.queue.jobs} == stored
    short = next(job for job in preview.queue.jobs if job.job_id == queue[1].pk)
    assert short.start_trend == "earlier"


def test_long_queue_is_compared_without_estimates_and_says_so(seren, queue, olga):
    make.jobs(*[{"gpus_per_node": 8, "array": "0-999"}], by="ada")

    page = page_text(olga.post("/queue/seren/policy/", FORM))

    assert "No start estimates: 1,007 jobs wait or run, and a preview simulates at most 1,000." in page
    assert "of 1,003 jobs move up" in page
    assert "Likely start now" not in page


def test_page_shows_the_effect_before_the_button_that_applies_it(queue, olga):
    page = page_text(olga.post("/queue/seren/policy/", FORM | {"aging_s": "100000000"}))

    assert "2 of 3 jobs move up, 1 move down, 0 keep their place" in page
    assert "short" in page and "a job of another team" in page and "secret" not in page
    assert page.index("Effect on the queue") < page.index("Apply changes")


def test_no_change_of_the_queue_is_said(olga, seren):
    assert "No jobs are waiting for GPUs" in page_text(olga.post("/queue/seren/policy/", FORM | {"order": "fair"}))
    make.job(by="ada", gpus_per_node=8)
    assert "keep their places" in page_text(olga.post("/queue/seren/policy/", FORM | {"order": "fair"}))


def test_policy_without_its_data_is_refused_where_the_effect_would_be(olga, queue):
    answer = olga.post("/queue/seren/policy/", FORM | {"order": "qssf"})
    page = page_text(answer)

    assert answer.status_code == 400
    assert "This policy cannot be chosen" in page and "no job has ended on seren yet" in page
    assert "Apply changes" not in page


def test_policy_of_replays_is_refused_with_a_link_to_what_if(olga, queue):
    page = page_text(olga.post("/queue/seren/policy/", FORM | {"policy": "gittins"}))

    assert "This policy cannot be chosen" in page and "gittins is not one of the available choices" in page
    assert "policies=gittins" in page


def test_missing_reason_is_no_reason_against_the_policy(olga, queue):
    assert "This policy cannot be chosen" not in page_text(olga.post("/queue/seren/policy/", FORM | {"why": ""}))


def test_observed_cluster_says_that_no_order_is_in_effect(olga, queue):
    make.cluster(mode=ClusterMode.OBSERVE)

    assert "Acme only observes seren and starts no jobs there" in page_text(olga.post("/queue/seren/policy/", FORM))


def test_unreadable_current_settings_do_not_prevent_a_preview(olga, queue):
    make.cluster(policy_settings={"order": "lottery"})

    page = page_text(olga.post("/queue/seren/policy/", FORM))

    assert "No jobs are started, because the policy settings are invalid" in page
    assert "the current policy starts no jobs" in page


def test_previews_share_the_limit_of_submission_previews(olga, queue):
    counter.increment_many({f"api:preview:{make.user('olga').pk}": PREVIEWS_PER_MINUTE}, 60)

    page = page_text(olga.post("/queue/seren/policy/", FORM))

    assert "The effect on the queue can be computed in" in page and "Apply changes" in page


# --- the link to What if


def test_link_fills_in_the_form_with_the_proposed_settings(olga, queue):
    url = olga.post("/queue/seren/policy/", FORM | {"placement": "pack", "reserve": []}).context["replay_url"]
    make.team("pretraining", olga=TeamRole.RESEARCHER)

    form = olga.get(url).context["form"]

    values = {name: form[name].value() for name in ("trace", "cluster", "policies", "order", "placement", "reserve")}
    assert values == {"trace": "history", "cluster": "seren", "policies": ["acme"], "order": "sjf"} | {
        "placement": "pack",
        "reserve": [],
    }
    assert form.more_is_open()


def test_link_to_another_policy_compares_it_with_the_current_one():
    query = parse_qs(urlsplit(replay_link("seren", ["easy", "acme", "easy"])).query)

    assert query == {"trace": ["history"], "cluster": ["seren"], "policies": ["easy", "acme"]}


def test_replay_of_a_linked_form_has_the_proposed_settings(olga, seren, queue):
    make.team("pretraining", olga=TeamRole.RESEARCHER)
    url = replay_link("seren", ["acme"], choice(class_s=7200.0, reserve=[]))
    form = olga.get(url).context["form"]
    sent = {name: form[name].value() for name in form.fields if form[name].value() not in (None, "")}

    answer = olga.post("/what-if/", sent | {"team": "pretraining", "nodes": "4", "quota": ""})

    assert answer.status_code == 302, page_text(answer)
    params = make.team("pretraining").simulations.get().params
    assert params["policy_settings"] == {"acme": {"order": "sjf", "aging_s": 1e9, "class_s": 7200.0, "reserve": []}}


def test_form_without_a_link_has_its_defaults(olga, seren):
    form = olga.get("/what-if/").context["form"]

    assert form["policies"].value() == ["acme", "easy"] and not form.more_is_open()


def test_hostile_values_of_an_address_are_shown_as_text(olga, seren):
    make.team("pretraining", olga=TeamRole.RESEARCHER)

    answer = olga.get("/what-if/", {"faults": '"><script>alert(1)</script>', "cluster": "\x00", "policies": "rm"})

    assert answer.status_code == 200 and "<script>alert" not in answer.content.decode()
    assert "trace_file" not in linked_values({"trace_file": "x"}) and "trace_file" in ReplayForm.base_fields


# --- the API


@pytest.fixture
def door(olga):
    return api_make.Caller(make.user("olga"), scope=TokenScope.OPERATE)


def test_api_previews_without_changing_anything(door, queue):
    answer = door.post("clusters/seren/policy-preview/", SJF)

    said = answer.json()
    assert answer.status_code == 200, said
    assert (said["waiting_jobs"], said["up"], said["down"], said["changed_jobs"]) == (3, 2, 1, 3)
    assert [(row["title"], row["team"]) for row in said["changes"]] == [
        ("short", "pretraining"),
        ("", ""),
        ("long", "pretraining"),
    ]
    assert {"setting": "order within a class", "before": "fifo", "after": "sjf"} in said["differences"]
    assert Cluster.objects.get().policy_settings == {}


def test_api_takes_missing_fields_from_the_current_policy(door, queue):
    make.cluster(placement="pack", policy_settings={"order": "fair"})

    changes = door.post("clusters/seren/policy-preview/", {"policy": "easy"}).json()["differences"]

    assert {"setting": "policy", "before": "acme", "after": "easy"} in changes
    assert "placement" not in [one["setting"] for one in changes]
    assert door.post("clusters/seren/policy-preview/", {}).json()["differences"] == []


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"policy": "srtf"}, "policy"),
        ({"placement": "nowhere"}, "placement"),
        ({"settings": {"order": "qssf"}}, "order"),
        ({"settings": []}, "settings"),
        ({"policy": "easy", "settings": {"order": "sjf"}}, "order"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_api_names_the_field_that_cannot_be_chosen(door, queue, asked, field):
    answer = door.post("clusters/seren/policy-preview/", asked)

    assert answer.status_code == 400 and field in answer.json()


def test_api_needs_the_right_to_operate_clusters(seren):
    ada = api_make.Caller(make.user("ada"), scope=TokenScope.OPERATE)

    assert ada.post("clusters/seren/policy-preview/", SJF).status_code == 403
    assert (
        api_make.Caller(make.user("olga"), scope=TokenScope.SUBMIT)
        .post("clusters/seren/policy-preview/", SJF)
        .status_code
        == 403
    )
