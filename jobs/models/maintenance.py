"""Maintenance: nodes of a cluster that people want for themselves, from a time until another."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Self

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from jobs.models.cluster import Cluster, DrainMode, Node

DEFAULT_LEAD = timedelta(days=1)  # as long as a job without a limit is taken to run where nothing is known of it


class MaintenanceQuerySet(models.QuerySet["Maintenance"]):
    def open(self) -> Self:
        """Planned or going on; also one that is over and whose nodes are not all open again."""
        return self.filter(closed_at=None)

    def ahead(self, now: datetime) -> Self:
        """Those that keep jobs from starting."""
        return self.open().filter(end_at__gt=now)


class Maintenance(models.Model):
    """Who is told to leave when it begins says the mode, as for a drain: it is one."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="maintenances")
    name = models.CharField(max_length=60)
    reason = models.TextField()
    whole_cluster = models.BooleanField(default=False, help_text="Also nodes that it reports later.")
    nodes = models.ManyToManyField(Node, related_name="maintenances", blank=True)
    spared = models.ManyToManyField(Node, related_name="+", blank=True, help_text="Resumed by somebody while it lasts.")
    start_at = models.DateTimeField()
    end_at = models.DateTimeField()
    mode = models.CharField(max_length=10, choices=DrainMode, default=DrainMode.FINISH)
    lead = models.DurationField(
        default=DEFAULT_LEAD, help_text="Jobs without a time limit do not start there so long before."
    )
    by = models.CharField(max_length=150)
    created_at = models.DateTimeField(db_default=Now())
    begun_at = models.DateTimeField(null=True, help_text="The first node was closed.")
    cancelled_at = models.DateTimeField(null=True)
    closed_at = models.DateTimeField(null=True, help_text="All is as it was before.")

    objects = MaintenanceQuerySet.as_manager()

    class Meta:
        ordering = ["start_at", "id"]
        indexes = [models.Index(fields=["cluster", "start_at"], name="maintenance_ahead", condition=Q(closed_at=None))]
        constraints = [
            models.CheckConstraint(condition=Q(end_at__gt=models.F("start_at")), name="maintenance_ends_after_start"),
            models.CheckConstraint(condition=Q(mode__in=list(DrainMode)), name="maintenance_mode_known"),
            models.UniqueConstraint(
                fields=["cluster", "name"], condition=Q(closed_at=None), name="one_open_maintenance_per_name"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def affected_nodes(self) -> models.QuerySet[Node]:
        """Its nodes, as far as they are in it still."""
        here = Node.objects.filter(cluster=self.cluster_id)
        chosen = here if self.whole_cluster else here.filter(maintenances=self)
        return chosen.exclude(pk__in=self.spared.values("pk"))

    def phase(self, now: datetime) -> str:
        if self.cancelled_at:
            return "cancelled"
        if self.closed_at or now >= self.end_at:
            return "over"
        return "going on" if now >= self.start_at else "planned"

    def is_in_progress(self, now: datetime) -> bool:
        """Whether its nodes should be closed."""
        return self.phase(now) == "going on"
