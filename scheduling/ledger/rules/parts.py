"""Parts of a ledger that can be added up: the figures of an hour, a day or any other period of a cluster. Pure.

A figure is in a part if it is a sum over time (GPU-hours by team, kind, bucket and cause, allocated GPU-hours by node,
wall-clock time of jobs, capacity), a count of moments (failures, counted when they end), or a set that can be united
(hardware failures: two jobs that one incident ended on one node are one failure, even in two parts). Ratios, means and
medians are computed from the sum of the parts, never averaged. So the parts of a period, in whatever sizes, give the
same figures as one ledger of the whole period.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from scheduling.ledger.rules.buckets import Bucket, LedgerEntry, NodeHistory, capacity_us, windows_within
from scheduling.ledger.rules.reliability import JobLifetime

US_PER_HOUR = 3_600_000_000
US_PER_DAY = 24 * US_PER_HOUR
OPEN_END_US = 1 << 62


class UseKey(NamedTuple):
    """What GPU time was used for. `team` is None and `kind` empty if no job held the GPUs."""

    team: int | None
    kind: str
    bucket: Bucket
    cause: str


class JobRecovery(NamedTuple):
    """A failed job that was started again."""

    cause: str
    took_us: int  # from the failure to the next allocation


@dataclass(frozen=True, kw_only=True)
class LedgerPart:
    """The figures of one cluster from `start` to before `end`, in microseconds since 1970."""

    start: int
    end: int
    gpu_us: Counter[UseKey] = field(default_factory=Counter)
    held_us: Counter[str] = field(default_factory=Counter)  # by node
    wall_us: int = 0  # of the jobs that ran, with their waits between attempts
    failures: Counter[str] = field(
        default_factory=Counter
    )  # by cause, of attempts that ended after `start` up to `end`
    broken: frozenset[tuple[str, int]] = frozenset()  # node and incident of each hardware failure
    recoveries: Sequence[JobRecovery] = ()
    capacity_us: int = 0

    @property
    def bucket_us(self) -> Counter[Bucket]:
        """Return the GPU time by bucket."""
        sums: Counter[Bucket] = Counter()
        for key, gpu_us in self.gpu_us.items():
            sums[key.bucket] += gpu_us
        return sums

    def by_cause(self, buckets: Collection[Bucket]) -> dict[str, int]:
        """Return the GPU time of these buckets by cause, the largest first. An empty cause is a failure without a
        diagnosis yet."""
        sums: Counter[str] = Counter()
        for key, gpu_us in self.gpu_us.items():
            if key.bucket in buckets:
                sums[key.cause] += gpu_us
        return dict(sums.most_common())


@dataclass(frozen=True, kw_only=True)
class LedgerMoments:
    """What happened at one moment each, as (time, what)."""

    failures: Sequence[tuple[int, str]] = ()  # the end of a failed attempt, its cause
    broken: Sequence[tuple[int, tuple[str, int]]] = ()  # a hardware failure, its node and incident
    recoveries: Sequence[tuple[int, JobRecovery]] = ()  # the next allocation of a failed job


AttemptOwner = tuple[int, str]  # team, kind
NO_OWNER: tuple[None, str] = (None, "")


def parts_by_window(
    edges: Sequence[int],
    entries: Iterable[LedgerEntry],
    owners: Mapping[int, AttemptOwner],
    runs: Iterable[JobLifetime],
    moments: LedgerMoments,
    machines: Sequence[NodeHistory],
) -> list[LedgerPart]:
    """Return one part per window of a ledger."""
    windows = range(len(edges) - 1)
    used: list[Counter[tuple[int | None, str, Bucket, str]]] = [Counter() for _ in windows]
    held: list[Counter[str]] = [Counter() for _ in windows]
    for window, gpu_us, bucket, node, attempt, cause in entries:
        team, kind = NO_OWNER if attempt is None else owners.get(attempt, NO_OWNER)
        used[window][team, kind, bucket, cause] += gpu_us
        if attempt is not None:
            held[window][node] += gpu_us
    wall = _wall_us_by_window(runs, edges)
    return [
        LedgerPart(
            start=low,
            end=high,
            gpu_us=Counter({UseKey(*key): gpu_us for key, gpu_us in used[window].items()}),
            held_us=held[window],
            wall_us=wall[window],
            failures=Counter(cause for at, cause in moments.failures if low < at <= high),
            broken=frozenset(failure for at, failure in moments.broken if low <= at < high),
            recoveries=[recovery for at, recovery in moments.recoveries if low <= at < high],
            capacity_us=capacity_us(machines, low, high),
        )
        for window, (low, high) in enumerate(pairwise(edges))
    ]


def _wall_us_by_window(runs: Iterable[JobLifetime], edges: Sequence[int]) -> Counter[int]:
    """Return the GPU time of the runs by window, with their waits between attempts."""
    wall: Counter[int] = Counter()
    for run in runs:
        for window, low, high in windows_within(edges, run.start, run.end):
            wall[window] += run.gpu_us(low, high)
    return wall


def total_of(parts: Iterable[LedgerPart]) -> LedgerPart:
    """Return the sum of the parts of a period, which must not overlap."""
    chosen = list(parts)
    gpu_us: Counter[UseKey] = Counter()
    held_us: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    for part in chosen:
        gpu_us.update(part.gpu_us)
        held_us.update(part.held_us)
        failures.update(part.failures)
    return LedgerPart(
        start=min((part.start for part in chosen), default=0),
        end=max((part.end for part in chosen), default=0),
        gpu_us=gpu_us,
        held_us=held_us,
        wall_us=sum(part.wall_us for part in chosen),
        failures=failures,
        broken=frozenset().union(*(part.broken for part in chosen)),
        recoveries=[recovery for part in chosen for recovery in part.recoveries],
        capacity_us=sum(part.capacity_us for part in chosen),
    )


def totals_by_step(parts: Iterable[LedgerPart], step: int) -> dict[int, LedgerPart]:
    """Return the sum of the parts of each hour or day (UTC), by its start. No part may cross its end."""
    by_start: dict[int, list[LedgerPart]] = defaultdict(list)
    for part in parts:
        by_start[part.start // step * step].append(part)
    return {start: total_of(within) for start, within in sorted(by_start.items())}


def part_document(part: LedgerPart) -> dict[str, Any]:
    """Return the figures of a part for a JSON column."""
    return {
        "gpu_us": [[*key, gpu_us] for key, gpu_us in part.gpu_us.items()],
        "held_us": dict(part.held_us),
        "wall_us": part.wall_us,
        "failures": dict(part.failures),
        "broken": sorted(part.broken),
        "recoveries": [list(recovery) for recovery in part.recoveries],
        "capacity_us": part.capacity_us,
    }


def read_part(start: int, end: int, document: Mapping[str, Any]) -> LedgerPart:
    """Return the part that was stored with `part_document`."""
    return LedgerPart(
        start=start,
        end=end,
        gpu_us=Counter(
            {
                UseKey(team, kind, Bucket(bucket), cause): gpu_us
                for team, kind, bucket, cause, gpu_us in document["gpu_us"]
            }
        ),
        held_us=Counter(document["held_us"]),
        wall_us=document["wall_us"],
        failures=Counter(document["failures"]),
        broken=frozenset((node, incident) for node, incident in document["broken"]),
        recoveries=[JobRecovery(cause, took_us) for cause, took_us in document["recoveries"]],
        capacity_us=document["capacity_us"],
    )


# --- which stored parts make up a period

Span = tuple[int, int]
Moment = TypeVar("Moment", int, datetime)


@dataclass(frozen=True, kw_only=True)
class PeriodCover:
    """The stored spans that make up a period, in order, and the gaps between them."""

    spans: Sequence[Span]
    gaps: Sequence[Span]


def merge_spans(spans: Iterable[tuple[Moment, Moment]]) -> list[tuple[Moment, Moment]]:
    """Return the time that these spans cover, as spans that neither overlap nor touch."""
    merged: list[tuple[Moment, Moment]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, max(start, end)))
    return merged


def cover_period(start: int, end: int, stored: Iterable[Span]) -> PeriodCover:
    """Choose stored spans within a period that do not overlap, the longest first at each moment."""
    longest: dict[int, int] = {}
    for low, high in stored:
        if low >= start and high <= end:
            longest[low] = max(high, longest.get(low, 0))
    starts, spans, gaps, now = sorted(longest), [], [], start
    while now < end:
        if now in longest:
            spans.append((now, longest[now]))
            now = longest[now]
            continue
        following = bisect_left(starts, now)
        until = starts[following] if following < len(starts) else end
        gaps.append((now, until))
        now = until
    return PeriodCover(spans=spans, gaps=gaps)


def clock_edges(start: int, end: int, step: int) -> list[int]:
    """Return the multiples of `step` (an hour, a day) within a period, between its start and its end."""
    return [start, *range(start // step * step + step, end, step), end]
