"""What happened, and what clusters were asked to do about it.

An Event is written in the transaction of the change it tells of and is never edited: a database trigger refuses it.
A Deed is the other half of a decision: the row says that a cluster must be told, in the same transaction; the loop
tells it afterwards, as often as it takes.
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
    at = models.DateTimeField(db_default=Now())
    what = models.CharField(max_length=40, help_text="job.submitted, job.moved, node.drained …")
    cluster = models.ForeignKey(Cluster, null=True, on_delete=models.PROTECT, related_name="events")
    job = models.ForeignKey(Job, null=True, on_delete=models.PROTECT, related_name="events")
    attempt = models.ForeignKey(Attempt, null=True, on_delete=models.PROTECT, related_name="events")
    node = models.ForeignKey(Node, null=True, on_delete=models.PROTECT, related_name="events")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+")
    by = models.CharField(max_length=150, help_text="A user's name, or the loop that did it.")
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
            # What a node was at some moment: the last that was told of it before, and the last that was asked
            models.Index(fields=["node", "-at", "-id"], name="event_node_moved", condition=models.Q(what="node.moved")),
            models.Index(
                fields=["node", "-at", "-id"],
                name="event_node_asked",
                condition=models.Q(what__in=("node.drained", "node.resumed")),
            ),
            models.Index(fields=["cluster", "id"], name="event_of_policy", condition=models.Q(what="policy.changed")),
        ]

    def __str__(self) -> str:
        return f"{self.what} {self.from_state}→{self.to_state}" if self.to_state else self.what


class ClusterCommandKind(models.TextChoices):
    SUBMIT = "submit"
    CANCEL = "cancel"
    CANCEL_ID = "cancel_id"  # a job of the cluster that is no attempt of ours; `reason` is its id there
    DRAIN = "drain"
    RESUME = "resume"
    SIGNAL = "signal"  # ask for a checkpoint
    TEST = "test"
    STACKS = "stacks"  # ask where its processes stand


MAX_STOP_TRIES = 10  # tries: some five minutes, where TERM and KILL take half a minute
NODE_COMMANDS = (ClusterCommandKind.DRAIN, ClusterCommandKind.RESUME)  # of these the newest wish counts


class ClusterCommandQuerySet(models.QuerySet["Deed"]):
    def open(self) -> Self:
        return self.filter(done_at__isnull=True)

    def due(self, now: datetime) -> Self:
        """Open, and not in the hands of somebody who may still be at it."""
        return self.open().filter(due_at__lte=now)

    def hanging(self) -> Self:
        """Stops that were asked for again and again, half a minute apart, and whose attempt has still not ended."""
        return self.open().filter(kind=ClusterCommandKind.CANCEL, tries__gte=MAX_STOP_TRIES)

    def with_newer_checkpoint(self) -> Self:
        """Whose attempt has brought a checkpoint to remote storage since the deed was written."""
        return self.filter(attempt__saved_at__gt=models.F("created_at"))


class Deed(models.Model):
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="deeds")
    kind = models.CharField(max_length=10, choices=ClusterCommandKind)
    attempt = models.ForeignKey(Attempt, null=True, on_delete=models.PROTECT, related_name="deeds")
    # With an attempt beside it: for the sake of that node
    node = models.ForeignKey(Node, null=True, on_delete=models.PROTECT, related_name="deeds")
    reason = models.TextField(blank=True)
    created_at = models.DateTimeField(db_default=Now())
    due_at = models.DateTimeField(db_default=Now(), help_text="Not before; moved ahead while a worker is at it.")
    tries = models.PositiveIntegerField(default=0, help_text="Counted before each try, so it is the fencing token too.")
    tries_without_effect = models.PositiveIntegerField(
        default=0, db_default=0, help_text="So many tries are known to have started nothing on the cluster."
    )
    in_hand = models.BooleanField(default=False, db_default=False, help_text="A worker is at it, or died at it.")
    done_at = models.DateTimeField(null=True)
    outcome = models.TextField(blank=True)

    objects = ClusterCommandQuerySet.as_manager()

    class Meta:
        ordering = ["id"]
        indexes = [
            models.Index(fields=["cluster", "due_at", "id"], name="deed_due", condition=models.Q(done_at__isnull=True))
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["attempt", "kind"], condition=models.Q(done_at__isnull=True), name="one_open_deed_per_attempt"
            ),
            models.UniqueConstraint(
                fields=["node", "kind"],
                condition=models.Q(done_at__isnull=True, attempt__isnull=True),
                name="one_open_deed_per_node",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.attempt or self.node}"
