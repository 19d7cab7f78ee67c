"""Changes of the stored hours and days of the ledger. Each is guarded, so any number of workers may run them."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import connection, transaction
from django.db.models import F, Q, QuerySet

from jobs.models import PROGRESS_RETENTION, Cluster
from scheduling.ledger.rules import buckets, parts
from scheduling.ledger.rules.parts import LedgerPart
from scheduling.models import LedgerChange, LedgerPeriod, PeriodLength

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
HOURS_KEPT = timedelta(days=32)  # the longest period that ends now has 31 days
MAX_DAYS_STORED = 400
# Steps of older attempts are deleted, so their start-up could not be computed again
RECOMPUTED_FOR = PROGRESS_RETENTION - DAY
MAX_CHANGES = 20_000  # per transaction
DELETE_CHANGES = "DELETE FROM scheduling_ledgerchange WHERE id = ANY(%s)"


def apply_changes(cluster: Cluster, now: datetime) -> list[tuple[datetime, datetime]]:
    """Mark the stored periods that recorded changes concern as outdated, and delete the changes, in one transaction.
    Return when the changes were, merged. A period whose facts are partly deleted stays as it is, unless it is empty."""
    with transaction.atomic():
        rows = LedgerChange.objects.filter(cluster_id=cluster.pk).order_by("pk").values_list("pk", "since", "until")
        changes = list(rows[:MAX_CHANGES])
        spans = parts.merge_spans((since, until or now) for _, since, until in changes)
        for since, until in spans:
            touched = LedgerPeriod.objects.touching(cluster.pk, since, until)
            _mark_outdated(touched.filter(_may_be_computed_again(now)))
        with connection.cursor() as cursor:
            cursor.execute(DELETE_CHANGES, [[pk for pk, *_ in changes]])
    return spans


def mark_other_versions(cluster: Cluster, now: datetime) -> None:
    """Mark periods that another version of the rules has computed as outdated."""
    others = LedgerPeriod.objects.filter(cluster=cluster, is_outdated=False).exclude(version=buckets.VERSION)
    _mark_outdated(others.filter(start__gte=now - RECOMPUTED_FOR))


def _may_be_computed_again(now: datetime) -> Q:
    return Q(start__gte=now - RECOMPUTED_FOR) | Q(figures__isnull=True) | Q(figures__held_us={})


def _mark_outdated(rows: QuerySet[LedgerPeriod]) -> None:
    rows.update(is_outdated=True, revision=F("revision") + 1)


def create_periods(cluster: Cluster, since: datetime, now: datetime) -> None:
    """Create the rows of hours and days that do not exist yet, without figures: the hours of the last days up to the
    current one, and the days that are over."""
    this_hour, today = _start_of(now, HOUR), _start_of(now, DAY)
    first_day = max(_start_of(since, DAY), today - MAX_DAYS_STORED * DAY)
    _create_missing(cluster, PeriodLength.HOUR, max(first_day, today - HOURS_KEPT), this_hour + HOUR)
    _create_missing(cluster, PeriodLength.DAY, first_day, today)


def _create_missing(cluster: Cluster, length: int, first: datetime, end: datetime) -> None:
    step, rows = timedelta(seconds=length), LedgerPeriod.objects.filter(cluster=cluster, length_s=length)
    known = set(rows.filter(start__gte=first).values_list("start", flat=True))
    starts = (first + number * step for number in range((end - first) // step))
    new = [
        LedgerPeriod(cluster=cluster, start=start, length_s=length, until=start + step)
        for start in starts
        if start not in known
    ]
    LedgerPeriod.objects.bulk_create(new, ignore_conflicts=True)


def _start_of(moment: datetime, step: timedelta) -> datetime:
    return moment - (moment - datetime(1970, 1, 1, tzinfo=moment.tzinfo)) % step


def store_part(period: LedgerPeriod, part: LedgerPart, until: datetime, *, is_complete: bool) -> bool:
    """Store figures that were computed from rows read after `period` was. Return False if a change was noticed
    meanwhile: the period stays outdated."""
    rows = LedgerPeriod.objects.filter(pk=period.pk, revision=period.revision)
    return (
        rows.update(
            figures=parts.part_document(part),
            version=buckets.VERSION,
            until=until,
            is_outdated=not is_complete,
            revision=F("revision") + 1,
        )
        == 1
    )


def delete_old_hours(cluster: Cluster, now: datetime) -> None:
    """Delete hours that no longer begin or end a period on a page. Their days are kept."""
    old = LedgerPeriod.objects.filter(cluster=cluster, length_s=PeriodLength.HOUR)
    old.filter(start__lt=_start_of(now, DAY) - HOURS_KEPT).delete()
