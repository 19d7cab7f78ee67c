"""The ledger as people read it: six groups of buckets that sum to the whole, as bars and as rows. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from jobs.core.parsing import raise_invalid_field
from scheduling.ledger.buckets import HELD_BUCKETS, Bucket

PERIOD_TITLES = {"1": "24 hours", "7": "7 days", "30": "30 days"}
DEFAULT_DAYS = "7"
MONTH = re.compile(r"(20\d\d)-(0[1-9]|1[0-2])")
US_PER_HOUR = 3_600_000_000
Size = TypeVar("Size", int, float)


@dataclass(frozen=True, kw_only=True)
class BucketGroup:
    name: str
    tone: str
    says: str
    buckets: tuple[Bucket, ...]


BUCKET_GROUPS = (
    BucketGroup(name="productive", tone="good", says="steps that count", buckets=(Bucket.PRODUCTIVE,)),
    BucketGroup(
        name="overhead",
        tone="starting",
        says="starting up, saving checkpoints",
        buckets=(Bucket.START_UP, Bucket.CHECKPOINT_STALL),
    ),
    BucketGroup(
        name="lost",
        tone="bad",
        says="work done again after failures, recovery, hangs, slow spells",
        buckets=(Bucket.LOST_WORK, Bucket.RECOVERY, Bucket.HUNG, Bucket.SLOW),
    ),
    BucketGroup(
        name="idle",
        tone="waiting",
        says="held and not used, or free while somebody waits",
        buckets=(Bucket.IDLE, Bucket.RESERVED_IDLE, Bucket.FRAGMENTED),
    ),
    BucketGroup(name="free", tone="quiet", says="and nobody waited", buckets=(Bucket.FREE,)),
    BucketGroup(name="closed", tone="drain", says="drained, in test, down", buckets=(Bucket.DRAINED, Bucket.DOWN)),
)


@dataclass(frozen=True, kw_only=True)
class Period:
    """`asked` is how the address names it."""

    title: str
    since: datetime
    until: datetime
    asked: Mapping[str, str]

    @property
    def is_month(self) -> bool:
        return "month" in self.asked


def parse_period(days: str, month: str, now: datetime) -> Period:
    """A calendar month (UTC, as far as it has gone), or the last so many days. Raises BadSpec."""
    if month:
        return _month_period(month, now)
    days = days or DEFAULT_DAYS
    if days not in PERIOD_TITLES:
        raise_invalid_field("days", f"{days[:20]!r} is none of {', '.join(PERIOD_TITLES)}")
    return Period(
        title=f"last {PERIOD_TITLES[days]}", since=now - timedelta(days=int(days)), until=now, asked={"days": days}
    )


def _month_period(text: str, now: datetime) -> Period:
    found = MONTH.fullmatch(text)
    if found is None:
        raise_invalid_field("month", f"{text[:20]!r} is no month such as {now:%Y-%m}")
    since = datetime(int(found[1]), int(found[2]), 1, tzinfo=UTC)
    if since >= now:
        raise_invalid_field("month", f"{text} has not begun yet")
    return Period(title=f"{since:%B %Y}", since=since, until=min(_next_month(since), now), asked={"month": text})


def _next_month(month: datetime) -> datetime:
    return (month + timedelta(days=31)).replace(day=1)


def months(now: datetime, count: int = 12) -> list[str]:
    """The newest first."""
    found = [now.astimezone(UTC).replace(day=1)]
    while len(found) < count:
        found.append((found[-1] - timedelta(days=1)).replace(day=1))
    return [f"{one:%Y-%m}" for one in found]


@dataclass(frozen=True, kw_only=True)
class ReportBarPart:
    """A piece of a bar, `start` and `share` in percent."""

    group: BucketGroup
    hours: float
    start: float
    share: float


@dataclass(frozen=True, kw_only=True)
class ReportRow:
    name: str
    hours: float
    parts: Sequence[ReportBarPart]
    goodput: float | None
    cost: float | None  # None: no cluster of it has a price


def report_bar_parts(gpu_us: Mapping[Bucket, int]) -> list[ReportBarPart]:
    """Each begins where the one before it ends; together they are the whole."""
    whole, begin, found = sum(gpu_us.values()), 0, []
    for group in BUCKET_GROUPS:
        size = sum(gpu_us.get(bucket, 0) for bucket in group.buckets)
        start = round(100 * begin / whole, 3) if whole else 0.0
        begin += size
        end = round(100 * begin / whole, 3) if whole else 0.0
        found.append(ReportBarPart(group=group, hours=size / US_PER_HOUR, start=start, share=end - start))
    return found


def report_row(
    name: str, gpu_us: Mapping[Bucket, int], goodput: float | None, costs: Mapping[Bucket, float] | None = None
) -> ReportRow:
    hours = sum(gpu_us.values()) / US_PER_HOUR
    return ReportRow(
        name=name, hours=hours, parts=report_bar_parts(gpu_us), goodput=goodput, cost=total_cost(costs or {})
    )


def total_cost(costs: Mapping[Bucket, float]) -> float | None:
    return sum(costs.values()) if costs else None


def split_held_sizes(sizes: Mapping[Bucket, Size]) -> tuple[dict[Bucket, Size], dict[Bucket, Size]]:
    """The row without a name of a table by team or kind: what teams that are not named held, and what nobody held."""
    held = {bucket: size for bucket, size in sizes.items() if bucket in HELD_BUCKETS}
    return held, {bucket: size for bucket, size in sizes.items() if bucket not in HELD_BUCKETS}
