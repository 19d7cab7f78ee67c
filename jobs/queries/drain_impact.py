"""Predicts the effect of a drain or a maintenance on running and waiting jobs, before it is confirmed. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Q, Sum

from jobs.core.gpu_shares import gpu_number
from jobs.core.slurm_notation import format_count
from jobs.models import Attempt, DrainMode, Job, Node
from jobs.models.job import CHARGED_MILLI

HOUR = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class AffectedJob:
    """A job on the nodes. `at_risk` are the GPU-hours on all its nodes since its last checkpoint."""

    job: Job
    gpus: int  # on these nodes
    started_at: datetime | None
    saved_at: datetime | None
    at_risk: float
    slowdown: float  # of its GPU model

    @property
    def saves(self) -> bool:
        """Whether the job is expected to save another checkpoint."""
        return bool(self.saved_at or self.job.checkpoint_dir or self.job.checkpoint_interval)


def affected_jobs(nodes: Collection[Node], now: datetime) -> list[AffectedJob]:
    """Return the jobs on these nodes with one query. A job on several of the nodes is listed once."""
    here = Q(allocations__node__in=nodes, allocations__released_at__isnull=True)
    attempts = Attempt.objects.filter(here).annotate(required_node=Count("allocations__gpu"))
    rows = attempts.select_related("job__team", "job__user").order_by("job__public_id")
    return [_affected_job(attempt, now) for attempt in rows.defer("job__command", "job__environment")]


def _affected_job(attempt: Attempt, now: datetime) -> AffectedJob:
    started, saved_at = attempt.confirmed_at, attempt.saved_at
    # Work since the last checkpoint is lost on all nodes of the job, not only on the drained one
    at_risk = round(attempt.job.gpus * ((now - (saved_at or started)) / HOUR), 2) if saved_at or started else 0.0
    return AffectedJob(
        job=attempt.job,
        gpus=attempt.required_node,
        started_at=started,
        saved_at=saved_at,
        at_risk=at_risk,
        slowdown=attempt.slowdown,
    )


def drain_impact_text(jobs: Sequence[AffectedJob], mode: str) -> str:
    """Describe what the drain does to these jobs, and what it costs."""
    running = format_count(len(jobs), "running job")
    if not jobs:
        return "No new jobs; no job is running."
    if mode == DrainMode.FINISH:
        return f"No new jobs; {running} {'finishes' if len(jobs) == 1 else 'finish'}."
    ours = [affected for affected in jobs if not affected.job.is_foreign]
    foreign_count = len(jobs) - len(ours)
    foreign = (
        f" {format_count(foreign_count, 'job')} from outside Acme {'runs' if foreign_count == 1 else 'run'} on."
        if foreign_count
        else ""
    )
    if mode == DrainMode.CHECKPOINT:
        saving = sum(affected.saves for affected in ours)
        finishing = (
            f"; {len(ours) - saving} without checkpoints {'finishes' if len(ours) - saving == 1 else 'finish'}"
            if saving < len(ours)
            else ""
        )
        return f"No new jobs; {_jobs_are(saving)} requeued after the next checkpoint{finishing}.{foreign}"
    hours = sum(affected.at_risk for affected in ours)
    loss = f"up to {hours:.1f} GPU-hours since the last checkpoints are lost"
    return f"No new jobs; {_jobs_are(len(ours))} requeued now: {loss}.{foreign}"


@dataclass(frozen=True, kw_only=True)
class MaintenanceImpact:
    """The effect of a maintenance with the present jobs. Jobs that start until then are not included."""

    nodes: int
    gpus: int
    running: Sequence[AffectedJob]  # jobs that may still run when the maintenance starts
    over_before: int
    waiting: int  # waiting jobs that would not finish before the start
    waiting_gpus: float
    effect: str


def maintenance_impact(
    nodes: Collection[Node],
    *,
    start: datetime,
    end: datetime,
    mode: str,
    lead_time: timedelta,
    now: datetime,
    whole: bool,
) -> MaintenanceImpact:
    """Return the effect of a maintenance. Two queries."""
    running = affected_jobs(nodes, now)
    overlapping = [affected for affected in running if _may_run_until(affected, start)]
    limited, unlimited = Q(time_limit__gt=start - now), Q(time_limit=None)
    # Jobs without a time limit stop starting `lead_time` before the maintenance
    too_long = limited | unlimited if start - now <= lead_time else limited
    cluster = next(iter(nodes)).cluster_id if nodes else None
    waiting = Job.objects.waiting().filter(too_long, cluster=cluster, foreign_id="").order_by()
    totals = waiting.aggregate(jobs=Count("pk"), milli=Sum(CHARGED_MILLI))
    jobs, gpus = totals["jobs"], gpu_number(totals["milli"] or 0)
    return MaintenanceImpact(
        nodes=len(nodes),
        gpus=sum(node.gpus for node in nodes),
        running=overlapping,
        over_before=len(running) - len(overlapping),
        waiting=jobs,
        waiting_gpus=gpus,
        effect=" ".join(
            [
                _closing_text(nodes, start, end),
                _eviction_text(overlapping, mode),
                _waiting_text(jobs, gpus, whole=whole),
            ]
        ),
    )


def _may_run_until(affected: AffectedJob, start: datetime) -> bool:
    limit = affected.job.time_limit
    return limit is None or affected.started_at is None or affected.started_at + limit > start


def _closing_text(nodes: Collection[Node], start: datetime, end: datetime) -> str:
    gpus = sum(node.gpus for node in nodes)
    take = "takes" if len(nodes) == 1 else "take"
    return (
        f"{format_count(len(nodes), 'node')} with {format_count(gpus, 'GPU')} {take} no jobs"
        f" from {start:%d %b %Y %H:%M} until {end:%d %b %Y %H:%M} UTC."
    )


def _eviction_text(overlapping: Sequence[AffectedJob], mode: str) -> str:
    if not overlapping:
        return "No running job extends into the maintenance."
    outcome = {
        DrainMode.FINISH: "left to finish",
        DrainMode.CHECKPOINT: "requeued after the next checkpoint",
        DrainMode.NOW: "signaled to save a checkpoint and then requeued",
    }[DrainMode(mode)]
    return f"{format_count(len(overlapping), 'job')} may still be running at the start and would be {outcome}."


def _waiting_text(jobs: int, gpus: float, *, whole: bool) -> str:
    if not jobs:
        return "Every waiting job can finish before the maintenance."
    where = "" if whole else " on these nodes"
    subject = f"{format_count(jobs, 'waiting job')} ({format_count(gpus, 'GPU')})"
    return f"{subject} cannot start{where} before the maintenance ends."


def _jobs_are(number: int) -> str:
    return f"{format_count(number, 'job')} {'is' if number == 1 else 'are'}"
