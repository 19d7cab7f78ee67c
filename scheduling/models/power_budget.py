"""Power budgets: what the nodes of a cluster, or of one of its racks, leaves or pods may draw together, and the caps
that keep them within it."""

from __future__ import annotations

from datetime import timedelta
from typing import Self

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from jobs.models import Cluster
from scheduling.power.rules.caps import MAX_PERCENT, MIN_PERCENT, POLCA_PERCENTS

MAX_LIMIT_W = 1_000_000_000


class BudgetScope(models.TextChoices):
    """Which nodes: all, or those with the same value of this column."""

    CLUSTER = "cluster"
    RACK = "rack"
    LEAF = "leaf"
    POD = "pod"


def budget_title(scope: str, place: str) -> str:
    return f"{scope} {place}" if place else "the cluster"


class PowerCapMode(models.TextChoices):
    """What happens when the measured power approaches the budget."""

    OFF = "off", "off: nothing"
    OBSERVE = "observe", "observe: record when clocks would be capped"
    ACT = "act", "act: cap the clocks of the GPUs"


class PowerBudgetQuerySet(models.QuerySet["PowerBudget"]):
    def watched(self) -> Self:
        """Return the budgets whose power is compared with their limit."""
        return self.exclude(mode=PowerCapMode.OFF)


class PowerBudget(models.Model):
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="power_budgets")
    scope = models.CharField(max_length=7, choices=BudgetScope)
    place = models.CharField(max_length=40, blank=True, help_text="The rack, leaf or pod; empty for the cluster.")
    limit_w = models.PositiveIntegerField(
        validators=[MinValueValidator(1), MaxValueValidator(MAX_LIMIT_W)],
        help_text="Watts of all its nodes together, with their hosts.",
    )
    created_at = models.DateTimeField(db_default=Now())
    mode = models.CharField(
        max_length=7, choices=PowerCapMode, default=PowerCapMode.OFF, db_default=PowerCapMode.OFF, editable=False
    )
    low_cap_percent = models.PositiveSmallIntegerField(
        default=POLCA_PERCENTS[0],
        db_default=POLCA_PERCENTS[0],
        editable=False,
        help_text="Of the limit. Above it, evaluation and debug jobs are capped.",
    )
    all_cap_percent = models.PositiveSmallIntegerField(
        default=POLCA_PERCENTS[1],
        db_default=POLCA_PERCENTS[1],
        editable=False,
        help_text="Above it, evaluation and debug jobs are capped further, then all jobs.",
    )
    lowest_clock_percent = models.PositiveSmallIntegerField(
        default=POLCA_PERCENTS[2],
        db_default=POLCA_PERCENTS[2],
        editable=False,
        help_text="Above it, all jobs run at the lowest clock.",
    )
    # What `power.rules.caps` remembers from one reading to the next
    level = models.PositiveSmallIntegerField(default=0, db_default=0, editable=False, help_text="0: not capped.")
    level_since = models.DateTimeField(null=True, editable=False)
    command = models.PositiveBigIntegerField(
        default=0, db_default=0, editable=False, help_text="Number of the last command."
    )
    commanded_at = models.DateTimeField(null=True, editable=False)
    above_at = models.DateTimeField(
        null=True, editable=False, help_text="The last reading that was not low enough for a release."
    )
    # The last reading
    reading_at = models.DateTimeField(null=True, editable=False)
    measured_w = models.FloatField(null=True, editable=False)
    unread_nodes = models.PositiveIntegerField(
        default=0, db_default=0, editable=False, help_text="Nodes without a fresh reading, which count by an estimate."
    )
    command_error = models.TextField(
        blank=True, default="", db_default="", editable=False, help_text="Why the last command failed."
    )

    objects = PowerBudgetQuerySet.as_manager()

    class Meta:
        ordering = ["cluster", "scope", "place"]
        constraints = [
            models.UniqueConstraint(fields=["cluster", "scope", "place"], name="one_power_budget_per_place"),
            models.CheckConstraint(condition=Q(scope__in=BudgetScope.values), name="power_budget_scope_known"),
            models.CheckConstraint(
                condition=Q(scope=BudgetScope.CLUSTER, place="") | (~Q(scope=BudgetScope.CLUSTER) & ~Q(place="")),
                name="power_budget_has_place",
            ),
            models.CheckConstraint(condition=Q(limit_w__gt=0), name="power_budget_is_positive"),
            models.CheckConstraint(condition=Q(mode__in=PowerCapMode.values), name="power_cap_mode_known"),
            models.CheckConstraint(
                condition=Q(
                    low_cap_percent__gte=MIN_PERCENT,
                    all_cap_percent__gte=F("low_cap_percent"),
                    lowest_clock_percent__gte=F("all_cap_percent"),
                    lowest_clock_percent__lte=MAX_PERCENT,
                ),
                name="power_cap_percents_ascend",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.cluster} {self.scope} {self.place}" if self.place else str(self.cluster)

    @property
    def title(self) -> str:
        """What it limits, on pages of the cluster."""
        return budget_title(self.scope, self.place)

    @property
    def share(self) -> float | None:
        """The measured power as a share of the limit; None before the first reading."""
        return None if self.measured_w is None else self.measured_w / self.limit_w

    @property
    def cap_percents(self) -> tuple[int, int, int]:
        """The thresholds of the caps, of the limit."""
        return self.low_cap_percent, self.all_cap_percent, self.lowest_clock_percent

    @property
    def is_watched(self) -> bool:
        return self.mode != PowerCapMode.OFF

    @property
    def is_acting(self) -> bool:
        return self.mode == PowerCapMode.ACT


POWER_CAP_RETENTION = timedelta(days=400)


class PowerCap(models.Model):
    """A time in which a budget had one level of its caps."""

    budget = models.ForeignKey(PowerBudget, on_delete=models.CASCADE, related_name="caps", db_index=False)
    level = models.PositiveSmallIntegerField()
    low_mhz = models.PositiveSmallIntegerField(help_text="Clock of low-priority jobs, for an A100.")
    high_mhz = models.PositiveSmallIntegerField(help_text="Clock of all others.")
    is_observed = models.BooleanField(default=False, help_text="Mode observe: no clock was changed.")
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    peak_share = models.FloatField(help_text="The highest measured share of the limit.")

    class Meta:
        ordering = ["budget", "-began_at"]
        constraints = [
            models.UniqueConstraint(fields=["budget"], condition=Q(ended_at=None), name="one_open_cap_per_budget"),
        ]
        indexes = [
            models.Index(fields=["budget", "-began_at"], name="power_cap_by_time"),
            models.Index(fields=["ended_at"], name="power_cap_by_age"),
        ]

    def __str__(self) -> str:
        return f"{self.budget}: level {self.level} from {self.began_at:%F %T}"
