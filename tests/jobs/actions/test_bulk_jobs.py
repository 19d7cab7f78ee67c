"""One action on many jobs: which jobs it selects, and that its cost does not grow with statements per job."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.actions.bulk.apply import apply_to_jobs
from jobs.actions.job_verbs import JOB_ACTIONS, JobActionRequest
from jobs.core.lifecycle import Flag, State
from jobs.models import ClusterCommand, Event, HoldKind, Job, TeamRole
from jobs.models.permissions import Caller
from tests import make

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def team():
    return make.team(ada=TeamRole.RESEARCHER, ben=TeamRole.RESEARCHER, olga=TeamRole.OPERATOR)


def apply(action, jobs, name="ada", dry=False, **fields):
    request = JobActionRequest(author=make.author(name), **fields)
    keys = [job.pk for job in jobs]
    results = apply_to_jobs(JOB_ACTIONS[action], keys, request, Caller(user=make.user(name)), dry=dry)
    return {result.job.pk: result.error for result in results}


def jobs_in_all_states():
    _, held, unknown, recovering = make.jobs({}, {}, {}, {}, gpus_per_node=1)
    Job.objects.filter(pk__in=[held.pk, unknown.pk]).update(hold=HoldKind.USER)
    Job.objects.filter(pk=unknown.pk).update(flags=[Flag.OUTCOME_UNKNOWN])
    Job.objects.filter(pk=recovering.pk).update(hold=HoldKind.USER, flags=[Flag.RECOVERING])
    make.ended()
    make.running(gpus=(1,))
    foreign = make.running(gpus=(2,)).job
    Job.objects.filter(pk=foreign.pk).update(foreign_id="77@1", foreign_key="other:k1")


@pytest.mark.parametrize("action", JOB_ACTIONS.values(), ids=JOB_ACTIONS)
def test_condition_of_an_action_selects_the_jobs_that_fit(action):
    jobs_in_all_states()

    selected = set(Job.objects.filter(action.changeable))

    assert selected == {job for job in Job.objects.all() if action.fits(job)} != set()


@pytest.mark.parametrize("action", ["hold", "release", "priority", "cancel", "requeue"])
def test_number_of_statements_does_not_depend_on_the_number_of_jobs(action):
    def statements(count):
        jobs = make.jobs(*[{}] * count, gpus_per_node=1)
        if action == "release":
            apply("hold", jobs)
        if action == "requeue":
            jobs = [make.running(job, on=["seren-001"], gpus=(number,)).job for number, job in enumerate(jobs)]
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert set(apply(action, jobs).values()) == {""}
        apply("cancel", jobs)
        for attempt in [job.attempts.get() for job in jobs if job.attempts.exists()]:
            attempt.allocations.update(released_at="2026-01-01T00:00:00Z")
        return len(queries)

    assert statements(2) == statements(7)


def test_each_job_gets_its_event():
    low, high = make.jobs({}, {"priority": -7})

    apply("priority", [low, high], priority=-9, why="Later.")

    events = Event.objects.filter(type="job.priority_changed").order_by("job_id")
    assert [(event.job_id, event.detail["from"], event.detail["to"]) for event in events] == [
        (low.pk, 0, -9),
        (high.pk, -7, -9),
    ]
    assert {(event.why, event.by, event.request_id) for event in events} == {("Later.", "ada", "req-1")}


def test_running_jobs_are_stopped_by_one_command_each():
    jobs = [make.running(make.job(gpus_per_node=1), gpus=(gpu,)).job for gpu in range(2)]

    first, second = apply("cancel", jobs), apply("cancel", jobs)

    assert set(first.values()) == {""}
    assert all("already being cancelled" in error for error in second.values())
    assert ClusterCommand.objects.filter(kind="cancel").count() == 2
    assert all(Flag.SIGNALING in job.flags for job in Job.objects.all())


def test_refused_jobs_do_not_affect_the_others():
    ended, other, own = make.ended().job, make.job(by="ben"), make.job(by="ada")

    errors = apply("cancel", [ended, other, own])

    assert "COMPLETED" in errors[ended.pk] and "another user" in errors[other.pk] and errors[own.pk] == ""
    assert list(Job.objects.filter(state=State.CANCELLED)) == [own]


def test_operator_holds_own_jobs_as_owner_and_those_of_others_as_operator():
    own, other = make.job(by="olga"), make.job(by="ada")

    apply("hold", [own, other], name="olga")

    assert dict(Job.objects.values_list("pk", "hold")) == {own.pk: HoldKind.USER, other.pk: HoldKind.ADMIN}


def test_dry_run_changes_nothing():
    waiting, running = make.job(), make.running(make.job(gpus_per_node=1)).job
    events = Event.objects.count()

    errors = apply("cancel", [waiting, running], dry=True)

    assert set(errors.values()) == {""} and Event.objects.count() == events
    assert not ClusterCommand.objects.filter(kind="cancel").exists()
