"""Sleeps of nodes: each row is one, from the proposal to the boot or its failure."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Self

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from jobs.core.lifecycle import StateBadge
from jobs.models import Cluster, Node


class NodeSleepState(models.TextChoices):
    OBSERVED = "observed"  # mode observe: it would sleep
    PROPOSED = "proposed"  # mode propose: an operator decides
    REQUESTED = "requested"  # it is to fall asleep
    ASLEEP = "asleep"
    WAKING = "waking"
    AWAKE = "awake"  # it has woken up
    FAILED = "failed"  # it did not wake up
    WITHDRAWN = "withdrawn"  # it was needed before it slept, or did not fall asleep
    DECLINED = "declined"


UNDECIDED_SLEEP_STATES = (NodeSleepState.OBSERVED, NodeSleepState.PROPOSED)
ACTIVE_SLEEP_STATES = (NodeSleepState.REQUESTED, NodeSleepState.ASLEEP, NodeSleepState.WAKING)
SLEEP_BADGES: dict[str, tuple[str, str]] = {
    NodeSleepState.OBSERVED: ("quiet", "☾"),
    NodeSleepState.PROPOSED: ("warn", "?"),
    NodeSleepState.REQUESTED: ("quiet", "☾"),
    NodeSleepState.ASLEEP: ("quiet", "☾"),
    NodeSleepState.WAKING: ("starting", "◌"),
    NodeSleepState.AWAKE: ("good", "✓"),
    NodeSleepState.FAILED: ("bad", "✗"),
    NodeSleepState.WITHDRAWN: ("quiet", "⊘"),
    NodeSleepState.DECLINED: ("quiet", "⊘"),
}


class NodeSleepQuerySet(models.QuerySet["NodeSleep"]):
    def open(self) -> Self:
        return self.filter(closed_at__isnull=True)

    def active(self) -> Self:
        """Return the sleeps that the cluster got a command for and that have not ended."""
        return self.open().filter(state__in=ACTIVE_SLEEP_STATES)


class NodeSleep(models.Model):
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="node_sleeps")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="sleeps")
    state = models.CharField(max_length=10, choices=NodeSleepState)
    why = models.TextField(blank=True)
    created_at = models.DateTimeField(db_default=Now())
    requested_at = models.DateTimeField(null=True, help_text="When Acme requested that it sleeps.")
    requested_by = models.CharField(max_length=150, blank=True)
    asleep_at = models.DateTimeField(null=True)
    wake_requested_at = models.DateTimeField(null=True)
    wake_why = models.TextField(blank=True)
    closed_at = models.DateTimeField(null=True, help_text="When it had booted, or the sleep ended otherwise.")
    called_at = models.DateTimeField(null=True, help_text="When the webhook accepted the last change.")
    call_due_at = models.DateTimeField(db_default=Now(), help_text="Earliest time of the next try of the webhook.")
    wake_repeats = models.PositiveIntegerField(
        db_default=0, default=0, help_text="How often its wake-up was requested again."
    )
    last_error = models.TextField(blank=True, help_text="Why the webhook or the cluster did not accept the change.")

    objects = NodeSleepQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["node"], condition=Q(closed_at__isnull=True), name="one_open_sleep_per_node"
            ),
            models.CheckConstraint(condition=Q(state__in=NodeSleepState.values), name="node_sleep_state_known"),
        ]
        indexes = [
            models.Index(fields=["cluster", "-closed_at"], name="node_sleep_by_end"),
            models.Index(fields=["cluster"], name="node_sleep_open", condition=Q(closed_at__isnull=True)),
        ]

    def __str__(self) -> str:
        return f"sleep {self.pk} of {self.node}"

    @property
    def badge(self) -> StateBadge:
        tone, icon = SLEEP_BADGES[self.state]
        return StateBadge(label=self.state.upper(), code=self.state.upper(), tone=tone, icon=icon)

    @property
    def is_proposed(self) -> bool:
        return self.state == NodeSleepState.PROPOSED

    @property
    def may_wake(self) -> bool:
        return self.state in (NodeSleepState.REQUESTED, NodeSleepState.ASLEEP)

    @property
    def since(self) -> datetime:
        """When its present state began, while it is open."""
        return self.wake_requested_at or self.asleep_at or self.requested_at or self.created_at

    @property
    def slept(self) -> timedelta | None:
        """How long an ended sleep lasted; None if it did not fall asleep."""
        end = self.wake_requested_at or self.closed_at
        return end - self.asleep_at if end and self.asleep_at else None
