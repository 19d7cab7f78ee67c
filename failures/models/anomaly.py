"""Anomalies: findings of detectors about a running attempt or a node, for as long as they last.

An anomaly is not a failure: a slow attempt keeps running, and a later failure gets its own diagnosis. Anomalies are
evidence of incidents and inputs of recovery decisions, and the ledger computes the slow time from them.
"""

from __future__ import annotations

from typing import Self

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from failures.detection.findings import Severity, SymptomType
from failures.models.incident import Incident
from jobs.core.lifecycle import StateBadge, StatusBadge
from jobs.models import Attempt, Cluster, Node

SEVERITY_BADGES: dict[str, tuple[str, str]] = {
    Severity.NOTE: ("quiet", "◌"),
    Severity.WARN: ("warn", "▲"),
    Severity.BAD: ("bad", "●"),
}
SYMPTOM_LABELS = {SymptomType.SLOW: "slow steps", SymptomType.NODE: "node health"}


class AnomalyQuerySet(models.QuerySet["Anomaly"]):
    def not_ended(self) -> Self:
        return self.filter(ended_at__isnull=True)

    def of_node_health(self) -> Self:
        return self.filter(symptom=SymptomType.NODE)

    def slow(self) -> Self:
        return self.filter(symptom=SymptomType.SLOW)


class Anomaly(models.Model):
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="anomalies")
    symptom = models.CharField(max_length=10, choices=[(one.value, one.value) for one in SymptomType])
    severity = models.CharField(max_length=4, choices=[(one.value, one.value) for one in Severity])
    attempt = models.ForeignKey(Attempt, null=True, on_delete=models.CASCADE, related_name="anomalies")
    node = models.ForeignKey(Node, null=True, on_delete=models.CASCADE, related_name="anomalies")
    since = models.DateTimeField()
    seen_at = models.DateTimeField(db_default=Now(), help_text="Time of the last detection.")
    ended_at = models.DateTimeField(null=True)
    why = models.TextField()
    observed = models.FloatField(default=0, help_text="For slow steps: measured seconds per step.")
    expected = models.FloatField(default=0)
    incident = models.ForeignKey(Incident, null=True, on_delete=models.PROTECT, related_name="anomalies")

    objects = AnomalyQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["attempt", "symptom"],
                condition=Q(ended_at__isnull=True, attempt__isnull=False),
                name="one_ongoing_anomaly_per_attempt",
            ),
            models.UniqueConstraint(
                fields=["node", "symptom"],
                condition=Q(ended_at__isnull=True, attempt__isnull=True),
                name="one_ongoing_anomaly_per_node",
            ),
            models.CheckConstraint(
                condition=Q(attempt__isnull=False) | Q(node__isnull=False), name="anomaly_has_a_subject"
            ),
        ]
        indexes = [models.Index(fields=["cluster"], name="anomaly_ongoing", condition=Q(ended_at__isnull=True))]

    def __str__(self) -> str:
        return f"{SYMPTOM_LABELS.get(self.kind, self.symptom)} of {self.attempt or self.node}"

    @property
    def kind(self) -> SymptomType:
        return SymptomType(self.symptom)

    @property
    def badge(self) -> StateBadge:
        tone, icon = SEVERITY_BADGES[self.severity]
        return StateBadge(label=SYMPTOM_LABELS.get(self.kind, self.symptom), code=self.symptom, tone=tone, icon=icon)

    @property
    def ended_badge(self) -> StatusBadge:
        return StatusBadge(tone="quiet", icon="✓", label="ended")

    @property
    def since_label(self) -> str:
        """What stands before the time of the first detection."""
        return self.badge.label if self.ended_at else "since"

    @property
    def pace_text(self) -> str:
        if not self.expected or not self.observed:
            return ""
        return f"{self.observed:.2f} s per step, {self.expected:.2f} s before"

    @property
    def times(self) -> float:
        """The ratio of measured to predicted step time."""
        return self.observed / self.expected if self.expected > 0 else 1.0
