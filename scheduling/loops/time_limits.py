"""Enforce time limits that the cluster does not enforce, deadlines, and the limit of the wait for recovery.

Eligible rows     Running attempts that exceed their time limit by more than `TIME_LIMIT_SLACK` by the cluster's clock
                  and by ours, and are not being stopped. Not attempts that the cluster does not show: they may have
                  ended by themselves, and `outcomes` finds out how. Jobs that asked to be cancelled at their deadline:
                  live ones after it, waiting ones as soon as their time limit no longer fits before it. Jobs that have
                  waited too long for recovery, because its loop is down or did not finish.
What a turn does  Queues a command that ends each attempt as TIMEOUT. A cluster that enforces limits has done so before.
                  Queues one that ends a live job as DEADLINE; a waiting one ends at once. A job that waited too long
                  for recovery gets its final state, as if there were no recovery.
Failure story     Each job is one guarded, repeatable action. Killed anywhere: the next turn continues.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import DateTimeField, DurationField, Exists, ExpressionWrapper, F, OuterRef, Q, Value
from django.db.models.functions import Coalesce

from jobs.actions import jobs as job_actions
from jobs.actions import recovery as recovery_actions
from jobs.actions import stop
from jobs.actions.journal import SCHEDULER
from jobs.actions.one_row import skip_row_on_error
from jobs.core.deadlines import DeadlineAction
from jobs.core.lifecycle import LIVE_STATES, Flag, State
from jobs.core.slurm_notation import format_duration
from jobs.models import Attempt, Cluster, ClusterMode, Job

# Slurm rounds limits up to whole minutes, checks twice a minute and grants a grace time
TIME_LIMIT_SLACK = timedelta(minutes=3)
TIME = DateTimeField()


def enforce_time_limits_once(cluster: Cluster, now: datetime) -> int:
    """Return how many attempts are being ended."""
    if cluster.mode != ClusterMode.DRIVE:
        return 0
    stopped = 0
    # Query one table first: a join over all running attempts may get a bad plan, and nearly always finds nothing
    over = Job.objects.live().filter(
        cluster=cluster, foreign_id="", started_at__lt=now - F("time_limit") - TIME_LIMIT_SLACK
    )
    running = Attempt.objects.filter(
        job__in=list(over), ended_at__isnull=True, confirmed_at__isnull=False, stop_state="", missing_since__isnull=True
    )
    # The cluster's clock may be wrong, so the time since we first saw the attempt running must exceed the limit too
    seen = running.alias(since=Coalesce("seen_running_at", "confirmed_at"))
    running = seen.filter(since__lt=now - F("job__time_limit") - TIME_LIMIT_SLACK)
    for attempt in running.select_related("job__cluster").order_by("id"):
        with skip_row_on_error(attempt):
            why = f"The job reached its time limit of {format_duration(attempt.job.time_limit)}."
            stop.enforce_time_limit(attempt.job, author=SCHEDULER, why=why)
            stopped += 1
    _end_overdue_recoveries(cluster, now)
    return stopped + _enforce_deadlines(cluster, now)


def _enforce_deadlines(cluster: Cluster, now: datetime) -> int:
    """End the jobs that asked for it and miss their deadline. A job without a time limit may still meet it."""
    asked = Job.objects.filter(
        cluster=cluster, foreign_id="", deadline_at__isnull=False, deadline_action=DeadlineAction.CANCEL
    ).exclude(flags__contains=[Flag.OUTCOME_UNKNOWN])  # it may have succeeded
    limit = Coalesce(F("time_limit"), Value(timedelta(0)), output_field=DurationField())
    late = asked.filter(state=State.PENDING).alias(start_by=ExpressionWrapper(F("deadline_at") - limit, TIME))
    live_attempt = Attempt.objects.filter(job=OuterRef("pk"), ended_at__isnull=True)
    left_alone = live_attempt.filter(~Q(stop_state="") | Q(missing_since__isnull=False))
    live = asked.filter(state__in=LIVE_STATES, deadline_at__lt=now).exclude(Exists(left_alone))
    ended = 0
    for job in (*late.filter(start_by__lt=now).order_by("id"), *live.select_related("cluster").order_by("id")):
        with skip_row_on_error(job):
            job_actions.end_at_deadline(job, author=SCHEDULER, why=_missed_text(job, now))
            ended += 1
    return ended


def _missed_text(job: Job, now: datetime) -> str:
    assert job.deadline_at is not None
    if job.deadline_at <= now:
        return "Its deadline passed."
    return f"Its deadline is earlier than now plus its time limit of {format_duration(job.time_limit)}."


def _end_overdue_recoveries(cluster: Cluster, now: datetime) -> None:
    for attempt in recovery_actions.overdue_recoveries(cluster, now):
        with skip_row_on_error(attempt):
            recovery_actions.decline_recovery(attempt, author=SCHEDULER, why="Recovery did not finish in time.")
