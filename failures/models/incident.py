"""Incidents: failures grouped by cause. A failed node that affects five jobs is one incident."""

from __future__ import annotations

from typing import Self

from django.db import models
from django.db.models.functions import Now

from failures.diagnosis.labels import UNKNOWN
from failures.diagnosis.values import FailureCategory
from failures.incidents.grouping import IncidentScope
from jobs.core.lifecycle import StateBadge
from jobs.models import Cluster, Job, Node


class IncidentState(models.TextChoices):
    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"


INCIDENT_BADGES: dict[str, tuple[str, str]] = {
    IncidentState.OPEN: ("bad", "●"),
    IncidentState.ACKNOWLEDGED: ("warn", "◐"),
    IncidentState.RESOLVED: ("good", "✓"),
}


PLATFORM_PROBLEM = ~models.Q(scope=IncidentScope.JOB) | models.Q(category=FailureCategory.INFRASTRUCTURE)


class IncidentQuerySet(models.QuerySet["Incident"]):
    def unresolved(self) -> Self:
        return self.exclude(state=IncidentState.RESOLVED)

    def of_platform(self) -> Self:
        """Incidents of hardware, the network or a service, for operators."""
        return self.filter(PLATFORM_PROBLEM)

    def of_programs(self) -> Self:
        """Incidents that stay within a job, for its author."""
        return self.exclude(PLATFORM_PROBLEM)

    def affecting_jobs(self, jobs: models.QuerySet[Job]) -> Self:
        """Incidents in which any of these jobs failed or was slowed down."""
        # One subquery per incident, of which a page shows few. A join would read all failures of these jobs
        matching_jobs = jobs.filter(pk=models.OuterRef("attempt__job"))
        failed, slowed = (
            models.Exists(of.related_model.objects.filter(models.Exists(matching_jobs), incident=models.OuterRef("pk")))
            for of in (Incident._meta.get_field("diagnoses"), Incident._meta.get_field("anomalies"))
        )
        return self.filter(failed | slowed)


class Incident(models.Model):
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="incidents")
    root_cause = models.CharField(max_length=40, default=UNKNOWN)
    category = models.CharField(max_length=16, choices=[(c.value, c.value) for c in FailureCategory])
    scope = models.CharField(max_length=8, choices=[(s.value, s.value) for s in IncidentScope])
    subject = models.CharField(max_length=200, help_text="Affected node, service or job.")
    words = models.CharField(max_length=200, blank=True, help_text="Shape of the first line of evidence.")
    state = models.CharField(max_length=12, choices=IncidentState, default=IncidentState.OPEN)
    first_symptom_at = models.DateTimeField()
    last_symptom_at = models.DateTimeField()
    opened_at = models.DateTimeField(db_default=Now())
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_by = models.CharField(max_length=150, blank=True)
    resolved_at = models.DateTimeField(null=True)
    resolved_by = models.CharField(max_length=150, blank=True)
    resolved_why = models.TextField(blank=True)
    attempts = models.PositiveIntegerField(default=0, help_text="Number of failed attempts.")
    gpu_hours_lost = models.FloatField("GPU-hours lost", default=0)
    lead = models.ForeignKey(
        "failures.Diagnosis",
        null=True,
        on_delete=models.PROTECT,
        related_name="+",
        help_text="Diagnosis that names the cause.",
    )
    nodes = models.ManyToManyField(Node, related_name="incidents")

    objects = IncidentQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(
                fields=["cluster", "-last_symptom_at"],
                name="incident_unresolved",
                condition=~models.Q(state=IncidentState.RESOLVED),
            ),
            models.Index(fields=["-last_symptom_at"], name="incident_by_time"),
        ]
        constraints = [
            models.CheckConstraint(condition=models.Q(state__in=IncidentState.values), name="incident_state_known"),
        ]

    def __str__(self) -> str:
        return f"incident {self.pk}"

    @property
    def badge(self) -> StateBadge:
        tone, icon = INCIDENT_BADGES[self.state]
        return StateBadge(label=self.state.upper(), code=self.state.upper(), tone=tone, icon=icon)

    @property
    def handled_by(self) -> str:
        """Who resolved or acknowledged it; empty if nobody did."""
        return self.resolved_by if self.state == IncidentState.RESOLVED else self.acknowledged_by

    @property
    def title(self) -> str:
        cause = "Unknown cause" if self.root_cause == UNKNOWN else self.root_cause
        return f"{cause} · {self.subject}" if self.scope != IncidentScope.SERVICE else cause
