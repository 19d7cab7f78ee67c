"""Telemetry of nodes and GPUs.

Raw samples are kept for two days, 5-minute means for a month, hourly means for two years. One row is one node at one
time. GPUs are positions in arrays, so a node with 8 GPUs needs one row, not eight.
"""

from __future__ import annotations

from datetime import timedelta

from django.contrib.postgres.fields import ArrayField
from django.db import models

from jobs.models.cluster import Cluster, Node


class Resolution(models.IntegerChoices):
    """Seconds that one row stands for. Raw samples are taken every 15 s."""

    RAW = 15
    FIVE_MINUTES = 300
    HOUR = 3600


SAMPLE_RETENTION = {
    Resolution.RAW: timedelta(days=2),
    Resolution.FIVE_MINUTES: timedelta(days=31),
    Resolution.HOUR: timedelta(days=730),
}


def gpu_values_field() -> ArrayField:
    # Null elements are GPUs without a reading
    return ArrayField(models.FloatField(null=True), default=list)


class Sample(models.Model):
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="samples")
    resolution = models.PositiveSmallIntegerField(choices=Resolution, default=Resolution.RAW)
    at = models.DateTimeField(help_text="Start of the interval that the row covers.")
    gpu_util = gpu_values_field()  # percent
    gpu_memory_mib = gpu_values_field()
    gpu_temperature_c = gpu_values_field()  # rollups store the maximum, not the mean
    gpu_power_w = gpu_values_field()
    xid = gpu_values_field()  # the last Xid of each GPU, 0 for none
    # Raw samples only: `scheduling.power.loops.energy` adds them up by the hour
    gpu_energy_mj = ArrayField(models.FloatField(null=True), default=list, db_default=[])
    node_power_w = models.FloatField(null=True)
    # Raw samples only. Zeros are omitted, because most GPUs count no errors for months
    counted = models.JSONField(
        default=dict,
        db_default={},
        help_text="Other counters that differ from a healthy node: one value per GPU, or names.",
    )

    class Meta:
        ordering = ["node", "-at"]
        constraints = [models.UniqueConstraint(fields=["node", "resolution", "at"], name="one_sample_per_interval")]
        indexes = [models.Index(fields=["resolution", "at"], name="sample_by_time")]

    def __str__(self) -> str:
        return f"{self.node} {self.at:%F %T}"


MINUTE_RETENTION = timedelta(days=31)


class ClusterMinute(models.Model):
    """The load of a cluster in one minute. GPUs that are neither allocated nor closed were free."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="minutes")
    at = models.DateTimeField(help_text="Start of the minute.")
    gpus = models.PositiveIntegerField("GPUs")
    allocated = models.PositiveIntegerField()
    closed = models.PositiveIntegerField(help_text="Free GPUs on nodes that did not accept jobs or did not respond.")
    utilization = models.FloatField(null=True, help_text="Mean over the measured GPUs, in percent.")
    running = models.PositiveIntegerField()
    waiting = models.PositiveIntegerField()
    requested = models.PositiveBigIntegerField(help_text="GPUs requested by the waiting jobs.")
    busy_nodes = models.PositiveIntegerField(null=True, help_text="Nodes with jobs. Null: not counted.")

    class Meta:
        ordering = ["cluster", "-at"]
        constraints = [models.UniqueConstraint(fields=["cluster", "at"], name="one_row_per_minute")]
        indexes = [models.Index(fields=["at"], name="minute_by_age")]

    def __str__(self) -> str:
        return f"{self.cluster} {self.at:%F %T}"
