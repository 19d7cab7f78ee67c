"""Where the ranks of an attempt stood when it hung: asked for once, and read in its log before anything is ended."""

from __future__ import annotations

import zlib
from datetime import datetime
from typing import Self

from django.db import models
from django.db.models.functions import Now

from failures.models.incident import Incident
from jobs.models import Attempt


class StackDumpQuerySet(models.QuerySet["StackDump"]):
    def open(self) -> Self:
        return self.filter(closed_at__isnull=True)

    def within_deadline(self, now: datetime) -> Self:
        """Whoever decides waits for these; for no longer than was promised, whoever is dead."""
        return self.open().filter(until__gt=now)


class StackDump(models.Model):
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="stack_dumps")
    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="stack_dumps")
    asked_at = models.DateTimeField(db_default=Now())
    until = models.DateTimeField(help_text="What has not come by then is not waited for.")
    log_from = models.PositiveBigIntegerField(default=0, help_text="The size of its log when they were asked for.")
    log_size = models.PositiveBigIntegerField(default=0, help_text="At the last look.")
    closed_at = models.DateTimeField(null=True)
    ranks = models.PositiveIntegerField(default=0, help_text="That have said where they stand.")
    sentences = models.JSONField(default=list, help_text="What the stacks say.")
    packed = models.BinaryField(null=True, help_text="The stacks themselves, compressed.")
    size = models.PositiveIntegerField(default=0, help_text="Of the stacks, in bytes, before they were cut.")

    objects = StackDumpQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["attempt"], condition=models.Q(closed_at__isnull=True), name="one_open_dump_per_attempt"
            )
        ]
        indexes = [models.Index(fields=["until"], name="stacks_open", condition=models.Q(closed_at__isnull=True))]

    def __str__(self) -> str:
        return f"stacks of {self.attempt}"

    @property
    def text(self) -> str:
        return zlib.decompress(self.packed).decode() if self.packed else ""
