"""The ledger of any period, from the stored hours and days and from the rows of what is not stored.

    period                 |--------------------------------------------------------------|
    stored and up to date     [hour][hour][   day   ][   day   ][   day   ][hour]
    computed from rows     |--|                                                  |--------|

Exact if computing the rest takes at most `MAX_JOBS_ON_DEMAND` jobs. If it takes more, the figures of outdated periods
are used as they are, which the loop replaces within minutes, and what is not stored at all is left out. The result says
both. An hour or day is outdated if its row says so, or if a change of a row has been recorded since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import pairwise

from jobs.models import Cluster
from scheduling.ledger.reads import rows as ledger_rows
from scheduling.ledger.reads.facts import cluster_parts, unix_microseconds
from scheduling.ledger.rules import parts
from scheduling.ledger.rules.parts import US_PER_DAY, US_PER_HOUR, LedgerPart, PeriodCover, Span, clock_edges
from scheduling.models import LedgerChange, LedgerPeriod

MAX_JOBS_ON_DEMAND = 50_000  # jobs that a page may read: some seconds
MAX_JOBS_PER_LOAD = 50_000  # above, a period is computed hour by hour, so memory depends on the jobs of an hour only


@dataclass(frozen=True, kw_only=True)
class ClusterLedger:
    """The ledger of one cluster for a period."""

    cluster: str
    parts: Sequence[LedgerPart]
    outdated: Sequence[Span] = ()  # their figures are about to change
    left_out: Sequence[Span] = ()  # not computed yet

    @cached_property
    def total(self) -> LedgerPart:
        return parts.total_of(self.parts)


@dataclass(frozen=True, kw_only=True)
class StoredSpans:
    """The stored periods within a period, as row keys by span."""

    current: dict[Span, int]
    outdated: dict[Span, int]


def cluster_ledger(
    cluster: Cluster,
    since: datetime,
    until: datetime,
    *,
    longest_us: int = US_PER_DAY,
    max_jobs: int | None = MAX_JOBS_ON_DEMAND,
) -> ClusterLedger:
    """Return the ledger of a period in parts of at most a day, or an hour. `max_jobs`: None computes everything that is
    not up to date."""
    start, end = unix_microseconds(since), unix_microseconds(until)
    stored = _stored_spans(cluster, since, until, longest_us)
    cover = parts.cover_period(start, end, stored.current)
    if max_jobs is not None and not _is_affordable(cluster, cover.gaps, max_jobs):
        cover = parts.cover_period(start, end, [*stored.current, *stored.outdated])
        if not _is_affordable(cluster, cover.gaps, max_jobs):
            return _without_gaps(cluster, cover, stored)
    computed = [part for gap in cover.gaps for part in compute_parts(cluster, *gap, longest_us)]
    found = sorted([*_read_parts(cover, stored), *computed], key=lambda part: part.start)
    return ClusterLedger(cluster=cluster.name, parts=found, outdated=_outdated(cover, stored))


def compute_parts(cluster: Cluster, start: int, end: int, longest_us: int = US_PER_HOUR) -> Iterator[LedgerPart]:
    """Compute a period from its rows, in parts of at most this length. If it has so many jobs that each hour is loaded
    by itself, the newest hour comes first."""
    since, until = moment(start), moment(end)
    if ledger_rows.count_jobs(cluster, since, until, MAX_JOBS_PER_LOAD + 1) <= MAX_JOBS_PER_LOAD:
        yield from cluster_parts(cluster, since, until, clock_edges(start, end, longest_us))
        return
    for low, high in reversed(list(pairwise(clock_edges(start, end, US_PER_HOUR)))):
        yield from cluster_parts(cluster, moment(low), moment(high))


def moment(us: int) -> datetime:
    """Return the time of these microseconds since 1970."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def _stored_spans(cluster: Cluster, since: datetime, until: datetime, longest_us: int) -> StoredSpans:
    rows = LedgerPeriod.objects.computed_within(cluster, since, until).filter(length_s__lte=longest_us // 1_000_000)
    changes = _changed_spans(cluster)
    spans = StoredSpans(current={}, outdated={})
    for pk, low, high, is_outdated in rows.values_list("pk", "start", "until", "is_outdated"):
        span = unix_microseconds(low), unix_microseconds(high)
        changed = is_outdated or any(begin <= span[1] and over >= span[0] for begin, over in changes)
        (spans.outdated if changed else spans.current)[span] = pk
    return spans


def _changed_spans(cluster: Cluster) -> list[Span]:
    """Return the recorded changes, merged where they overlap: an import records thousands."""
    rows = LedgerChange.objects.filter(cluster_id=cluster.pk).order_by("since").values_list("since", "until")
    return parts.merge_spans(
        (unix_microseconds(since), parts.OPEN_END_US if until is None else unix_microseconds(until))
        for since, until in rows
    )


def _is_affordable(cluster: Cluster, gaps: Iterable[Span], max_jobs: int) -> bool:
    for low, high in gaps:
        max_jobs -= ledger_rows.count_jobs(cluster, moment(low), moment(high), max_jobs + 1)
        if max_jobs < 0:
            return False
    return True


def _read_parts(cover: PeriodCover, stored: StoredSpans) -> list[LedgerPart]:
    keys = {(stored.current | stored.outdated)[span]: span for span in cover.spans}
    rows = LedgerPeriod.objects.filter(pk__in=keys).values_list("pk", "figures") if keys else []
    return [parts.read_part(*keys[pk], figures) for pk, figures in rows]


def _outdated(cover: PeriodCover, stored: StoredSpans) -> list[Span]:
    return [span for span in cover.spans if span in stored.outdated and span not in stored.current]


def _without_gaps(cluster: Cluster, cover: PeriodCover, stored: StoredSpans) -> ClusterLedger:
    found = sorted(_read_parts(cover, stored), key=lambda part: part.start)
    return ClusterLedger(cluster=cluster.name, parts=found, outdated=_outdated(cover, stored), left_out=cover.gaps)
