"""Stacks of the ranks of a hanging attempt, requested once and read from its log before recovery ends the attempt."""

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
        """Open dumps for which recovery still waits. The deadline ends the wait even if no loop closes the dump."""
        return self.open().filter(until__gt=now)


class StackDump(models.Model):
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="stack_dumps")
    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="stack_dumps")
    requested_at = models.DateTimeField(db_default=Now())
    until = models.DateTimeField(help_text="Recovery waits for the stacks until this time.")
    log_from = models.PositiveBigIntegerField(default=0, help_text="Size of the log at the time of the request.")
    log_size = models.PositiveBigIntegerField(default=0, help_text="Size of the log at the last check.")
    closed_at = models.DateTimeField(null=True)
    ranks = models.PositiveIntegerField(default=0, help_text="Number of ranks whose stacks have arrived.")
    summary = models.JSONField(default=list, help_text="Summary of the stacks.")
    packed = models.BinaryField(null=True, help_text="Compressed text of the stacks.")
    size = models.PositiveIntegerField(default=0, help_text="Size of the stacks in bytes, before truncation.")

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
