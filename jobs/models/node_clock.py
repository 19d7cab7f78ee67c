"""Caps of GPU clocks: which clock the GPUs of a node have, and since when. See `scheduling.power.loops.caps`."""

from __future__ import annotations

from datetime import timedelta
from typing import Self

from django.db import models
from django.db.models import Q

from jobs.models.cluster import Node

NODE_CLOCK_RETENTION = timedelta(days=90)


class NodeClockQuerySet(models.QuerySet["NodeClock"]):
    def open(self) -> Self:
        return self.filter(ended_at=None)

    def caps(self) -> Self:
        """Return the clocks that slow a node down, without the releases that wait for their command."""
        return self.filter(mhz__isnull=False)


class NodeClock(models.Model):
    """A time in which the GPUs of a node had a lower clock than their highest. The row is written before the command;
    until the command is confirmed, the node may have this clock or the one before."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="clocks", db_index=False)
    mhz = models.PositiveSmallIntegerField(
        null=True, help_text="Null: the highest clock; the row ends with the command."
    )
    began_at = models.DateTimeField()
    confirmed_at = models.DateTimeField(null=True, help_text="When the command was done.")
    ended_at = models.DateTimeField(null=True)

    objects = NodeClockQuerySet.as_manager()

    class Meta:
        ordering = ["node", "began_at"]
        constraints = [
            models.UniqueConstraint(fields=["node"], condition=Q(ended_at=None), name="one_open_clock_per_node"),
        ]
        indexes = [
            models.Index(fields=["node", "began_at"], name="node_clock_by_time"),
            models.Index(fields=["ended_at"], name="node_clock_by_age"),
        ]

    def __str__(self) -> str:
        return f"{self.node_id}: {self.mhz or 'highest'} MHz from {self.began_at:%F %T}"
