"""Stored figures of the ledger, and the changes of rows that make them outdated."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Self

from django.db import models

from jobs.models.cluster import Cluster


class PeriodLength(models.IntegerChoices):
    """Seconds of a stored period."""

    HOUR = 3600
    DAY = 86400


class LedgerPeriodQuerySet(models.QuerySet["LedgerPeriod"]):
    def computed_within(self, cluster: Cluster, since: datetime, until: datetime) -> Self:
        """Return the periods with figures that are within this time."""
        return self.filter(cluster=cluster, start__gte=since, until__lte=until, figures__isnull=False)

    def touching(self, cluster_id: int, since: datetime, until: datetime) -> Self:
        """Return the periods that overlap this time or border on it."""
        day = timedelta(seconds=PeriodLength.DAY)  # bounds the scan of the index
        return self.filter(cluster_id=cluster_id, start__gte=since - day, start__lte=until, until__gte=since)


class LedgerPeriod(models.Model):
    """The figures of a cluster's ledger in one hour or one day (UTC). `scheduling.ledger.loops.periods` computes it.

    The row exists before its figures, so that a change that is noticed while they are computed finds it. The current
    hour is stored too, up to the time at which it was computed, and counts as outdated.
    """

    cluster = models.ForeignKey("jobs.Cluster", on_delete=models.CASCADE, related_name="ledger_periods")
    start = models.DateTimeField()
    length_s = models.PositiveIntegerField(choices=PeriodLength)
    until = models.DateTimeField(help_text="End of the time that the figures cover.")
    is_outdated = models.BooleanField(default=True, help_text="Whether it has to be computed again.")
    revision = models.PositiveIntegerField(default=0, help_text="Number of changes of this row.")
    version = models.CharField(max_length=8, blank=True, help_text="Version of the rules that assign time to buckets.")
    figures = models.JSONField(null=True, help_text="Empty: not computed yet.")

    objects = LedgerPeriodQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["cluster", "length_s", "start"], name="one_row_per_ledger_period")
        ]
        indexes = [models.Index(fields=["cluster", "start"], name="ledger_period_by_start")]

    def __str__(self) -> str:
        return f"{self.cluster_id}: {self.length_s} s from {self.start:%F %T}"

    @property
    def end(self) -> datetime:
        return self.start + timedelta(seconds=self.length_s)


class LedgerChange(models.Model):
    """A row changed that the ledger of past hours is computed from. Triggers insert it in the transaction of the
    change (`scheduling/migrations/_ledger_triggers.py`), so no code that changes rows can forget it."""

    cluster_id = models.BigIntegerField()  # no foreign key: the insert must be cheap, and the cluster may be deleted
    since = models.DateTimeField(help_text="Start of the time whose figures may have changed.")
    until = models.DateTimeField(null=True, help_text="Empty: up to now.")

    def __str__(self) -> str:
        return f"{self.cluster_id}: {self.since:%F %T} to {self.until or 'now'}"
