"""Actions on many jobs in the background: batches, interruptions, and rights that end meanwhile."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import DatabaseError

from jobs.actions import jobs as job_actions
from jobs.actions.bulk import background
from jobs.actions.job_verbs import JOB_ACTIONS, JobActionRequest
from jobs.core.lifecycle import State
from jobs.models import BulkAction, BulkActionState, Event, Job, Membership, TeamRole, Token, clock
from jobs.models.permissions import Caller
from tests import make
from tests.statements import failing_statement

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def team():
    return make.team(ada=TeamRole.RESEARCHER)


def start(jobs, action="cancel", **caller):
    request = JobActionRequest(author=make.author("ada"), why="Too many.")
    keys = [job.pk for job in jobs]
    return background.start_bulk_action(JOB_ACTIONS[action], keys, request, Caller(user=make.user("ada"), **caller))


def run(batches=100, size=2):
    left = iter(range(batches))
    return background.run_bulk_actions_once(clock.now, lambda: next(left, None) is None, size)


def states():
    return list(Job.objects.order_by("id").values_list("state", flat=True))


def test_all_jobs_are_changed_in_batches_with_the_author_of_the_request():
    row = start(make.jobs(*[{}] * 5))

    assert run() == 3

    row.refresh_from_db()
    assert set(states()) == {State.CANCELLED}
    assert (row.state, row.succeeded, row.refused, row.remaining) == (BulkActionState.COMPLETED, 5, 0, 0)
    events = Event.objects.filter(type="job.state_changed").values_list("by", "request_id", "why")
    assert list(events) == [("ada", "req-1", "Too many.")] * 5


def test_a_small_action_does_not_wait_for_a_large_one():
    large, small = start(make.jobs(*[{}] * 6)), start(make.jobs({}, {}))

    run(batches=2)

    assert [row.position for row in (large, small) if row.refresh_from_db() is None] == [2, 2]
    assert small.state == BulkActionState.COMPLETED


def test_the_next_run_continues_where_an_interrupted_one_stopped():
    row = start(make.jobs(*[{}] * 5))

    run(batches=1)
    with failing_statement('INSERT INTO "jobs_event"', error=DatabaseError("gone")):
        run()
    assert states() == [State.CANCELLED] * 2 + [State.PENDING] * 3
    run()

    row.refresh_from_db()
    assert set(states()) == {State.CANCELLED} and (row.succeeded, row.refused) == (5, 0)
    assert Event.objects.filter(type="job.state_changed").count() == 5


def test_a_run_after_the_end_changes_nothing():
    start(make.jobs({}, {}))
    run()
    events = Event.objects.count()

    assert run() == 0 and Event.objects.count() == events


def test_jobs_that_others_have_changed_are_refused_and_the_others_are_done():
    first, last = make.jobs({}, {})
    row = start([first, last])
    job_actions.cancel(first, author=make.author("ada"))

    run()

    row.refresh_from_db()
    assert (row.state, row.succeeded, row.refused) == (BulkActionState.COMPLETED, 1, 1)
    assert row.errors == [
        {"id": first.public_id, "error": f"{first} is CANCELLED; cancel needs a waiting or running job"}
    ]


def test_a_role_that_was_removed_refuses_the_remaining_jobs():
    row = start(make.jobs(*[{}] * 3))
    run(batches=1)
    Membership.objects.update(role=TeamRole.VIEWER)

    run()

    row.refresh_from_db()
    assert (row.succeeded, row.refused) == (2, 1) and "viewers" in row.errors[0]["error"]


@pytest.mark.parametrize("end", ["revoke", "deactivate"])
def test_an_action_ends_with_the_rights_of_its_request(end):
    token = Token.objects.create(user=make.user("ada"), name="t", scope="submit", digest="d")
    row = start(make.jobs(*[{}] * 3), token=token)
    run(batches=1)
    if end == "revoke":
        Token.objects.update(revoked_at=clock.now() - timedelta(seconds=1))
    else:
        type(make.user("ada")).objects.filter(username="ada").update(is_active=False)

    run()

    row.refresh_from_db()
    assert row.state == BulkActionState.FAILED and row.error and row.remaining == 1
    assert states() == [State.CANCELLED] * 2 + [State.PENDING]


def test_a_database_error_of_one_action_does_not_stop_the_others():
    failing, other = start(make.jobs({})), start(make.jobs({}, {}, {}))

    with failing_statement('FROM "jobs_bulkaction"', "SKIP LOCKED", failing.pk, error=DatabaseError("gone")):
        run()
    assert states() == [State.PENDING] + [State.CANCELLED] * 3
    run()

    failing.refresh_from_db(), other.refresh_from_db()
    assert failing.state == other.state == BulkActionState.COMPLETED


def test_an_internal_error_ends_one_action_and_not_the_others():
    broken, other = start(make.jobs({})), start(make.jobs({}))
    BulkAction.objects.filter(pk=broken.pk).update(action="unknown")

    run()

    broken.refresh_from_db(), other.refresh_from_db()
    assert (broken.state, other.state) == (BulkActionState.FAILED, BulkActionState.COMPLETED)
    assert "Internal error" in broken.error
