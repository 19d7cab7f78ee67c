"""What draining a node, or a maintenance, means for those who run and wait, said before it is done. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, F, Q, Sum

from jobs.core.slurm_notation import format_count
from jobs.models import Attempt, DrainMode, Job, Node

HOUR = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class AffectedJob:
    """A job on the node. `at_risk` are the GPU-hours of all its nodes since it last saved its work."""

    job: Job
    gpus: int  # on these nodes
    started_at: datetime | None
    saved_at: datetime | None
    at_risk: float

    @property
    def saves(self) -> bool:
        """Whether a next checkpoint is to be expected of it."""
        return bool(self.saved_at or self.job.checkpoint_dir or self.job.checkpoint_interval)


def affected_jobs(nodes: Collection[Node], now: datetime) -> list[AffectedJob]:
    """One query, however many jobs there are; a job on several of the nodes is one."""
    here = Q(allocations__node__in=nodes, allocations__released_at__isnull=True)
    attempts = Attempt.objects.filter(here).annotate(on_node=Count("allocations__gpu"))
    rows = attempts.select_related("job__team", "job__user").order_by("job__public_id")
    return [_affected_job(attempt, now) for attempt in rows.defer("job__command", "job__environment")]


def _affected_job(attempt: Attempt, now: datetime) -> AffectedJob:
    began, saved = attempt.confirmed_at, attempt.saved_at
    at_risk = round(attempt.job.gpus * ((now - (saved or began)) / HOUR), 2) if saved or began else 0.0
    return AffectedJob(job=attempt.job, gpus=attempt.on_node, started_at=began, saved_at=saved, at_risk=at_risk)


def drain_impact_text(touched: Sequence[AffectedJob], mode: str) -> str:
    """What the drain does to them, with what it costs."""
    running = format_count(len(touched), "running job")
    if not touched:
        return "No new jobs; nothing runs on it."
    if mode == DrainMode.FINISH:
        return f"No new jobs; {running} {'finishes' if len(touched) == 1 else 'finish'}."
    ours = [one for one in touched if not one.job.is_foreign]
    left = len(touched) - len(ours)
    foreign = f" {format_count(left, 'job')} from outside Acme {'runs' if left == 1 else 'run'} on." if left else ""
    if mode == DrainMode.CHECKPOINT:
        saving = sum(one.saves for one in ours)
        rest = f"; {len(ours) - saving} that save none finish" if saving < len(ours) else ""
        return f"No new jobs; {_jobs_are(saving)} requeued after the next checkpoint{rest}.{foreign}"
    hours = sum(one.at_risk for one in ours)
    lost = f"up to {hours:.1f} GPU-hours since the last checkpoints are lost"
    return f"No new jobs; {_jobs_are(len(ours))} requeued now: {lost}.{foreign}"


@dataclass(frozen=True, kw_only=True)
class MaintenanceImpact:
    """What a maintenance means by the time limits of today: nobody knows who will come until it begins."""

    nodes: int
    gpus: int
    running: Sequence[AffectedJob]  # may be there when it begins; none of them need be
    over_before: int
    waiting: int  # too long to be over before
    waiting_gpus: int
    effect: str


def maintenance_impact(
    nodes: Collection[Node], *, start: datetime, end: datetime, mode: str, lead: timedelta, now: datetime, whole: bool
) -> MaintenanceImpact:
    """Two queries."""
    touched = affected_jobs(nodes, now)
    reach = [one for one in touched if _may_run_until(one, start)]
    limited, endless = Q(time_limit__gt=start - now), Q(time_limit=None)
    long = limited | endless if start - now <= lead else limited
    cluster = next(iter(nodes)).cluster_id if nodes else None
    waits = Job.objects.waiting().filter(long, cluster=cluster, foreign_id="").order_by()
    found = waits.aggregate(jobs=Count("pk"), gpus=Sum(F("nodes") * F("gpus_per_node")))
    jobs, gpus = found["jobs"], found["gpus"] or 0
    return MaintenanceImpact(
        nodes=len(nodes),
        gpus=sum(node.gpus for node in nodes),
        running=reach,
        over_before=len(touched) - len(reach),
        waiting=jobs,
        waiting_gpus=gpus,
        effect=" ".join(
            [_closing_text(nodes, start, end), _eviction_text(reach, mode), _waiting_text(jobs, gpus, whole=whole)]
        ),
    )


def _may_run_until(one: AffectedJob, start: datetime) -> bool:
    limit = one.job.time_limit
    return limit is None or one.started_at is None or one.started_at + limit > start


def _closing_text(nodes: Collection[Node], start: datetime, end: datetime) -> str:
    gpus = sum(node.gpus for node in nodes)
    take = "takes" if len(nodes) == 1 else "take"
    return (
        f"{format_count(len(nodes), 'node')} with {format_count(gpus, 'GPU')} {take} no work"
        f" from {start:%d %b %Y %H:%M} until {end:%d %b %Y %H:%M} UTC."
    )


def _eviction_text(reach: Sequence[AffectedJob], mode: str) -> str:
    if not reach:
        return "No running job reaches into it."
    what = {
        DrainMode.FINISH: "and would be left to finish",
        DrainMode.CHECKPOINT: "and would be requeued after the next checkpoint",
        DrainMode.NOW: "and would be asked for a checkpoint and requeued then",
    }[DrainMode(mode)]
    return f"{format_count(len(reach), 'running job')} may still be there {what}."


def _waiting_text(jobs: int, gpus: int, *, whole: bool) -> str:
    if not jobs:
        return "No job that waits is too long to be over before."
    where = "" if whole else " on these nodes"
    return f"{format_count(jobs, 'waiting job')} ({format_count(gpus, 'GPU')}) could not start{where} before its end."


def _jobs_are(number: int) -> str:
    return f"{format_count(number, 'job')} {'is' if number == 1 else 'are'}"
