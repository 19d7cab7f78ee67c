"""Events (what happened) and cluster commands (what a cluster must still be told).

An Event is written in the transaction of the change that it records. It is never edited; a database trigger rejects
updates. A `ClusterCommand` is a command in an outbox: it is written in the transaction of the decision, and a loop
sends it to the cluster afterwards, repeatedly until it succeeds.
"""

from __future__ import annotations

from datetime import datetime
from typing import Self

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from jobs.models.cluster import Cluster, Node
from jobs.models.job import Attempt, Job


class Event(models.Model):
    """An append-only record of one change."""

    at = models.DateTimeField(db_default=Now())
    type = models.CharField(max_length=40, help_text="job.submitted, job.state_changed, node.drained …")
    cluster = models.ForeignKey(Cluster, null=True, on_delete=models.PROTECT, related_name="events")
    job = models.ForeignKey(Job, null=True, on_delete=models.PROTECT, related_name="events")
    attempt = models.ForeignKey(Attempt, null=True, on_delete=models.PROTECT, related_name="events")
    node = models.ForeignKey(Node, null=True, on_delete=models.PROTECT, related_name="events")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+")
    by = models.CharField(max_length=150, help_text="User name, or name of the loop.")
    source = models.GenericIPAddressField(null=True, help_text="Where the request came from.")
    request_id = models.CharField(max_length=64, blank=True)
    from_state = models.CharField(max_length=40, blank=True)
    to_state = models.CharField(max_length=40, blank=True)
    why = models.TextField(blank=True)
    detail = models.JSONField(default=dict)

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["job", "id"], name="event_by_job", condition=models.Q(job__isnull=False)),
            models.Index(fields=["node", "id"], name="event_by_node", condition=models.Q(node__isnull=False)),
            models.Index(fields=["at"], name="event_by_time"),
            # The state of a node at a given time: its last reported change and its last requested one
            models.Index(
                fields=["node", "-at", "-id"],
                name="event_node_state_changed",
                condition=models.Q(type="node.state_changed"),
            ),
            models.Index(
                fields=["node", "-at", "-id"],
                name="event_node_drain_requested",
                condition=models.Q(type__in=("node.drained", "node.resumed")),
            ),
            models.Index(
                fields=["node", "-at", "-id"], name="event_node_tested", condition=models.Q(type="node.tested")
            ),
            models.Index(fields=["cluster", "id"], name="event_of_policy", condition=models.Q(type="policy.changed")),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.from_state}→{self.to_state}" if self.to_state else self.type


class ClusterCommandKind(models.TextChoices):
    SUBMIT = "submit"
    CANCEL = "cancel"
    CANCEL_ID = "cancel_id"  # a job on the cluster that is not an attempt of Acme; `reason` is its id there
    DRAIN = "drain"
    RESUME = "resume"
    SIGNAL = "signal"  # request a checkpoint
    TEST = "test"
    STACKS = "stacks"  # request the stacks of its processes
    SLEEP = "sleep"  # power the node down
    WAKE = "wake"


MAX_STOP_TRIES = 10  # about five minutes; TERM and KILL take 30 s
NODE_COMMANDS = (ClusterCommandKind.DRAIN, ClusterCommandKind.RESUME)  # the newest of these replaces an older open one
POWER_COMMANDS = (ClusterCommandKind.SLEEP, ClusterCommandKind.WAKE)  # as above


class ClusterCommandQuerySet(models.QuerySet["ClusterCommand"]):
    def open(self) -> Self:
        return self.filter(done_at__isnull=True)

    def due(self, now: datetime) -> Self:
        """Return open commands that are due and that no worker is currently sending."""
        return self.open().filter(due_at__lte=now)

    def hanging(self) -> Self:
        """Return stops that were requested many times, 30 s apart, and whose attempt has not ended."""
        return self.open().filter(kind=ClusterCommandKind.CANCEL, tries__gte=MAX_STOP_TRIES)

    def with_newer_checkpoint(self) -> Self:
        """Return commands whose attempt has saved a checkpoint to remote storage since the command was created."""
        return self.filter(attempt__saved_at__gt=models.F("created_at"))


class ClusterCommand(models.Model):
    """A command for a cluster, sent at least once. Open while `done_at` is null."""

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="commands")
    kind = models.CharField(max_length=10, choices=ClusterCommandKind)
    attempt = models.ForeignKey(Attempt, null=True, on_delete=models.PROTECT, related_name="commands")
    # Set together with an attempt if the command evicts the attempt from this node
    node = models.ForeignKey(Node, null=True, on_delete=models.PROTECT, related_name="commands")
    reason = models.TextField(blank=True)
    created_at = models.DateTimeField(db_default=Now())
    due_at = models.DateTimeField(
        db_default=Now(),
        help_text="Earliest time of the next try. Moved into the future while a worker sends the command.",
    )
    tries = models.PositiveIntegerField(default=0, help_text="Incremented before each try; also the fencing token.")
    tries_without_effect = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Number of tries that are known to have had no effect on the cluster."
    )
    is_being_sent = models.BooleanField(
        default=False, db_default=False, help_text="A worker sends the command, or died while sending it."
    )
    done_at = models.DateTimeField(null=True)
    outcome = models.TextField(blank=True)

    objects = ClusterCommandQuerySet.as_manager()

    class Meta:
        ordering = ["id"]
        indexes = [
            models.Index(
                fields=["cluster", "due_at", "id"], name="command_due", condition=models.Q(done_at__isnull=True)
            )
        ]
        constraints = [
            models.UniqueConstraint(
                # A repeated decision reuses the open command instead of adding a second one
                fields=["attempt", "kind"],
                condition=models.Q(done_at__isnull=True),
                name="one_open_command_per_attempt",
            ),
            models.UniqueConstraint(
                fields=["node", "kind"],
                condition=models.Q(done_at__isnull=True, attempt__isnull=True),
                name="one_open_command_per_node",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.attempt or self.node}"
