"""Rows by COPY are the rows that an INSERT would have made."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction

from jobs.actions import jobs as job_actions
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.core.lifecycle import State
from jobs.core.spec import parse
from jobs.models import Event, Job, Node, Team, bulk_copy, clock
from tests.jobs.api import api_make as make

pytestmark = pytest.mark.django_db

RICH = {
    "command": 'a\tb\nc\\N\\.\n"d"\',{}',
    "name": "Ünï\\N",
    "environment": {"A": "\\N\t\n"},
    "labels": {"l": "x"},
    "time_limit": 90061,
    "begin_at": "2030-01-01T00:00:00+02:00",
    "priority": -3,
    "preemptible": True,
    "array": "7",
}


MANY = 60


def submitted(count):
    user, seren = make.person(), make.cluster()
    spec = parse(RICH, Node.objects.shape(seren))
    author = Author(by="ada", user_id=user.pk, source="10.0.0.7")
    return job_actions.submit([spec] * count, cluster=seren, team=make.team(), author=author, now=clock.now())


def kept(row, *but):
    """All of its columns, as the database has them."""
    values = type(row).objects.filter(pk=row.pk).values().get()
    return {name: value for name, value in values.items() if name not in ("id", *but)}


def test_a_row_by_copy_is_the_row_that_saving_would_have_made():
    copied = submitted(1)[0]

    saved = Job.objects.get(pk=copied.pk)
    saved.pk, saved.public_id, saved._state.adding = None, "another", True
    saved.save()

    assert kept(copied, "public_id") == kept(saved, "public_id")
    assert saved.environment == RICH["environment"] and saved.name == RICH["name"]


def test_the_event_of_each_new_job_is_the_one_that_saving_would_have_made():
    job = submitted(MANY)[-1]
    author = Author(by="ada", user_id=job.user_id, source="10.0.0.7")

    saved = journal.job_event("job.submitted", author, job, to_state=State.PENDING)
    saved.save()

    written = Event.objects.exclude(pk=saved.pk).get(job=job)
    assert kept(written, "at") == kept(saved, "at")


def test_the_keys_go_on_after_it():
    many = submitted(MANY)

    one = make.job()

    assert one.pk > max(job.pk for job in many)
    assert len({job.pk for job in many}) == MANY


def test_no_two_rows_share_what_belongs_to_one():
    one, other = submitted(2)

    one.flags.append("REQUEUED")
    one.resume["step"] = 7

    assert (other.flags, other.resume) == ([], {})


def test_a_row_that_cannot_be_is_an_integrity_error():
    teams = [Team(name="same") for _ in range(2)]

    with pytest.raises(IntegrityError), transaction.atomic():
        bulk_copy.insert(teams)

    assert not Team.objects.filter(name="same").exists()
