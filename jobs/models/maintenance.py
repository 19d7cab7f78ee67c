"""Maintenance windows: nodes of a cluster that are closed for a period."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Self

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from jobs.models.cluster import Cluster, DrainMode, Node

DEFAULT_RUN_TIME = timedelta(days=1)  # the run time that is assumed for a job without a time limit


class MaintenanceQuerySet(models.QuerySet["Maintenance"]):
    def open(self) -> Self:
        """Return windows that are planned or in progress, and finished ones whose nodes are not all open again."""
        return self.filter(closed_at=None)

    def ahead(self, now: datetime) -> Self:
        """Return windows that prevent jobs from starting."""
        return self.open().filter(end_at__gt=now)


class Maintenance(models.Model):
    """A planned drain. `mode` decides what happens to jobs that still run when it starts."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="maintenances")
    name = models.CharField(max_length=60)
    reason = models.TextField()
    whole_cluster = models.BooleanField(default=False, help_text="Includes nodes that the cluster reports later.")
    nodes = models.ManyToManyField(Node, related_name="maintenances", blank=True)
    excluded_nodes = models.ManyToManyField(
        Node, related_name="+", blank=True, help_text="Nodes that were resumed during the maintenance."
    )
    start_at = models.DateTimeField()
    end_at = models.DateTimeField()
    mode = models.CharField(max_length=10, choices=DrainMode, default=DrainMode.FINISH)
    lead_time = models.DurationField(
        default=DEFAULT_RUN_TIME,
        help_text="How long before the start jobs without a time limit stop starting on these nodes.",
    )
    by = models.CharField(max_length=150)
    created_at = models.DateTimeField(db_default=Now())
    begun_at = models.DateTimeField(null=True, help_text="Time at which the first node was closed.")
    cancelled_at = models.DateTimeField(null=True)
    closed_at = models.DateTimeField(null=True, help_text="Time at which all nodes were open again.")

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
        """Return the nodes of the window without those that an operator has resumed since."""
        nodes = Node.objects.filter(cluster=self.cluster_id)
        selected = nodes if self.whole_cluster else nodes.filter(maintenances=self)
        return selected.exclude(pk__in=self.excluded_nodes.values("pk"))

    def phase(self, now: datetime) -> str:
        if self.cancelled_at:
            return "cancelled"
        # A window can be over while its nodes are still being opened: see `open`
        if self.closed_at or now >= self.end_at:
            return "over"
        return "going on" if now >= self.start_at else "planned"

    def is_pending(self, now: datetime) -> bool:
        """Return whether the window can still be changed."""
        return self.phase(now) in ("planned", "going on")

    def is_in_progress(self, now: datetime) -> bool:
        """Return whether the nodes of the window should be closed."""
        return self.phase(now) == "going on"
