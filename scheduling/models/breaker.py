"""Open circuits: the endpoints of clusters that receive fewer requests because they do not respond in time."""

from __future__ import annotations

from enum import StrEnum

from django.db import models

from jobs.models import Cluster


class ClusterEndpoint(StrEnum):
    """The endpoints of a cluster: its scheduler, its GPU exporter and its log storage."""

    CONTROL = "control"
    TELEMETRY = "telemetry"
    LOGS = "logs"


ENDPOINT_NAMES = [
    (ClusterEndpoint.CONTROL.value, "slurmrestd"),
    (ClusterEndpoint.TELEMETRY.value, "telemetry"),
    (ClusterEndpoint.LOGS.value, "log storage"),
]


class OpenCircuit(models.Model):
    """One row per endpoint that does not respond in time. The next response deletes the row."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="open_circuits")
    endpoint = models.CharField(max_length=10, choices=ENDPOINT_NAMES)
    address = models.CharField(max_length=300, help_text="A row of another address counts no more.")
    timeouts = models.PositiveIntegerField(default=0, help_text="In a row.")
    since = models.DateTimeField()
    retry_at = models.DateTimeField()
    why = models.TextField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["cluster", "endpoint"], name="one_circuit_per_endpoint")]

    @property
    def is_retried_on_request(self) -> bool:
        """Return whether a connection test can close it. The backoff of log storage is per process."""
        return self.endpoint != ClusterEndpoint.LOGS

    def __str__(self) -> str:
        return f"{self.cluster}: {self.endpoint} did not answer in time, {self.timeouts} times"
