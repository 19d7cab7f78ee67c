"""Old rows are deleted in separate batches until the time of a run is over."""

from datetime import timedelta

import pytest
from django.contrib.sessions.models import Session
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.actions.retention import DELETE_BATCH_SIZE, DeleteDeadline, delete_all, delete_batch, delete_expired_web_state
from jobs.models import BulkAction, ClusterMinute, IdempotencyKey
from jobs.models.idempotency import KEY_LIFETIME
from scheduling.ledger.loops.cluster_minutes import delete_old_minutes
from tests import make

NOW = make.NOON


@pytest.fixture
def minutes(db):
    """Ten rows in chronological order."""
    cluster = make.cluster(nodes=0)
    zero = dict.fromkeys(("gpus", "allocated", "closed", "running", "waiting", "requested"), 0)
    rows = [ClusterMinute(cluster=cluster, at=NOW - timedelta(days=90, minutes=n), **zero) for n in range(10)]
    ClusterMinute.objects.bulk_create(rows)
    return ClusterMinute.objects.all()


def after(batches):
    """Return a deadline that is over after this many batches."""
    ticks = iter(range(1000))
    return DeleteDeadline(seconds=batches, monotonic=lambda: next(ticks))


def test_all_rows_are_deleted_in_batches(minutes):
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert delete_all(minutes, after(100), size=4) == 10

    assert sum(query["sql"].startswith("DELETE") for query in queries) == 3
    assert not ClusterMinute.objects.exists()


def test_run_that_exceeds_its_time_keeps_its_deletions_and_the_next_run_continues(minutes):
    assert delete_all(minutes, after(1), size=4) == 4
    assert ClusterMinute.objects.count() == 6

    assert delete_all(minutes, after(100), size=4) == 6


def test_every_table_gets_at_least_one_batch(minutes):
    assert delete_all(minutes, after(0), size=4) == 4


def test_batch_has_at_most_the_requested_size(minutes):
    assert delete_batch(minutes, 3) == 3
    assert ClusterMinute.objects.count() == 7


def test_rows_outside_the_query_are_not_deleted(minutes):
    newest = ClusterMinute.objects.order_by("-at").first()

    delete_all(ClusterMinute.objects.exclude(pk=newest.pk), after(100), size=4)

    assert list(ClusterMinute.objects.all()) == [newest]


def test_each_batch_is_a_separate_transaction(transactional_db):
    user = make.user("ada")
    old = [IdempotencyKey(user=user, key=str(n), digest="", status=200, body="") for n in range(6)]
    IdempotencyKey.objects.bulk_create(old)
    clock = iter([0, RuntimeError("cut off")])

    def monotonic():
        if isinstance(tick := next(clock), Exception):
            raise tick
        return tick

    with pytest.raises(RuntimeError):
        delete_all(IdempotencyKey.objects.all(), DeleteDeadline(monotonic=monotonic), size=4)

    assert IdempotencyKey.objects.count() == 2


def test_expired_sessions_and_old_responses_are_deleted(db):
    user = make.user("ada")
    for name, days in (("old", -1), ("new", 1)):
        Session.objects.create(session_key=name, session_data="", expire_date=NOW + timedelta(days=days))
        IdempotencyKey.objects.create(user=user, key=name, digest="", status=200, body="")
    IdempotencyKey.objects.filter(key="old").update(created_at=NOW - KEY_LIFETIME - timedelta(hours=1))
    IdempotencyKey.objects.filter(key="new").update(created_at=NOW)

    for name, days in (("old", 31), ("new", 1)):
        ended_at = NOW - timedelta(days=days)
        BulkAction.objects.create(user=user, action="hold", why=name, job_keys=[], matched=0, ended_at=ended_at)

    assert delete_expired_web_state(NOW) == 3

    assert [row.why for row in BulkAction.objects.all()] == ["new"]
    assert [row.session_key for row in Session.objects.all()] == ["new"]
    assert [row.key for row in IdempotencyKey.objects.all()] == ["new"]


def test_old_minutes_are_deleted_in_batches(minutes, django_assert_max_num_queries):
    assert DELETE_BATCH_SIZE == 5_000
    assert delete_old_minutes(NOW) == 10
