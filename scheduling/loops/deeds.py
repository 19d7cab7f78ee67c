"""Deeds in the hands of one worker: taken, settled, or put off. The number of tries is the fencing token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from django.db import connection, transaction
from django.db.models import F

from jobs.models import Cluster, Deed

# 32 over eight connections that give up after ten seconds are through before the claim is over
DEEDS_AT_ONCE = 32
DEED_CLAIM = timedelta(seconds=60)
SLOWEST_RETRY_S = 30


def claim(cluster: Cluster, now: datetime) -> list[Deed]:
    """Ours for a while: nobody else sees them as due. The try is counted before it is made."""
    with transaction.atomic():
        due = Deed.objects.due(now).filter(cluster=cluster).select_for_update(skip_locked=True)
        ids = list(due.values_list("pk", flat=True)[:DEEDS_AT_ONCE])
        Deed.objects.filter(pk__in=ids).update(tries=F("tries") + 1, due_at=now + DEED_CLAIM)
    return list(
        Deed.objects.filter(pk__in=ids)
        .select_related("attempt__job__user", "attempt__job__team", "node__cluster", "cluster")
        .order_by("id")
    )


def settle(deed: Deed, now: datetime, outcome: str) -> bool:
    return settle_all({deed: outcome}, now) == 1


def settle_all(outcomes: Mapping[Deed, str], now: datetime) -> int:
    """Only those that nobody took over meanwhile. Return how many that were."""
    if not outcomes:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE jobs_deed d SET done_at = %s, outcome = v.outcome"
            " FROM unnest(%s::bigint[], %s::int[], %s::text[]) v (id, tries, outcome)"
            " WHERE d.id = v.id AND d.tries = v.tries AND d.done_at IS NULL",
            [now, [deed.pk for deed in outcomes], [deed.tries for deed in outcomes], list(outcomes.values())],
        )
        settled: int = cursor.rowcount
    return settled


def put_off(deed: Deed, now: datetime, outcome: str, wait: timedelta | None = None) -> None:
    wait = wait or timedelta(seconds=min(2 ** min(deed.tries, 10), SLOWEST_RETRY_S))
    Deed.objects.open().filter(pk=deed.pk, tries=deed.tries).update(due_at=now + wait, outcome=outcome)


def put_off_all(deeds: Sequence[Deed], now: datetime, outcome: str) -> None:
    for deed in deeds:
        put_off(deed, now, outcome)
