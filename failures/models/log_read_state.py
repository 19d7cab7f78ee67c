"""How far the log of a running attempt has been read, and what the readers remember.

A log is read twice while it grows. Every few seconds, its new lines are read for printed steps; `cadence` and the
fields that begin with `steps_` are the state of this reader. Some megabytes at a time, the whole log is read for the
diagnosis; all other fields are the state of this reader.

Working state, not history: if a row is lost, the diagnosis reads the log from its beginning when the attempt ends, and
the cadence starts again with the next lines.
"""

from __future__ import annotations

from datetime import datetime
from typing import Self

from django.db import models
from django.db.models.functions import Now

from jobs.models import Attempt

MAX_FOLLOW_TRIES = 3


class LogReadStateQuerySet(models.QuerySet["LogReadState"]):
    def due(self, now: datetime) -> Self:
        """Due rows that are not claimed. After MAX_FOLLOW_TRIES without progress, a log is left to the diagnosis."""
        free = models.Q(claimed_until=None) | models.Q(claimed_until__lt=now)
        return self.filter(free, due_at__lte=now, tries__lt=MAX_FOLLOW_TRIES, attempt__ended_at=None)


class LogReadState(models.Model):
    attempt = models.OneToOneField(Attempt, on_delete=models.CASCADE, primary_key=True, related_name="log_read_state")
    due_at = models.DateTimeField(db_default=Now())
    claimed_until = models.DateTimeField(null=True, help_text="End of the lease of the worker that claimed the row.")
    tries = models.PositiveIntegerField(default=0, help_text="Tries since the last progress. Also the fencing token.")
    looked_at = models.DateTimeField(null=True)
    size = models.PositiveBigIntegerField(default=0, help_text="Size of the log at the last read.")
    read = models.PositiveBigIntegerField(default=0, help_text="Bytes of the log that are included in the state.")
    seam = models.BinaryField(default=b"", help_text="The last bytes read, to detect that the file was replaced.")
    state = models.BinaryField(null=True)
    steps_looked_at = models.DateTimeField(null=True, help_text="Last attempt to read steps, successful or not.")
    steps_read_at = models.DateTimeField(null=True, help_text="Time at which the log was last read for steps.")
    steps_read = models.PositiveBigIntegerField(
        default=0, db_default=0, help_text="Bytes of the log that were read for steps."
    )
    cadence = models.JSONField(null=True, help_text="Times and sections of the printed steps; null if not read.")

    objects = LogReadStateQuerySet.as_manager()

    class Meta:
        ordering = ["due_at"]
        indexes = [models.Index(fields=["due_at"], name="log_read_state_due")]

    def __str__(self) -> str:
        return f"log of {self.attempt}, {self.read} bytes read"
