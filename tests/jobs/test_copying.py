"""Rows by COPY are the rows that an INSERT would have made."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction
from django.forms.models import model_to_dict

from jobs import actions, clock, copying
from jobs.journal import Author
from jobs.models import Event, Job, Node, Team
from jobs.spec import parse
from tests.jobs import api_make as make

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


def submitted(count, monkeypatch=None):
    user, seren = make.person(), make.cluster()
    spec = parse(RICH, Node.objects.shape(seren))
    author = Author(by="ada", user_id=user.pk, source="10.0.0.7")
    return actions.submit([spec] * count, cluster=seren, team=make.team(), author=author, now=clock.now())


def shown(job):
    values = model_to_dict(Job.objects.get(pk=job.pk)) | {"flags": job.flags, "why": job.why, "state": job.state}
    event = model_to_dict(Event.objects.get(job=job))
    return {name: value for name, value in values.items() if name != "id"}, {
        name: value for name, value in event.items() if name not in ("id", "job", "at")
    }


def test_many_rows_are_kept_as_few_are():
    few, many = submitted(1)[0], submitted(copying.FEW)[-1]

    assert shown(few) == shown(many)
    assert Event.objects.get(job=many).at is not None


def test_the_keys_go_on_after_it():
    many = submitted(copying.FEW)

    one = make.job()

    assert one.pk > max(job.pk for job in many)
    assert len({job.pk for job in many}) == copying.FEW


def test_a_row_that_cannot_be_is_an_integrity_error():
    teams = [Team(name="same") for _ in range(copying.FEW)]

    with pytest.raises(IntegrityError), transaction.atomic():
        copying.insert(teams)

    assert not Team.objects.filter(name="same").exists()
