"""The ledger for readers: six groups of buckets that add up to the total, as bars and as rows. Pure.

No group is called idle: an idle GPU is an allocated one that telemetry finds unused (`waste`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from jobs.core.parsing import raise_invalid_field
from scheduling.ledger.rules.buckets import HELD_BUCKETS, Bucket
from scheduling.ledger.rules.parts import US_PER_HOUR
from scheduling.ledger.rules.reliability import CLOSED_BUCKETS, LOST_BUCKETS

PERIOD_TITLES = {"1": "24 hours", "7": "7 days", "30": "30 days"}
DEFAULT_DAYS = "7"
MONTH = re.compile(r"(20\d\d)-(0[1-9]|1[0-2])")
Size = TypeVar("Size", int, float)


@dataclass(frozen=True, kw_only=True)
class BucketGroup:
    """Buckets shown as one part of a bar. `says` is its legend."""

    name: str
    tone: str
    says: str
    buckets: tuple[Bucket, ...]


BUCKET_GROUPS = (
    BucketGroup(name="productive", tone="good", says="completed steps that were kept", buckets=(Bucket.PRODUCTIVE,)),
    BucketGroup(
        name="overhead",
        tone="starting",
        says="start-up, saving checkpoints",
        buckets=(Bucket.START_UP, Bucket.CHECKPOINT_STALL),
    ),
    BucketGroup(
        name="lost",
        tone="bad",
        says="work repeated after failures and preemption, recovery, hangs, slow periods",
        buckets=LOST_BUCKETS,
    ),
    BucketGroup(
        name="blocked",
        tone="waiting",
        says="free while jobs wait: reserved for a larger job, or too few on one node",
        buckets=(Bucket.RESERVED_IDLE, Bucket.FRAGMENTED),
    ),
    BucketGroup(name="free", tone="quiet", says="free while no job waits", buckets=(Bucket.FREE,)),
    BucketGroup(name="asleep", tone="running", says="powered down while no job needs them", buckets=(Bucket.ASLEEP,)),
    BucketGroup(name="closed", tone="drain", says="drained, under test, down", buckets=CLOSED_BUCKETS),
)


@dataclass(frozen=True, kw_only=True)
class Period:
    """A report period. `params` has the query parameters that select it."""

    title: str
    since: datetime
    until: datetime
    params: Mapping[str, str]

    @property
    def is_month(self) -> bool:
        return "month" in self.params


def parse_period(days: str, month: str, now: datetime) -> Period:
    """The calendar month (UTC, up to now), or the last `days` days. Raises an error that names the field."""
    if month:
        return _month_period(month, now)
    days = days or DEFAULT_DAYS
    if days not in PERIOD_TITLES:
        raise_invalid_field("days", f"{days[:20]!r} is not one of {', '.join(PERIOD_TITLES)}")
    return Period(
        title=f"last {PERIOD_TITLES[days]}", since=now - timedelta(days=int(days)), until=now, params={"days": days}
    )


def _month_period(text: str, now: datetime) -> Period:
    match = MONTH.fullmatch(text)
    if match is None:
        raise_invalid_field("month", f"{text[:20]!r} is not a month. Use YYYY-MM, such as {now:%Y-%m}")
    since = datetime(int(match[1]), int(match[2]), 1, tzinfo=UTC)
    if since >= now:
        raise_invalid_field("month", f"{text} is in the future")
    return Period(title=f"{since:%B %Y}", since=since, until=min(_next_month(since), now), params={"month": text})


def _next_month(month: datetime) -> datetime:
    return (month + timedelta(days=31)).replace(day=1)


def months(now: datetime, count: int = 12) -> list[str]:
    """The names of the last `count` months, the newest first."""
    newest_first = [now.astimezone(UTC).replace(day=1)]
    while len(newest_first) < count:
        newest_first.append((newest_first[-1] - timedelta(days=1)).replace(day=1))
    return [f"{month:%Y-%m}" for month in newest_first]


@dataclass(frozen=True, kw_only=True)
class ReportBarPart:
    """A part of a bar; `start` and `share` in percent."""

    group: BucketGroup
    hours: float
    start: float
    share: float


@dataclass(frozen=True, kw_only=True)
class ReportRow:
    """One row of a report table."""

    name: str
    hours: float
    parts: Sequence[ReportBarPart]
    goodput: float | None
    cost: float | None  # None: no cluster in this row has a price
    kwh: float | None = None  # None: no telemetry of energy or power


def report_bar_parts(gpu_us: Mapping[Bucket, int]) -> list[ReportBarPart]:
    """The parts of a bar. Each begins where the previous one ends; together they fill the bar."""
    total, position, parts = sum(gpu_us.values()), 0, []
    for group in BUCKET_GROUPS:
        size = sum(gpu_us.get(bucket, 0) for bucket in group.buckets)
        start = round(100 * position / total, 3) if total else 0.0
        position += size
        end = round(100 * position / total, 3) if total else 0.0
        parts.append(ReportBarPart(group=group, hours=size / US_PER_HOUR, start=start, share=end - start))
    return parts


def report_row(
    name: str,
    gpu_us: Mapping[Bucket, int],
    goodput: float | None,
    costs: Mapping[Bucket, float] | None = None,
    kwh: float | None = None,
) -> ReportRow:
    """A row with its bar, goodput, cost and energy."""
    hours = sum(gpu_us.values()) / US_PER_HOUR
    cost, parts = total_cost(costs or {}), report_bar_parts(gpu_us)
    return ReportRow(name=name, hours=hours, parts=parts, goodput=goodput, cost=cost, kwh=kwh)


def total_cost(costs: Mapping[Bucket, float]) -> float | None:
    """The cost of all buckets; None if nothing has a price."""
    return sum(costs.values()) if costs else None


def split_held_sizes(sizes: Mapping[Bucket, Size]) -> tuple[dict[Bucket, Size], dict[Bucket, Size]]:
    """Split the unnamed row of a table by team or kind: what hidden teams held, and what no job held."""
    held = {bucket: size for bucket, size in sizes.items() if bucket in HELD_BUCKETS}
    return held, {bucket: size for bucket, size in sizes.items() if bucket not in HELD_BUCKETS}
