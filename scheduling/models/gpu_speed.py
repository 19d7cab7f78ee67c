"""Speeds of jobs on GPU models, as operators know them."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from jobs.models import Cluster

MAX_PATTERN_LENGTH = 120


class GpuSpeed(models.Model):
    """How fast the jobs of a cluster whose name matches a pattern are on one GPU model."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="gpu_speeds", db_index=False)
    pattern = models.CharField(
        max_length=MAX_PATTERN_LENGTH, help_text="A job name; * stands for any text, ? for one character."
    )
    gpu_model = models.CharField(max_length=40)
    speed = models.FloatField(help_text="Steps per second, or any unit that all models of the pattern share.")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ["cluster", "pattern", "gpu_model"]
        constraints = [
            models.UniqueConstraint(fields=["cluster", "pattern", "gpu_model"], name="one_speed_per_gpu_model"),
            models.CheckConstraint(condition=Q(speed__gt=0), name="gpu_speed_is_positive"),
            models.CheckConstraint(condition=~Q(pattern="") & ~Q(gpu_model=""), name="gpu_speed_is_named"),
        ]

    def __str__(self) -> str:
        return f"{self.pattern} on {self.gpu_model}: {self.speed:g}"
