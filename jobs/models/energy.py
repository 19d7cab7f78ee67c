"""Energy of attempts by the hour, and what energy costs. Watts are in `telemetry`, kept for two days."""

from __future__ import annotations

from datetime import timedelta

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from jobs.models.cluster import Cluster
from jobs.models.job import Attempt

ENERGY_RETENTION = timedelta(days=400)


class EnergyHour(models.Model):
    """The energy in one hour of the GPUs that an attempt held, or that no attempt held. Written by
    `scheduling.power.loops.energy`, which adds to it as samples arrive."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="energy_hours", db_index=False)
    start = models.DateTimeField()
    attempt = models.ForeignKey(
        Attempt, null=True, on_delete=models.CASCADE, related_name="energy_hours", help_text="Empty: not allocated."
    )
    counter_j = models.FloatField(default=0.0, help_text="Joules by the GPUs' energy counters.")
    power_j = models.FloatField(default=0.0, help_text="Joules by the GPUs' measured power.")
    estimate_j = models.FloatField(default=0.0, help_text="Joules by the power of the GPU model at its utilization.")
    host_j = models.FloatField(default=0.0, help_text="Joules of the nodes beside their GPUs, as a share.")
    gpu_s = models.FloatField(default=0.0, help_text="GPU-seconds that the values cover.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["cluster", "start", "attempt"], name="one_energy_row_per_hour", nulls_distinct=False
            )
        ]

    def __str__(self) -> str:
        return f"{self.attempt_id or 'idle'}: {self.start:%F %H:00}"


class EnergyClock(models.Model):
    """Up to which time the samples of a cluster are in the energy of its attempts."""

    cluster = models.OneToOneField(Cluster, on_delete=models.CASCADE, related_name="energy_clock")
    counted_until = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.cluster_id}: {self.counted_until:%F %T}"


class EnergyPrice(models.Model):
    """Price and carbon intensity of electricity in one hour. An empty value means the constant of the cluster."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="energy_prices", db_index=False)
    start = models.DateTimeField(help_text="Start of the hour (UTC).")
    kwh_price = models.FloatField(null=True, validators=[MinValueValidator(-1_000.0), MaxValueValidator(1_000_000.0)])
    co2_g_per_kwh = models.FloatField(null=True, validators=[MinValueValidator(0.0), MaxValueValidator(10_000.0)])

    class Meta:
        constraints = [models.UniqueConstraint(fields=["cluster", "start"], name="one_energy_price_per_hour")]

    def __str__(self) -> str:
        return f"{self.start:%F %H:00}"
