"""Deeds in the hands of one worker: taken, settled, or put off. The number of tries is the fencing token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from django.db import connection, transaction
from django.db.models import F, Value
from django.db.models.functions import Least

from jobs.models import Cluster, ClusterCommandKind, Deed

# 32 over eight connections that give up after ten seconds are through before the claim is over
COMMANDS_PER_CLAIM = 32
COMMAND_CLAIM_TIME = timedelta(seconds=60)
MAX_RETRY_DELAY_S = 30
LATE_ARRIVAL_WINDOW = timedelta(seconds=10)  # as long as a caller who is alive would have waited for the answer
JOB_CREATING_KINDS = (ClusterCommandKind.SUBMIT, ClusterCommandKind.TEST)


def claim(cluster: Cluster, now: datetime) -> list[Deed]:
    """Ours for a while: nobody else sees them as due. The try is counted before it is made."""
    with transaction.atomic():
        due = Deed.objects.due(now).filter(cluster=cluster).select_for_update(skip_locked=True)
        ids = list(due.values_list("pk", flat=True)[:COMMANDS_PER_CLAIM])
        Deed.objects.filter(pk__in=ids).update(tries=F("tries") + 1, due_at=now + COMMAND_CLAIM_TIME, in_hand=True)
    return list(
        Deed.objects.filter(pk__in=ids)
        .select_related("attempt__job__user", "attempt__job__team", "node__cluster", "cluster")
        .order_by("id")
    )


def release_claims(cluster_id: int, now: datetime) -> None:
    """Take them out of the hands of a dead worker. What he sent in his last moment may still be on its way, and would
    not be found by its key yet; so jobs wait a little, and what may be done twice is done at once."""
    dropped = Deed.objects.open().filter(cluster=cluster_id, in_hand=True)
    dropped.filter(kind__in=JOB_CREATING_KINDS).update(
        in_hand=False, due_at=Least(F("due_at"), Value(now + LATE_ARRIVAL_WINDOW))
    )
    dropped.update(in_hand=False, due_at=now)


def settle_command(deed: Deed, now: datetime, outcome: str) -> bool:
    return settle_commands({deed: outcome}, now) == 1


def settle_commands(outcomes: Mapping[Deed, str], now: datetime) -> int:
    """Only those that nobody took over meanwhile. Return how many that were."""
    if not outcomes:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE jobs_deed d SET done_at = %s, in_hand = false, outcome = v.outcome"
            " FROM unnest(%s::bigint[], %s::int[], %s::text[]) v (id, tries, outcome)"
            " WHERE d.id = v.id AND d.tries = v.tries AND d.done_at IS NULL",
            [now, [deed.pk for deed in outcomes], [deed.tries for deed in outcomes], list(outcomes.values())],
        )
        settled: int = cursor.rowcount
    return settled


def postpone_command(
    deed: Deed, now: datetime, outcome: str, wait: timedelta | None = None, *, sent_nothing: bool = False
) -> None:
    """`sent_nothing`: the cluster has surely not heard of this try."""
    wait = wait or timedelta(seconds=min(2 ** min(deed.tries, 10), MAX_RETRY_DELAY_S))
    without = deed.tries if sent_nothing and not may_have_been_sent(deed) else deed.tries_without_effect
    Deed.objects.open().filter(pk=deed.pk, tries=deed.tries).update(
        due_at=now + wait, in_hand=False, outcome=outcome, tries_without_effect=without
    )


def may_have_been_sent(deed: Deed) -> bool:
    """Before the try at hand, which is counted already."""
    return deed.tries - deed.tries_without_effect > 1


def postpone_commands(deeds: Sequence[Deed], now: datetime, outcome: str) -> None:
    for deed in deeds:
        postpone_command(deed, now, outcome, sent_nothing=True)
