"""Store the ledger of each finished hour and day, so that reports do not compute it from all attempts.

Eligible rows     Hours and days (`LedgerPeriod`) that are outdated: not computed yet, or a row changed that they are
                  computed from. The newest day first; within a day its hours, then the day. The current hour is
                  computed in each turn, up to now. An hour is over once no transaction that began in it and writes is
                  open, because its rows are not visible before.
What a turn does  Marks the periods of recorded changes as outdated, creates the rows of missing periods, and computes
                  outdated ones until `TURN_BUDGET_S` is over, at least one load per cluster. A day is the sum of its
                  hours if they are stored, and is computed from its rows otherwise. Deletes hours older than 32 days.
                  Memory depends on the jobs of an hour (`periods.MAX_JOBS_PER_LOAD`).
Failure story     Killed at any time: marking and deleting the changes is one transaction, and each period is stored by
                  one statement, so the next turn continues. Two turns at once: both compute, and the second write of a
                  period is dropped, because its revision has changed. A row changes while its hour is computed: the
                  change is recorded in the same transaction; either it was applied before the period was read and is
                  contained, or it increases the revision, or it remains and marks the period in the next turn. Late or
                  not running: pages compute what is missing or outdated, up to a limit, and say what they left out.
                  After an upgrade nothing is stored, and the newest days are filled first. An error in one cluster is
                  logged, and the other clusters are processed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import groupby

from django.db import connection

from jobs.models import Cluster, Job
from scheduling.ledger import actions
from scheduling.ledger.reads.facts import unix_microseconds
from scheduling.ledger.reads.periods import compute_parts, moment
from scheduling.ledger.rules import parts
from scheduling.ledger.rules.parts import US_PER_DAY, LedgerPart
from scheduling.models import LedgerPeriod, PeriodLength

log = logging.getLogger(__name__)

TURN_BUDGET_S = 20.0  # per cluster
HOURS_PER_DAY = 24
# Rows written by these transactions are not visible yet
OLDEST_WRITER_SQL = """
SELECT min(xact_start) FROM pg_stat_activity
WHERE datname = current_database() AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()
"""


def store_periods_once(now: datetime, budget_s: float = TURN_BUDGET_S) -> int:
    """Store outdated periods of all clusters. Return their number."""
    stored = 0
    for cluster in Cluster.objects.order_by("pk"):
        try:
            stored += _store_periods(cluster, now, budget_s, time.monotonic)
        except Exception:
            log.exception("the ledger of cluster %s could not be stored", cluster)
    return stored


def _store_periods(cluster: Cluster, now: datetime, budget_s: float, monotonic: Callable[[], float]) -> int:
    began, stored = monotonic(), 0
    actions.mark_other_versions(cluster, now)
    changes = actions.apply_changes(cluster, now)
    actions.create_periods(cluster, min([_first_moment(cluster), *(since for since, _ in changes)]), now)
    closed_until = _closed_until(now)
    for of_day in _outdated_days(cluster):
        for period, part in _computed(cluster, of_day, now):
            is_complete = moment(part.end) == period.end <= closed_until
            stored += actions.store_part(period, part, moment(part.end), is_complete=is_complete)
            if monotonic() - began > budget_s:
                return stored
    actions.delete_old_hours(cluster, now)
    return stored


def _first_moment(cluster: Cluster) -> datetime:
    """Return the time before which the cluster has no figures. Older jobs that are added later are recorded as changes,
    so the jobs are read only before the first period is stored."""
    oldest = LedgerPeriod.objects.filter(cluster=cluster).order_by("start").values_list("start", flat=True).first()
    if oldest is None:
        oldest = (
            Job.objects.filter(cluster=cluster).order_by("submitted_at").values_list("submitted_at", flat=True).first()
        )
    return min(cluster.created_at, oldest or cluster.created_at)


def _closed_until(now: datetime) -> datetime:
    """Return the time up to which all rows are visible."""
    with connection.cursor() as cursor:
        cursor.execute(OLDEST_WRITER_SQL)
        oldest = cursor.fetchone()[0]
    return min(now, oldest) if oldest else now


def _outdated_days(cluster: Cluster) -> Iterator[list[LedgerPeriod]]:
    """Yield the outdated periods of each day, the newest day first, hours before their day."""
    rows = LedgerPeriod.objects.filter(cluster=cluster, is_outdated=True).defer("figures")
    newest_first = sorted(rows, key=lambda period: (-_day(period), period.length_s, period.start))
    for _, of_day in groupby(newest_first, key=_day):
        yield list(of_day)


def _day(period: LedgerPeriod) -> int:
    return unix_microseconds(period.start) // US_PER_DAY


def _computed(
    cluster: Cluster, of_day: Sequence[LedgerPeriod], now: datetime
) -> Iterator[tuple[LedgerPeriod, LedgerPart]]:
    hours = {unix_microseconds(one.start): one for one in of_day if one.length_s == PeriodLength.HOUR}
    ends = {start: unix_microseconds(min(one.end, now)) for start, one in hours.items()}
    for start, end in reversed(parts.merge_spans((start, end) for start, end in ends.items() if start < end)):
        for part in compute_parts(cluster, start, end):
            yield hours[part.start], part
    for day in of_day:
        if day.length_s == PeriodLength.DAY:
            yield day, _day_part(cluster, day)


def _day_part(cluster: Cluster, day: LedgerPeriod) -> LedgerPart:
    start, end = unix_microseconds(day.start), unix_microseconds(day.end)
    stored = LedgerPeriod.objects.computed_within(cluster, day.start, day.end).filter(
        length_s=PeriodLength.HOUR, is_outdated=False
    )
    hours = [
        parts.read_part(unix_microseconds(since), unix_microseconds(until), figures)
        for since, until, figures in stored.values_list("start", "until", "figures")
    ]
    whole = hours if len(hours) == HOURS_PER_DAY else list(compute_parts(cluster, start, end, US_PER_DAY))
    return parts.total_of(whole)
