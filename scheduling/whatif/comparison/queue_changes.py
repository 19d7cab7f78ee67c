"""The queue of one snapshot under two policies: which jobs move, and which are likely to start earlier or later. Pure.

`QueuePlan` is what the engine says under one policy; `compare_plans` compares two of the same waiting jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

MIN_SHIFT = timedelta(minutes=1)  # a smaller difference of two estimates is not a change


@dataclass(frozen=True, kw_only=True)
class QueuePlan:
    """The job ids in queue order, the first `starts` of which start in the next turn, and likely starts by job id.
    `likely` None: there are too many jobs for estimates."""

    line: Sequence[int]
    starts: int
    likely: Mapping[int, datetime] | None = None


@dataclass(frozen=True, kw_only=True)
class JobChange:
    """A waiting job under both policies. Places count from 1; a likely start is None if it is not known."""

    job_id: int
    place_before: int
    place_after: int
    start_before: datetime | None = None
    start_after: datetime | None = None

    @property
    def places_up(self) -> int:
        """By how many places the job moves towards the head of the queue; negative: it moves back."""
        return self.place_before - self.place_after

    @property
    def shift(self) -> timedelta | None:
        """By how much the job is likely to start later; negative: earlier; None: not known."""
        if self.start_before is None or self.start_after is None:
            return None
        return self.start_after - self.start_before

    @property
    def start_trend(self) -> str:
        """earlier, later or same; empty if it is not known."""
        if self.shift is None:
            return ""
        return "same" if abs(self.shift) < MIN_SHIFT else "earlier" if self.shift < timedelta() else "later"

    @property
    def is_change(self) -> bool:
        return bool(self.places_up) or self.start_trend in ("earlier", "later")


@dataclass(frozen=True, kw_only=True)
class QueueChanges:
    """All waiting jobs in the proposed order, with sums. Median waits are None without estimates."""

    jobs: Sequence[JobChange]
    starts_before: int
    starts_after: int
    has_estimates: bool
    median_wait_before: timedelta | None = None
    median_wait_after: timedelta | None = None

    @property
    def changed(self) -> list[JobChange]:
        return [job for job in self.jobs if job.is_change]

    @property
    def up(self) -> int:
        return sum(job.places_up > 0 for job in self.jobs)

    @property
    def down(self) -> int:
        return sum(job.places_up < 0 for job in self.jobs)

    @property
    def same_place(self) -> int:
        return len(self.jobs) - self.up - self.down

    @property
    def start_trends(self) -> Mapping[str, int]:
        """The number of jobs that are likely to start earlier, later, and at the same time."""
        return Counter(job.start_trend for job in self.jobs if job.start_trend)


def compare_plans(before: QueuePlan, after: QueuePlan, now: datetime) -> QueueChanges:
    """Both plans must have the same jobs."""
    places = {job: place for place, job in enumerate(before.line, 1)}
    likely_before, likely_after = before.likely or {}, after.likely or {}
    jobs = [
        JobChange(
            job_id=job,
            place_before=places[job],
            place_after=place,
            start_before=likely_before.get(job),
            start_after=likely_after.get(job),
        )
        for place, job in enumerate(after.line, 1)
    ]
    known = [(job.start_before, job.start_after) for job in jobs if job.start_before and job.start_after]
    return QueueChanges(
        jobs=jobs,
        starts_before=before.starts,
        starts_after=after.starts,
        has_estimates=before.likely is not None and after.likely is not None,
        median_wait_before=_median_wait([start for start, _ in known], now),
        median_wait_after=_median_wait([start for _, start in known], now),
    )


def _median_wait(starts: Sequence[datetime], now: datetime) -> timedelta | None:
    waits = [(start - now).total_seconds() for start in starts]
    return timedelta(seconds=round(median(waits))) if waits else None
