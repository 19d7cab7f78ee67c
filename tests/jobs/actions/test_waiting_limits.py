"""Limits on waiting jobs, in the API, in batches, and in the form."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from django.db import connection
from django.test import Client

from jobs.actions.waiting import limits as waiting_limits
from jobs.api import submit_batch
from jobs.api.submit_batch import BatchSubmission
from jobs.core.lifecycle import State
from jobs.models import Job, TeamRole, clock
from jobs.models.permissions import Caller
from tests import make
from tests.jobs.api import api_make

pytestmark = pytest.mark.django_db

YOU_HAVE = "you have 3 waiting jobs; 1 more would exceed the limit of 3"


@pytest.fixture(autouse=True)
def limits(settings):
    settings.ACME_MAX_WAITING_PER_USER, settings.ACME_MAX_WAITING_PER_TEAM = 3, 5
    make.cluster()
    make.team("vision", ada=TeamRole.RESEARCHER, ben=TeamRole.RESEARCHER)


@pytest.fixture
def ada():
    return api_make.Caller(make.user("ada"))


def fill(name="ada", count=3):
    return make.jobs(*[{}] * count, by=name)


def test_submission_beyond_the_limit_of_the_user_is_refused_with_a_sentence(ada):
    fill()

    answer = ada.post("jobs/", {"command": "x"})

    assert (answer.status_code, answer.json()) == (400, {"user": [YOU_HAVE]})
    assert Job.objects.count() == 3


def test_array_tasks_count(ada):
    refused, accepted = (ada.post("jobs/", {"command": "x", "array": f"1-{tasks}"}) for tasks in (4, 3))

    assert refused.json() == {"user": ["you have 0 waiting jobs; 4 more would exceed the limit of 3"]}
    assert accepted.status_code == 201


def test_limit_of_the_team_counts_the_jobs_of_all_members(ada):
    fill("ben")

    answer = ada.post("jobs/bulk/", {"jobs": [{"command": "x"}] * 3})

    assert answer.json() == {"team": ["vision has 3 waiting jobs; 3 more would exceed the limit of 5"]}


def test_ended_and_running_jobs_do_not_count(ada):
    first, second, _ = fill()
    Job.objects.filter(pk=first.pk).update(state=State.COMPLETED)
    Job.objects.filter(pk=second.pk).update(state=State.RUNNING)

    assert ada.post("jobs/bulk/", {"jobs": [{"command": "x"}] * 2}).status_code == 201


def test_limit_0_means_none(ada, settings):
    settings.ACME_MAX_WAITING_PER_USER = settings.ACME_MAX_WAITING_PER_TEAM = 0
    fill()

    assert ada.post("jobs/", {"command": "x"}).status_code == 201


def test_form_shows_the_same_sentence():
    fill()
    client = Client()
    client.force_login(make.user("ada"))
    fields = {"command": "x", "nodes": "1", "gpus_per_node": "1", "kind": "other", "cpus_per_node": "1"}
    fields |= {"team": make.team("vision").pk, "cluster": make.cluster().pk, "time_limit": "10"}

    page = client.post("/jobs/new/", fields)

    assert page.status_code == 422 and YOU_HAVE in page.content.decode()


def test_batch_leaves_out_only_the_submissions_beyond_a_limit():
    fill(count=2)

    def asked(name):
        caller = Caller(user=make.user(name))
        return BatchSubmission(caller=caller, author=make.author(name), job={"command": "x"}, address="/")

    replies = submit_batch.submit_jobs_together(
        {n: asked(by) for n, by in enumerate(("ada", "ada", "ben"))}, clock.now()
    )

    assert sorted(replies) == [0, 2]


def test_large_requests_of_a_user_count_each_other():
    group = SimpleNamespace(
        specs=[SimpleNamespace(array=range(waiting_limits.LARGE_REQUEST + 1))],
        author=make.author("ada"),
        team=make.team("vision"),
    )

    with pytest.raises(waiting_limits.InvalidField):
        waiting_limits.refuse_too_many_waiting(group)

    with connection.cursor() as cursor:
        cursor.execute("SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
        assert {key for (key,) in cursor.fetchall()} == {group.author.user_id, group.team.pk}
