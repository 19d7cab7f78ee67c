"""Which clusters are asked less often because they do not answer in time."""

from __future__ import annotations

from enum import StrEnum

from django.db import models

from jobs.models import Cluster


class ClusterEndpoint(StrEnum):
    """What of a cluster is called: its scheduler, the exporter of its GPUs, the storage of its logs."""

    CONTROL = "control"
    TELEMETRY = "telemetry"
    LOGS = "logs"


ENDPOINT_NAMES = [
    (ClusterEndpoint.CONTROL.value, "slurmrestd"),
    (ClusterEndpoint.TELEMETRY.value, "telemetry"),
    (ClusterEndpoint.LOGS.value, "log storage"),
]


class OpenCircuit(models.Model):
    """One row for each endpoint that does not answer in time; an answer deletes it."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="open_circuits")
    endpoint = models.CharField(max_length=10, choices=ENDPOINT_NAMES)
    address = models.CharField(max_length=300, help_text="A row of another address counts no more.")
    timeouts = models.PositiveIntegerField(default=0, help_text="In a row.")
    since = models.DateTimeField()
    retry_at = models.DateTimeField()
    why = models.TextField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["cluster", "endpoint"], name="one_circuit_per_endpoint")]

    def __str__(self) -> str:
        return f"{self.cluster}: {self.endpoint} did not answer in time, {self.timeouts} times"
