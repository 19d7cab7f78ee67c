"""The read position in the log of a running attempt, and the state of its follower.

Working state, not history: if a row is lost, the log is read from its beginning when the attempt ends.
"""

from __future__ import annotations

from datetime import datetime
from typing import Self

from django.db import models
from django.db.models.functions import Now

from jobs.models import Attempt

MAX_FOLLOW_TRIES = 3


class FollowingQuerySet(models.QuerySet["Following"]):
    def due(self, now: datetime) -> Self:
        """Due rows that are not claimed. After MAX_FOLLOW_TRIES without progress, a log is left to the diagnosis."""
        free = models.Q(claimed_until=None) | models.Q(claimed_until__lt=now)
        return self.filter(free, due_at__lte=now, tries__lt=MAX_FOLLOW_TRIES, attempt__ended_at=None)


class Following(models.Model):
    attempt = models.OneToOneField(Attempt, on_delete=models.CASCADE, primary_key=True, related_name="following")
    due_at = models.DateTimeField(db_default=Now())
    claimed_until = models.DateTimeField(null=True, help_text="End of the lease of the worker that claimed the row.")
    tries = models.PositiveIntegerField(default=0, help_text="Tries since the last progress. Also the fencing token.")
    looked_at = models.DateTimeField(null=True)
    size = models.PositiveBigIntegerField(default=0, help_text="Size of the log at the last read.")
    read = models.PositiveBigIntegerField(default=0, help_text="Bytes of the log that are included in the state.")
    seam = models.BinaryField(default=b"", help_text="The last bytes read, to detect that the file was replaced.")
    state = models.BinaryField(null=True)

    objects = FollowingQuerySet.as_manager()

    class Meta:
        ordering = ["due_at"]
        indexes = [models.Index(fields=["due_at"], name="following_due")]

    def __str__(self) -> str:
        return f"log of {self.attempt}, {self.read} bytes read"
