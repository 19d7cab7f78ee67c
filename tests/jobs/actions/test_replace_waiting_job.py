"""Replacing a waiting job by a changed copy: both happen or neither."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs.actions import jobs as job_actions
from jobs.core.lifecycle import State
from jobs.models import Dependency, Job, TeamRole
from tests import make

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada():
    make.team("pretraining", ada=TeamRole.RESEARCHER, eve=TeamRole.ADMIN)
    return make.browser("ada")


def apply(client, job, **changes):
    answer = client.post(f"/jobs/{job}/resubmit/", changes, follow=True)
    assert answer.status_code == 200
    job.refresh_from_db()
    return answer.content.decode()


def make_job(**fields):
    wanted = {"name": "train", "nodes": 2, "gpus_per_node": 8, "command": "torchrun train.py", "memory_per_node": "64G"}
    return make.job(by="ada", **(wanted | fields))


def test_the_copy_differs_only_in_the_changed_fields(ada):
    job = make_job(environment={"HF_TOKEN": "secret"}, time_limit="4:00:00", labels={"run": "a"}, begin_at=None)

    apply(ada, job, nodes="1", time_limit="02:00:00")

    copy = Job.objects.exclude(pk=job.pk).get()
    changed = {"id", "public_id", "submitted_at", "state", "ended_at", "why", "reason", "updated_at", "version"}
    names = {field.attname for field in Job._meta.concrete_fields} - changed
    differences = {name: getattr(copy, name) for name in names if getattr(job, name) != getattr(copy, name)}
    assert differences == {"nodes": 1, "time_limit": timedelta(hours=2)}
    assert (job.state, copy.state) == (State.CANCELLED, State.PENDING)
    assert job.why == f"Resubmitted as {copy.public_id} with nodes 1, time_limit 02:00:00."


def test_dependencies_in_both_directions_move_to_the_copy(ada):
    first = make_job(name="first")
    job = make_job(dependencies=f"afterok:{first}")
    last = make_job(dependencies=f"afterany:{job}")

    apply(ada, job, nodes="1")

    copy = Job.objects.exclude(pk__in=[first.pk, job.pk, last.pk]).get()
    assert list(Dependency.objects.filter(job=copy).values_list("on", "after")) == [(first.pk, "afterok")]
    assert list(Dependency.objects.filter(job=last).values_list("on", "after")) == [(copy.pk, "afterany")]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"nodes": "900"}, "nodes"), ({"nodes": "x"}, "nodes"), ({"time_limit": "soon"}, "time_limit")],
)
def test_an_invalid_change_leaves_the_job_waiting(ada, changes, sentence):
    job = make_job()

    assert f"Nothing was changed: {sentence}" in apply(ada, job, **changes)
    assert (job.state, Job.objects.count()) == (State.PENDING, 1)


def test_only_the_owner_may_replace_a_job(ada):
    job = make_job()

    assert "must be your own job" in apply(make.browser("eve"), job, nodes="1")
    assert (job.state, Job.objects.count()) == (State.PENDING, 1)


def test_a_job_that_started_or_was_held_is_not_replaced(ada):
    started, held = make_job(), make_job()
    make.running(started)
    job_actions.hold(held, author=make.author("ada"))

    for job in (started, held):
        assert "Conflict, nothing was changed" in apply(ada, job, nodes="1")
    assert Job.objects.count() == 2


def test_the_second_of_two_requests_changes_nothing(ada):
    job = make_job()

    apply(ada, job, nodes="1")
    assert "Conflict, nothing was changed" in apply(ada, job, nodes="1")

    assert Job.objects.count() == 2


def test_the_form_shows_a_suggested_change(ada):
    job = make_job()

    page = ada.get("/jobs/new/", {"from": str(job), "nodes": "1"}).content.decode()

    assert 'name="nodes" value="1"' in page
