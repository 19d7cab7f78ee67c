"""Speeds of GPU models on a live cluster: given by operators, measured in earlier attempts, and used by turns."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from acmeweb.common.errors import InvalidField
from jobs.actions import jobs as job_actions
from jobs.core.attempt_end import AttemptEnd
from jobs.core.lifecycle import State
from jobs.models import Attempt, Event, Job, Node, Progress, clock
from scheduling.actions import gpu_speeds as speed_actions
from scheduling.core.policy_choice import PolicyChoice
from scheduling.engine.gpu_speeds import SpeedScope
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.loops.history import remember_ended_once
from scheduling.loops.schedule import schedule_once
from scheduling.models import GpuSpeed, LearnedRunTime
from scheduling.queries import snapshot
from scheduling.queries.measured_speeds import measure_speeds
from scheduling.queries.policy_choices import check_for_cluster
from tests import make
from tests.jobs.api import api_make
from tests.jobs.api.api_make import Caller

pytestmark = pytest.mark.django_db
PATH = "clusters/seren/gpu-speeds/"
PAGE = "/settings/clusters/of/seren/"


@pytest.fixture(autouse=True)
def seren():
    """Two nodes with H100, two with A100."""
    row = make.cluster()
    Node.objects.filter(name__in=["seren-001", "seren-002"]).update(gpu_model="h100")
    return row


def olga():
    return Caller(api_make.operator("olga"))


def give(cluster, pattern="*", **speeds):
    for model, speed in speeds.items():
        speed_actions.add(cluster, pattern=pattern, gpu_model=model, speed=speed, author=make.author())


def attempt_with_steps(name, node, *, steps_per_s, minutes=10, **fields):
    attempt = make.running(make.job(name=name, gpus_per_node=4, **fields), on=[node], gpus=(0, 1, 2, 3))
    began = clock.now() - timedelta(minutes=minutes)
    rows = [
        Progress(attempt=attempt, at=began + timedelta(seconds=s), step=round(s * steps_per_s))
        for s in range(0, minutes * 60 + 1, 60)
    ]
    Progress.objects.bulk_create(rows)
    return attempt


def scope(name):
    return SpeedScope(str(make.user().pk), name, 4)


# --- measured speeds ---


def test_speed_is_the_median_of_attempts_with_the_same_name_user_and_gpus(seren):
    for rate in (2.0, 3.0, 9.0):
        attempt = attempt_with_steps("llama", "seren-001", steps_per_s=rate)
        job_actions.finish(attempt, AttemptEnd(state=State.COMPLETED, at=clock.now()), author=make.author())
    attempt_with_steps("llama", "seren-003", steps_per_s=1.0)
    attempt_with_steps("other", "seren-004", steps_per_s=7.0)

    measured = measure_speeds(seren, [scope("llama"), SpeedScope("999", "llama", 4)])

    assert list(measured) == [scope("llama")]
    found = {model: (row.steps_per_s, row.attempts) for model, row in measured[scope("llama")].items()}
    assert found == {"h100": (3.0, 3), "a100": (1.0, 1)}
    assert measure_speeds(seren, [scope("llama")._replace(gpus=8)]) == {}


def test_jobs_submitted_long_ago_are_not_measured(seren):
    attempt = attempt_with_steps("llama", "seren-001", steps_per_s=2.0)
    jobs = Job.objects.filter(pk=attempt.job_id)

    for days, found in ((89, True), (91, False)):
        jobs.update(submitted_at=clock.now() - timedelta(days=days))
        assert (scope("llama") in measure_speeds(seren, [scope("llama")])) == found


def test_attempt_with_few_steps_or_a_short_time_is_not_measured(seren):
    attempt_with_steps("slow", "seren-001", steps_per_s=0.01)
    attempt_with_steps("short", "seren-003", steps_per_s=9, minutes=0)

    assert measure_speeds(seren, [scope("slow"), scope("short")]) == {}


def test_turn_without_several_models_reads_no_speeds(seren):
    give(seren, h100=2, a100=1)
    make.job(gpu_model="h100")

    with CaptureQueriesContext(
        connection,
    ) as queries:
        picture = snapshot.take_snapshot(seren, clock.now())

    assert picture.speeds is None
    assert not any("gpuspeed" in query["sql"] or "jobs_progress" in query["sql"] for query in queries)


# --- turns ---


def schedule(cluster, policy="fifo"):
    return schedule_once(cluster, LIVE_POLICIES[policy], clock.now(), lambda: None)


def hold_h100(*, predicted_s):
    job = make.job(gpus_per_node=8, nodes=2, name="holder")
    make.running(job, on=["seren-001", "seren-002"])
    Job.objects.filter(pk=job.pk).update(predicted_s=predicted_s)


def wide_job(**fields):
    job = make.job(name="llama", gpus_per_node=8, gpu_model="h100|a100", time_limit="20:00:00", **fields)
    Job.objects.filter(pk=job.pk).update(predicted_s=5 * 3600)
    return job


@pytest.mark.parametrize("source", ["given", "measured"])
def test_job_waits_for_a_model_that_ends_earlier_and_says_so(seren, source):
    if source == "given":
        give(seren, h100=3, a100=1)
    else:
        for number, rate in ((1, 3.0), (3, 1.0)):
            attempt = attempt_with_steps("llama", f"seren-00{number}", steps_per_s=rate, nodes=2)
            Attempt.objects.filter(pk=attempt.pk).update(ended_at=clock.now(), state=State.COMPLETED)
            Job.objects.filter(pk=attempt.job_id).update(state=State.COMPLETED, nodes=1, gpus_per_node=8)
            attempt.allocations.update(released_at=clock.now())
    hold_h100(predicted_s=1800)
    job = wide_job()

    assert schedule(seren) == 0
    job.refresh_from_db()
    assert "It waits for h100, where it is predicted to end about " in job.why
    assert job.why.endswith(" earlier than on a100 now.")


def test_job_takes_the_slower_model_if_the_first_comes_too_late(seren):
    give(seren, h100=3, a100=1)
    hold_h100(predicted_s=90 * 3600)
    job = wide_job()

    assert schedule(seren) == 1
    attempt = Attempt.objects.get(job=job)
    assert (attempt.slowdown, attempt.nodelist) == (3.0, "seren-003")
    (running,) = [one for one in snapshot.take_snapshot(seren, clock.now()).running if one.id == job.pk]
    assert running.slowdown == 3.0


def test_run_times_are_learned_as_on_the_first_model(seren):
    job = make.job(name="llama", gpus_per_node=8, gpu_model="h100|a100")
    attempt = make.running(job, on=["seren-003"])
    began = attempt.confirmed_at or Attempt.objects.get(pk=attempt.pk).confirmed_at
    Attempt.objects.filter(pk=attempt.pk).update(slowdown=2.5)
    job_actions.finish(
        attempt, AttemptEnd(state=State.COMPLETED, at=began + timedelta(seconds=200)), author=make.author()
    )
    remember_ended_once(seren, clock.now() + timedelta(minutes=1))

    assert {row.mean_s for row in LearnedRunTime.objects.all()} == {80.0}
    assert [past.ran_s for past in snapshot.past_jobs(seren, clock.now())] == [
        pytest.approx(
            (Job.objects.get(pk=job.pk).ended_at - Job.objects.get(pk=job.pk).started_at).total_seconds() / 2.5
        )
    ]


# --- API ---


def test_speed_is_added_listed_changed_and_removed(seren):
    caller = olga()
    added = caller.post(PATH, {"pattern": "llama-*", "gpu_model": "h100", "speed": 2.2, "reason": "measured by hand"})
    speed = added.json()

    assert (added.status_code, added["Location"]) == (201, f"http://testserver/api/v1/{PATH}{speed['id']}/")
    assert (speed["pattern"], speed["gpu_model"], speed["speed"]) == ("llama-*", "h100", 2.2)
    assert caller.get(PATH).json()["results"] == [speed]
    changed = caller.patch(f"{PATH}{speed['id']}/", {"speed": 3})
    assert (changed.status_code, changed.json()["speed"]) == (200, 3.0)
    assert caller.post(f"{PATH}{speed['id']}/remove/", {}).json()["speed"] == 3.0
    assert caller.get(f"{PATH}{speed['id']}/").status_code == 404
    changes = [event.detail["changes"][0] for event in Event.objects.filter(type="cluster.changed").order_by("id")]
    assert changes == [
        ["speed of llama-* on h100", None, "2.2"],
        ["speed of llama-* on h100", "2.2", "3"],
        ["speed of llama-* on h100", "3", None],
    ]


REFUSALS = {
    "no pattern": ({"gpu_model": "h100", "speed": 1}, {"pattern": ["is required"]}),
    "no speed": ({"pattern": "a", "gpu_model": "h100"}, {"speed": ["is required"]}),
    "zero": (
        {"pattern": "a", "gpu_model": "h100", "speed": 0},
        {"speed": ["0 is not between 1e-09 and 1e+09"]},
    ),
    "unknown model": (
        {"pattern": "a", "gpu_model": "h1000", "speed": 1},
        {"gpu_model": ["no node of seren has 'h1000'; there are a100, h100"]},
    ),
    "class of characters": (
        {"pattern": "a[0-9]", "gpu_model": "h100", "speed": 1},
        {"pattern": ["must not contain [; use * for any text and ? for one character"]},
    ),
    "empty pattern": (
        {"pattern": "", "gpu_model": "h100", "speed": 1},
        {"pattern": ["must be a job name of 1 to 120 characters, such as llama-*"]},
    ),
    "unknown field": ({"pattern": "a", "unit": "s"}, {"unit": ["is not a field of a GPU speed"]}),
}


@pytest.mark.parametrize(("body", "errors"), REFUSALS.values(), ids=REFUSALS)
def test_invalid_speed_is_refused_with_the_field(body, errors):
    answer = olga().post(PATH, body)

    assert (answer.status_code, answer.json()) == (400, errors)
    assert not GpuSpeed.objects.exists()


def test_second_speed_and_an_unchanged_one_conflict(seren):
    give(seren, h100=2)
    number = GpuSpeed.objects.get().pk

    again = olga().post(PATH, {"pattern": "*", "gpu_model": "h100", "speed": 3})
    same = olga().patch(f"{PATH}{number}/", {"speed": 2})

    assert (again.status_code, again.json()["detail"]) == (409, "* already has a speed on h100. Change that one.")
    assert (same.status_code, same.json()["detail"]) == (409, "The speed of * on h100 is 2 already.")


def test_only_operators_change_speeds(seren):
    give(seren, h100=2)
    ada = Caller(api_make.person())

    assert ada.get(PATH).status_code == 200
    assert ada.post(PATH, {"pattern": "b", "gpu_model": "h100", "speed": 3}).status_code == 403
    assert ada.post(f"{PATH}{GpuSpeed.objects.get().pk}/remove/", {}).status_code == 403


def test_speeds_of_a_job_say_their_source(seren):
    give(seren, "lla*", h100=3, a100=1.5)
    owner = make.job(name="llama", gpus_per_node=8, gpu_model="h100|a100")
    unknown = make.job(name="bert", gpus_per_node=8, gpu_model="h100|a100")
    caller = Caller(make.user())

    known = caller.get(f"jobs/{owner.public_id}/gpu-speeds/").json()

    assert known == {
        "source": "given",
        "pattern": "lla*",
        "models": [
            {"gpu_model": "h100", "speed": 3.0, "attempts": 0, "slowdown": 1.0},
            {"gpu_model": "a100", "speed": 1.5, "attempts": 0, "slowdown": 2.0},
        ],
    }
    assert caller.get(f"jobs/{unknown.public_id}/gpu-speeds/").json() == {
        "source": "unknown",
        "pattern": "",
        "models": [
            {"gpu_model": "h100", "speed": None, "attempts": 0, "slowdown": None},
            {"gpu_model": "a100", "speed": None, "attempts": 0, "slowdown": None},
        ],
    }
    assert Caller(api_make.person("eve", "speech")).get(f"jobs/{owner.public_id}/gpu-speeds/").status_code == 404


# --- settings page ---


def browser(*permissions):
    client, user = Client(), make.user("olga")
    user.user_permissions.add(*Permission.objects.filter(codename__in=permissions))
    client.force_login(user)
    return client


def text(answer):
    return " ".join(answer.content.decode().split())


def test_operator_adds_changes_and_removes_a_speed_on_the_settings_page(seren):
    client = browser("operate_cluster")
    add = "/settings/clusters/of/seren/gpu-speeds/"

    client.post(add, {"pattern": "llama-*", "gpu_model": "h100", "speed": "1234.5"})
    row = GpuSpeed.objects.get()
    page = text(client.get(PAGE))
    assert "llama-*: the speed on h100 was added." in page
    assert 'value="1234.5"' in page
    client.post(f"{add}{row.pk}/", {"speed": "3"})
    assert GpuSpeed.objects.get().speed == 3.0
    client.post(f"{add}{row.pk}/", {"speed": "much"})
    assert "Nothing was changed. speed: &#x27;much&#x27; is not a number, such as 2.2." in text(client.get(PAGE))
    client.post(f"{add}{row.pk}/", {"do": "remove"})
    assert not GpuSpeed.objects.exists()


def test_settings_page_says_that_it_shows_only_the_first_speeds(seren):
    rows = [GpuSpeed(cluster=seren, pattern=f"job-{number:04}", gpu_model="h100", speed=2) for number in range(1_240)]
    GpuSpeed.objects.bulk_create(rows[:500])
    client = browser("operate_cluster")
    assert "The first 500 of" not in text(client.get(PAGE))

    GpuSpeed.objects.bulk_create(rows[500:])

    assert "The first 500 of 1,240 speeds. The command <code>acme cluster gpu-speeds seren</code> lists all." in text(
        client.get(PAGE)
    )


def test_others_see_the_speeds_and_cannot_change_them(seren):
    give(seren, h100=2)
    client = browser("change_cluster", "view_cluster")

    assert client.post("/settings/clusters/of/seren/gpu-speeds/", {"speed": "1"}).status_code == 403
    assert "Add speed" not in text(client.get(PAGE))


# --- las-aware ---


def test_las_aware_is_refused_without_speeds_on_two_models(seren):
    choice = PolicyChoice(policy="las-aware", placement="consolidate", settings={})
    refused = "policy: las-aware orders jobs by the speeds of GPU models, and no job name on seren has known speeds"

    give(seren, h100=2)
    with pytest.raises(InvalidField, match=refused):
        check_for_cluster(seren, choice)
    give(seren, a100=1)
    assert check_for_cluster(seren, choice) == choice


def test_las_aware_is_accepted_with_measured_speeds(seren):
    choice = PolicyChoice(policy="las-aware", placement="consolidate", settings={})
    for number, rate in ((1, 3.0), (3, 1.0)):
        attempt_with_steps("llama", f"seren-00{number}", steps_per_s=rate, gpu_model="h100|a100")

    assert check_for_cluster(seren, choice) == choice


def test_attained_service_counts_by_the_speed_of_the_model(seren):
    job = make.job(name="llama", gpus_per_node=8, gpu_model="h100|a100")
    attempt = make.running(job, on=["seren-003"])
    Attempt.objects.filter(pk=attempt.pk).update(slowdown=4.0)
    promised = Attempt.objects.get(pk=attempt.pk).promised_at
    Attempt.objects.filter(pk=attempt.pk).update(ended_at=promised + timedelta(seconds=100))
    Job.objects.filter(pk=job.pk).update(state=State.PENDING)

    past = snapshot.take_snapshot(seren, clock.now()).history

    assert (past.attained[job.pk], past.attained_by_speed[job.pk]) == (800.0, 200.0)
