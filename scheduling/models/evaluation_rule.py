"""Evaluation rules, and the checkpoints that each rule has processed."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from jobs.models import Cluster, Team
from scheduling.models.evaluation import Campaign


class RuleSelection(models.TextChoices):
    NEWEST = "newest", "newest only"
    EVERY = "every", "every checkpoint"


class EvaluationRule(models.Model):
    """The directory to check, the campaigns to start, and the limits on their number."""

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="evaluation_rules")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="evaluation_rules")
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="evaluation_rules")
    directory = models.CharField(max_length=500)
    suite = models.CharField(max_length=60, help_text="NAME for its newest version at the time, or NAME@2.")
    pattern = models.CharField(max_length=100, blank=True, help_text="Of the name within the directory; * is anything.")
    which = models.CharField(max_length=6, choices=RuleSelection, default=RuleSelection.NEWEST)
    interval = models.DurationField(default=timedelta(0), help_text="The least time between two campaigns.")
    per_day = models.PositiveIntegerField(default=24, help_text="At most so many campaigns in 24 hours.")
    nodes = models.PositiveIntegerField(null=True)
    checkpoint_gb = models.FloatField(default=14.0)
    is_enabled = models.BooleanField(default=True)
    started = models.PositiveBigIntegerField(
        default=0, help_text="Campaigns; who looked before it changed starts nothing."
    )
    based_at = models.DateTimeField(null=True, help_text="When what had been there before was set aside.")
    looked_at = models.DateTimeField(null=True)
    why = models.TextField(blank=True, help_text="What it waits for, or what is wrong.")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["looked_at"], name="evaluation_rule_on", condition=models.Q(is_enabled=True)),
        ]

    def __str__(self) -> str:
        return f"evaluation rule {self.pk}"


class ProcessedCheckpoint(models.Model):
    """A checkpoint that a rule has processed: evaluated, skipped, or older than the rule."""

    rule = models.ForeignKey(EvaluationRule, on_delete=models.CASCADE, related_name="processed_checkpoints")
    path = models.CharField(max_length=500)
    campaign = models.ForeignKey(Campaign, null=True, on_delete=models.SET_NULL, related_name="processed_checkpoints")
    seen_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["rule", "path"], name="a_rule_sees_a_checkpoint_once")]

    def __str__(self) -> str:
        return self.path
