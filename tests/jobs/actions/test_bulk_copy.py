"""Rows written with COPY equal rows written with INSERT."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction

from jobs.actions import jobs as job_actions
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.core.lifecycle import State
from jobs.core.spec import parse
from jobs.models import Event, Job, Node, Sample, Team, bulk_copy, clock
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
GPU_COLUMNS = ("gpu_util", "gpu_memory_mib", "gpu_temperature_c", "gpu_power_w", "xid")


def submitted(count):
    user, seren = make.person(), make.cluster()
    spec = parse(RICH, Node.objects.shape(seren))
    author = Author(by="ada", user_id=user.pk, source="10.0.0.7")
    return job_actions.submit([spec] * count, cluster=seren, team=make.team(), author=author, now=clock.now())


def stored_row(row, *but):
    """Return all columns as stored in the database."""
    values = type(row).objects.filter(pk=row.pk).values().get()
    return {name: value for name, value in values.items() if name not in ("id", *but)}


def test_copied_row_equals_a_saved_row():
    copied = submitted(1)[0]

    saved = Job.objects.get(pk=copied.pk)
    saved.pk, saved.public_id, saved._state.adding = None, "another", True
    saved.save()

    assert stored_row(copied, "public_id") == stored_row(saved, "public_id")
    assert saved.environment == RICH["environment"] and saved.name == RICH["name"]


def test_bulk_event_of_a_new_job_equals_a_saved_event():
    job = submitted(MANY)[-1]
    author = Author(by="ada", user_id=job.user_id, source="10.0.0.7")

    saved = journal.job_event("job.submitted", author, job, to_state=State.PENDING)
    saved.save()

    written = Event.objects.exclude(pk=saved.pk).get(job=job)
    assert stored_row(written, "at") == stored_row(saved, "at")


def test_sequence_continues_after_a_copy():
    many = submitted(MANY)

    one = make.job()

    assert one.pk > max(job.pk for job in many)
    assert len({job.pk for job in many}) == MANY


def test_copied_rows_do_not_share_mutable_defaults():
    one, other = submitted(2)

    one.flags.append("REQUEUED")
    one.resume["step"] = 7

    assert (other.flags, other.resume) == ([], {})


def test_invalid_copied_row_raises_integrity_error():
    teams = [Team(name="same") for _ in range(2)]

    with pytest.raises(IntegrityError), transaction.atomic():
        bulk_copy.insert(teams)

    assert not Team.objects.filter(name="same").exists()


def test_columns_that_are_not_copied_get_the_defaults_of_the_database():
    node, at = Node.objects.filter(cluster=make.cluster()).first(), clock.now()
    columns = ["node_id", "resolution", "at", *GPU_COLUMNS]

    bulk_copy.insert_values(Sample, columns, [(node.pk, 300, at, [1.5, None], [], [], [], [])])

    row = Sample.objects.get()
    assert (row.node, row.at, row.gpu_util, row.node_power_w, row.counted) == (node, at, [1.5, None], None, {})


def test_row_like_a_template_is_a_row_of_its_own():
    template = Team(name="first", title="Title")

    rows = [bulk_copy.row_like(template, name=name) for name in ("second", "third")]
    bulk_copy.insert(rows)

    assert list(Team.objects.order_by("pk").values_list("name", "title")) == [("second", "Title"), ("third", "Title")]
    assert template.pk is None
    assert template._state.adding
