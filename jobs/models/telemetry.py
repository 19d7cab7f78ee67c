"""Samples of what nodes and GPUs do. Raw ones are kept for two days, 5-minute means for a month, hours for two years.

One row is one node at one time; the GPUs are positions in arrays, so a node with 8 GPUs costs one row, not eight.
"""

from __future__ import annotations

from datetime import timedelta

from django.contrib.postgres.fields import ArrayField
from django.db import models

from jobs.models.cluster import Cluster, Node


class Resolution(models.IntegerChoices):
    """Seconds that one row stands for; raw samples are taken every 15 s."""

    RAW = 15
    FIVE_MINUTES = 300
    HOUR = 3600


SAMPLE_RETENTION = {
    Resolution.RAW: timedelta(days=2),
    Resolution.FIVE_MINUTES: timedelta(days=31),
    Resolution.HOUR: timedelta(days=730),
}


def gpu_values_field() -> ArrayField:
    return ArrayField(models.FloatField(null=True), default=list)


class Sample(models.Model):
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="samples")
    resolution = models.PositiveSmallIntegerField(choices=Resolution, default=Resolution.RAW)
    at = models.DateTimeField(help_text="Begin of the interval that the row stands for.")
    gpu_util = gpu_values_field()  # percent
    gpu_memory_mib = gpu_values_field()
    gpu_temperature_c = gpu_values_field()  # the hottest moment in rollups, not the mean
    gpu_power_w = gpu_values_field()
    xid = gpu_values_field()  # the last Xid of each GPU, 0 for none
    # Raw samples only. Most GPUs count no errors for months, so what is 0 is left out
    counted = models.JSONField(
        default=dict, db_default={}, help_text="What else is not as in a sound node: a value for each GPU, or names."
    )

    class Meta:
        ordering = ["node", "-at"]
        constraints = [models.UniqueConstraint(fields=["node", "resolution", "at"], name="one_sample_per_interval")]
        indexes = [models.Index(fields=["resolution", "at"], name="sample_by_time")]

    def __str__(self) -> str:
        return f"{self.node} {self.at:%F %T}"


MINUTE_RETENTION = timedelta(days=31)


class Minute(models.Model):
    """A cluster in one minute: what was held and busy, what ran and what waited. GPUs that are neither held nor closed
    were free."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="minutes")
    at = models.DateTimeField(help_text="Begin of the minute.")
    gpus = models.PositiveIntegerField("GPUs")
    held = models.PositiveIntegerField()
    closed = models.PositiveIntegerField(
        help_text="GPUs that nobody held on nodes that took no work or did not answer."
    )
    busy = models.FloatField(null=True, help_text="Percent, the mean of the GPUs that were measured.")
    running = models.PositiveIntegerField()
    waiting = models.PositiveIntegerField()
    wanted = models.PositiveBigIntegerField(help_text="GPUs that the waiting jobs asked for.")

    class Meta:
        ordering = ["cluster", "-at"]
        constraints = [models.UniqueConstraint(fields=["cluster", "at"], name="one_row_per_minute")]
        indexes = [models.Index(fields=["at"], name="minute_by_age")]

    def __str__(self) -> str:
        return f"{self.cluster} {self.at:%F %T}"
