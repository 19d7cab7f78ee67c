"""Power budgets: what the nodes of a cluster, or of one of its racks, leaves or pods may draw together."""

from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from jobs.models import Cluster

MAX_LIMIT_W = 1_000_000_000


class BudgetScope(models.TextChoices):
    """Which nodes: all, or those with the same value of this column."""

    CLUSTER = "cluster"
    RACK = "rack"
    LEAF = "leaf"
    POD = "pod"


def budget_title(scope: str, place: str) -> str:
    return f"{scope} {place}" if place else "the cluster"


class PowerBudget(models.Model):
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="power_budgets")
    scope = models.CharField(max_length=7, choices=BudgetScope)
    place = models.CharField(max_length=40, blank=True, help_text="The rack, leaf or pod; empty for the cluster.")
    limit_w = models.PositiveIntegerField(
        validators=[MinValueValidator(1), MaxValueValidator(MAX_LIMIT_W)],
        help_text="Watts of all its nodes together, with their hosts.",
    )
    created_at = models.DateTimeField(db_default=Now())

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
        ]

    def __str__(self) -> str:
        return f"{self.cluster} {self.scope} {self.place}" if self.place else str(self.cluster)

    @property
    def title(self) -> str:
        """What it limits, on pages of the cluster."""
        return budget_title(self.scope, self.place)
