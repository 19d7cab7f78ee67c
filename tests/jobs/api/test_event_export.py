"""The export of all Events: lines of JSON, keyset paging, permissions, and open transactions."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from io import StringIO

import psycopg
import pytest
from django.contrib.auth.models import Permission
from django.core.management import CommandError, call_command
from django.db import connection

from jobs.models import Event, TokenScope
from jobs.queries import event_export
from tests import make
from tests.jobs.api.api_make import Caller

pytestmark = pytest.mark.django_db


@pytest.fixture
def auditor():
    user = make.user("olga")
    user.user_permissions.add(Permission.objects.get(codename="view_event"))
    return Caller(user)


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def export(caller, **query):
    answer = caller.get("events/export/", query)
    assert answer.status_code == 200 and answer.headers["Content-Type"] == "application/x-ndjson"
    return lines(answer.getvalue().decode())


def add_events(count):
    return [Event.objects.create(type="x", by=str(number)).pk for number in range(count)]


def test_events_are_exported_oldest_first_with_their_names(auditor):
    job = make.running(make.job(gpus_per_node=1)).job

    exported = export(auditor)

    assert [row["type"] for row in exported] == ["job.submitted", "job.state_changed", "job.started"]
    assert exported[-1]["job"] == job.public_id and exported[-1]["cluster"] == "seren"
    assert exported[-1]["attempt"] == f"{job.public_id}.1" and exported[-1]["at"].endswith("Z")


def test_reader_continues_after_the_last_id(auditor):
    ids = add_events(5)

    first = export(auditor, limit=2)
    rest = export(auditor, after=first[-1]["id"])

    assert [row["id"] for row in first + rest] == ids


def test_export_takes_a_query_for_each_chunk(django_assert_num_queries):
    ids = add_events(5)

    with django_assert_num_queries(5):  # open transactions, three chunks, the end
        chunks = list(event_export.exported_lines(chunk_rows=2))

    assert [row["id"] for chunk in chunks for row in lines(chunk)] == ids and len(chunks) == 3


def test_since_limits_the_time(auditor):
    Event.objects.create(type="x", by="0", at=datetime(2026, 1, 1, tzinfo=UTC))
    [new] = add_events(1)

    assert [row["id"] for row in export(auditor, since="2026-01-02T00:00:00Z")] == [new]


@pytest.mark.parametrize("query", [{"after": "x"}, {"limit": "0"}, {"since": "yesterday"}, {"until": "1"}])
def test_invalid_parameters_are_refused(auditor, query):
    answer = auditor.get("events/export/", query)

    assert answer.status_code == 400 and list(answer.json()) == list(query)


def test_export_needs_the_scope_the_permission_and_no_team(auditor):
    team = make.team("vision", olga="admin")
    callers = [Caller(make.user("ada")), Caller(auditor.user, TokenScope.OPERATE), Caller(auditor.user, team=team)]

    assert {caller.get("events/export/").status_code for caller in callers} == {403}


def test_command_writes_the_same_lines(auditor):
    ids, out = add_events(3), StringIO()

    call_command("export_events", after=ids[0], stdout=out)

    assert lines(out.getvalue()) == export(auditor, after=ids[0])
    with pytest.raises(CommandError, match="since"):
        call_command("export_events", since="yesterday")


@pytest.mark.django_db(transaction=True)
def test_export_ends_before_the_oldest_transaction_that_is_still_writing():
    [before] = add_events(1)
    parameters = connection.get_connection_params()
    names = ("host", "port", "user", "password", "dbname")
    with psycopg.connect(**{name: parameters[name] for name in names if parameters.get(name)}) as other:
        other.execute(
            "INSERT INTO jobs_event (type, by, request_id, from_state, to_state, why, detail)"
            " VALUES ('late', 'x', '', '', '', '', '{}')"
        )
        [after] = add_events(1)
        early = [row["id"] for chunk in event_export.exported_lines() for row in lines(chunk)]
        other.commit()
    late = [row["id"] for chunk in event_export.exported_lines(early[-1]) for row in lines(chunk)]

    assert early == [before] and len(late) == 2 and late[-1] == after
