"""Limits: end what runs longer than it may, where its cluster does not, and what waits for recovery for too long.

Who is eligible   running attempts of ours, past their time limit by more than `SLACK`, by the cluster's clock and by
                  ours; none that is being stopped already.
                  Jobs whose wait for recovery is over: its loop is away, or came to no end.
What a turn does  each is asked to end as TIMEOUT, by a deed. A cluster that keeps limits itself has long done so.
                  A job that waited too long becomes what its end says, as if there were no recovery.
Failure story     One guarded verb a job, repeatable: killed anywhere, the next turn finds who is still over.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import F
from django.db.models.functions import Coalesce

from jobs.actions import recovery as recovery_actions
from jobs.actions import stop
from jobs.actions.journal import SCHEDULER
from jobs.actions.one_row import skip_row_on_error
from jobs.core.slurm_notation import format_duration
from jobs.models import Attempt, Cluster, ClusterMode, Job

# Slurm rounds limits up to whole minutes, looks twice a minute and lets a job end in peace
TIME_LIMIT_SLACK = timedelta(minutes=3)


def enforce_time_limits_once(cluster: Cluster, now: datetime) -> int:
    """Return how many were asked to end."""
    if cluster.mode != ClusterMode.DRIVE:
        return 0
    asked = 0
    # Who is over is asked of one table: a join of all who run may be planned badly, and nearly always finds nobody
    over = Job.objects.live().filter(
        cluster=cluster, foreign_id="", started_at__lt=now - F("time_limit") - TIME_LIMIT_SLACK
    )
    running = Attempt.objects.filter(job__in=list(over), ended_at__isnull=True, confirmed_at__isnull=False, stop_as="")
    # The cluster's clock may be wrong, so the time since we first saw it running must be over as well
    seen = running.alias(since=Coalesce("seen_running_at", "confirmed_at"))
    running = seen.filter(since__lt=now - F("job__time_limit") - TIME_LIMIT_SLACK)
    for attempt in running.select_related("job__cluster").order_by("id"):
        with skip_row_on_error(attempt):
            why = f"It reached its time limit of {format_duration(attempt.job.time_limit)}."
            stop.enforce_time_limit(attempt.job, author=SCHEDULER, why=why)
            asked += 1
    _end_overdue_recoveries(cluster, now)
    return asked


def _end_overdue_recoveries(cluster: Cluster, now: datetime) -> None:
    for attempt in recovery_actions.overdue_recoveries(cluster, now):
        with skip_row_on_error(attempt):
            recovery_actions.decline_recovery(attempt, author=SCHEDULER, why="Recovery came to no end in time.")
