"""What draining a node means for those who run on it, said before it is done. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Q

from jobs.models import Attempt, DrainMode, Job, Node
from jobs.notation import count

HOUR = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class Touched:
    """A job on the node. `at_risk` are the GPU-hours of all its nodes since it last saved its work."""

    job: Job
    gpus: int  # on this node
    started_at: datetime | None
    saved_at: datetime | None
    at_risk: float

    @property
    def saves(self) -> bool:
        """Whether a next checkpoint is to be expected of it."""
        return bool(self.saved_at or self.job.checkpoint_dir or self.job.checkpoint_interval)


def of_drain(node: Node, now: datetime) -> list[Touched]:
    """One query, however many jobs there are."""
    here = Q(allocations__node=node, allocations__released_at__isnull=True)
    attempts = Attempt.objects.filter(here).annotate(on_node=Count("allocations__gpu"))
    rows = attempts.select_related("job__team", "job__user").order_by("job__public_id")
    return [_touched(attempt, now) for attempt in rows.defer("job__command", "job__environment")]


def _touched(attempt: Attempt, now: datetime) -> Touched:
    began, saved = attempt.confirmed_at, attempt.saved_at
    at_risk = round(attempt.job.gpus * ((now - (saved or began)) / HOUR), 2) if saved or began else 0.0
    return Touched(job=attempt.job, gpus=attempt.on_node, started_at=began, saved_at=saved, at_risk=at_risk)


def sentence(touched: Sequence[Touched], mode: str) -> str:
    """What the drain does to them, with what it costs."""
    running = count(len(touched), "running job")
    if not touched:
        return "No new jobs; nothing runs on it."
    if mode == DrainMode.FINISH:
        return f"No new jobs; {running} {'finishes' if len(touched) == 1 else 'finish'}."
    ours = [one for one in touched if not one.job.is_foreign]
    left = len(touched) - len(ours)
    foreign = f" {count(left, 'job')} from outside Acme {'runs' if left == 1 else 'run'} on." if left else ""
    if mode == DrainMode.CHECKPOINT:
        saving = sum(one.saves for one in ours)
        rest = f"; {len(ours) - saving} that save none finish" if saving < len(ours) else ""
        return f"No new jobs; {_are(saving)} requeued after the next checkpoint{rest}.{foreign}"
    hours = sum(one.at_risk for one in ours)
    lost = f"up to {hours:.1f} GPU-hours since the last checkpoints are lost"
    return f"No new jobs; {_are(len(ours))} requeued now: {lost}.{foreign}"


def _are(number: int) -> str:
    return f"{count(number, 'job')} {'is' if number == 1 else 'are'}"
