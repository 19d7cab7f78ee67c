"""Claims of cluster commands by a worker: claim, settle, postpone. The number of tries is the fencing token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from django.db import connection, transaction
from django.db.models import F, Value
from django.db.models.functions import Least

from jobs.models import Cluster, ClusterCommand, ClusterCommandKind

# 32 commands over eight connections, with a timeout of ten seconds each, finish before the claim expires
COMMANDS_PER_CLAIM = 32
COMMAND_CLAIM_TIME = timedelta(seconds=60)
MAX_RETRY_DELAY_S = 30
LATE_ARRIVAL_WINDOW = timedelta(seconds=10)  # as long as a live caller would have waited for the response
JOB_CREATING_KINDS = (ClusterCommandKind.SUBMIT, ClusterCommandKind.TEST)


def claim(cluster: Cluster, now: datetime) -> list[ClusterCommand]:
    """Claim due commands for this worker. The try is counted before it is made."""
    with transaction.atomic():
        due = ClusterCommand.objects.due(now).filter(cluster=cluster).select_for_update(skip_locked=True)
        ids = list(due.values_list("pk", flat=True)[:COMMANDS_PER_CLAIM])
        ClusterCommand.objects.filter(pk__in=ids).update(
            tries=F("tries") + 1, due_at=now + COMMAND_CLAIM_TIME, is_being_sent=True
        )
    return list(
        ClusterCommand.objects.filter(pk__in=ids)
        .select_related("attempt__job__user", "attempt__job__team", "node__cluster", "cluster")
        .order_by("id")
    )


def release_claims(cluster_id: int, now: datetime) -> None:
    """Release the commands claimed by a dead worker. A job that it submitted just before may not be visible on the
    cluster yet, so commands that create jobs wait a little; all others are idempotent and due at once."""
    dropped = ClusterCommand.objects.open().filter(cluster=cluster_id, is_being_sent=True)
    dropped.filter(kind__in=JOB_CREATING_KINDS).update(
        is_being_sent=False, due_at=Least(F("due_at"), Value(now + LATE_ARRIVAL_WINDOW))
    )
    dropped.update(is_being_sent=False, due_at=now)


def settle_command(command: ClusterCommand, now: datetime, outcome: str) -> bool:
    return settle_commands({command: outcome}, now) == 1


def settle_commands(outcomes: Mapping[ClusterCommand, str], now: datetime) -> int:
    """Settle the commands that no other worker has claimed since. Return their number."""
    if not outcomes:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE jobs_clustercommand d SET done_at = %s, is_being_sent = false, outcome = v.outcome"
            " FROM unnest(%s::bigint[], %s::int[], %s::text[]) v (id, tries, outcome)"
            " WHERE d.id = v.id AND d.tries = v.tries AND d.done_at IS NULL",
            [
                now,
                [command.pk for command in outcomes],
                [command.tries for command in outcomes],
                list(outcomes.values()),
            ],
        )
        settled: int = cursor.rowcount
    return settled


def postpone_command(
    command: ClusterCommand, now: datetime, outcome: str, wait: timedelta | None = None, *, sent_nothing: bool = False
) -> None:
    """Postpone the command. `sent_nothing`: this try has certainly not reached the cluster."""
    wait = wait or timedelta(seconds=min(2 ** min(command.tries, 10), MAX_RETRY_DELAY_S))
    without = command.tries if sent_nothing and not may_have_been_sent(command) else command.tries_without_effect
    ClusterCommand.objects.open().filter(pk=command.pk, tries=command.tries).update(
        due_at=now + wait, is_being_sent=False, outcome=outcome, tries_without_effect=without
    )


def may_have_been_sent(command: ClusterCommand) -> bool:
    """Whether an earlier try may have reached the cluster. The current try is already counted."""
    return command.tries - command.tries_without_effect > 1


def postpone_commands(commands: Sequence[ClusterCommand], now: datetime, outcome: str) -> None:
    for command in commands:
        postpone_command(command, now, outcome, sent_nothing=True)
