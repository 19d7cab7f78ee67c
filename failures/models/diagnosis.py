"""Why an attempt failed: the verdict, its evidence, and its reviews.

A row starts as work to do (`judged_at` is empty). The loop fills it in two steps: first the verdict, which users wait
for, then the bundle. `root_cause` is the current cause; `engine_root_cause` is the cause that the engine named, which
never changes, so that rules can be learned from corrections. Events record the history of reviews.
"""

from __future__ import annotations

import zlib
from datetime import datetime, timedelta
from typing import Any, Self

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models.functions import Now

from failures.diagnosis.labels import NONE, UNKNOWN
from failures.diagnosis.values import Blame, FailureCategory, RestartAdvice
from failures.models.incident import Incident
from jobs.core.lifecycle import StateBadge
from jobs.models import Attempt, Cluster, Job, Node

CATEGORY_CHOICES = [(one.value, one.value) for one in FailureCategory]

CATEGORY_BADGES: dict[str, tuple[str, str]] = {
    FailureCategory.INFRASTRUCTURE: ("bad", "⚡"),
    FailureCategory.FRAMEWORK: ("warn", "▲"),
    FailureCategory.SCRIPT: ("waiting", "✎"),
    FailureCategory.NONE: ("good", "✓"),
    FailureCategory.UNKNOWN: ("quiet", "?"),
}


def category_badge(root_cause: str, category: str) -> StateBadge:
    tone, icon = CATEGORY_BADGES.get(category, CATEGORY_BADGES[FailureCategory.UNKNOWN])
    return StateBadge(label=root_cause, code=root_cause, tone=tone, icon=icon)


class DiagnosisReview(models.TextChoices):
    NONE = "", "not reviewed"
    CONFIRMED = "confirmed"
    CORRECTED = "corrected"


class DiagnosisQuerySet(models.QuerySet["Diagnosis"]):
    def open(self) -> Self:
        """Rows with work to do: the verdict or the bundle is missing."""
        return self.filter(bundle_stored_at__isnull=True)

    def judged(self) -> Self:
        return self.filter(judged_at__isnull=False)

    def failures(self) -> Self:
        """Diagnoses of real failures, without attempts in which nothing failed."""
        return self.judged().exclude(root_cause=NONE)

    def of_jobs(self, jobs: models.QuerySet[Job]) -> Self:
        return self.filter(attempt__job__in=jobs.values("pk"))

    def between(self, since: datetime, until: datetime) -> Self:
        return self.filter(failed_at__gte=since, failed_at__lt=until)


class Diagnosis(models.Model):
    attempt = models.OneToOneField(Attempt, on_delete=models.PROTECT, related_name="diagnosis")
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="diagnoses")
    failed_at = models.DateTimeField(help_text="When the attempt ended.")

    # the work of the loop
    recorded_at = models.DateTimeField(db_default=Now())
    due_at = models.DateTimeField(
        db_default=Now(), help_text="When the next work is due. A claim moves it to the end of the lease."
    )
    tries = models.PositiveSmallIntegerField(
        default=0, help_text="Number of tries, counted before each one. Also the fencing token."
    )
    last_error = models.TextField(blank=True, help_text="Error of the last try.")
    judged_at = models.DateTimeField(null=True)
    bundle_stored_at = models.DateTimeField(
        null=True, help_text="When the evidence bundle was stored, which completes the work."
    )

    # the verdict
    root_cause = models.CharField(max_length=40, default=UNKNOWN)
    engine_root_cause = models.CharField("engine diagnosis", max_length=40, default=UNKNOWN)
    category = models.CharField(max_length=16, choices=CATEGORY_CHOICES, default=FailureCategory.UNKNOWN.value)
    confidence = models.FloatField(default=0, validators=[MinValueValidator(0), MaxValueValidator(1)])
    evidence = models.JSONField(default=list)
    chain = models.JSONField(default=list)
    suspect_nodes = models.JSONField(default=list)
    suspect_gpus = models.JSONField("suspect GPUs", default=list)
    restart_helps = models.CharField(
        max_length=8, choices=[(r.value, r.value) for r in RestartAdvice], default="unknown"
    )
    restart_reason = models.TextField(blank=True)
    action = models.TextField(blank=True)
    alternatives = models.JSONField(default=list)
    blame = models.CharField(max_length=10, choices=[(b.value, b.value) for b in Blame], blank=True)
    engine = models.CharField(max_length=20, blank=True)
    rules_version = models.CharField(max_length=64, blank=True)
    notes = models.JSONField(default=list)
    lines = models.PositiveBigIntegerField("lines of the log", default=0)
    size = models.PositiveBigIntegerField("bytes of the log", default=0)

    # the cost
    gpus = models.PositiveIntegerField("GPUs", default=0)
    ran = models.DurationField(
        default=timedelta, help_text="From the start of the attempt to its end, as the cluster reports them."
    )
    lost = models.DurationField(default=timedelta, help_text="Run time since the last checkpoint.")

    # the evidence, stored permanently
    bundle = models.BinaryField(null=True, help_text="At most 64 KiB of text, compressed.")
    bundle_size = models.PositiveIntegerField(default=0)

    # the review
    review = models.CharField(max_length=10, choices=DiagnosisReview, default=DiagnosisReview.NONE, blank=True)
    reviewed_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+")
    reviewed_at = models.DateTimeField(null=True)
    review_note = models.TextField(blank=True)

    incident = models.ForeignKey(Incident, null=True, on_delete=models.PROTECT, related_name="diagnoses")
    nodes = models.ManyToManyField(Node, related_name="diagnoses", help_text="Suspect nodes that are known to Acme.")

    objects = DiagnosisQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "diagnoses"
        indexes = [
            models.Index(fields=["due_at"], name="diagnosis_due", condition=models.Q(bundle_stored_at__isnull=True)),
            models.Index(fields=["failed_at"], name="diagnosis_by_time"),
            models.Index(fields=["root_cause", "-failed_at"], name="diagnosis_by_cause"),
        ]

    def __str__(self) -> str:
        return f"{self.root_cause} of {self.attempt}"

    @property
    def badge(self) -> StateBadge:
        return category_badge(self.root_cause, self.category)

    @property
    def is_confirmed(self) -> bool:
        return self.review == DiagnosisReview.CONFIRMED

    @property
    def is_corrected(self) -> bool:
        return self.review == DiagnosisReview.CORRECTED

    @property
    def awaits_review(self) -> bool:
        """Whether somebody can confirm it. An unknown cause can only be corrected."""
        return self.review == DiagnosisReview.NONE and self.root_cause != UNKNOWN

    @property
    def percent(self) -> int:
        return round(self.confidence * 100)

    @property
    def gpu_hours(self) -> float:
        return self.gpus * self.ran.total_seconds() / 3600

    @property
    def gpu_hours_lost(self) -> float:
        return self.gpus * self.lost.total_seconds() / 3600

    @property
    def bundle_text(self) -> str:
        return zlib.decompress(self.bundle).decode() if self.bundle else ""

    @property
    def first_line(self) -> dict[str, Any] | None:
        return self.evidence[0] if self.evidence else None
