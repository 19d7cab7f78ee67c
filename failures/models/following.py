"""How far the log of a running attempt has been read, and what is known of it so far.

Work in hand, and nothing else: every row may be lost, then that log is read from its beginning when the attempt ends.
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
        """Who died over a log three times without getting any further leaves it to the diagnosis."""
        free = models.Q(taken_until=None) | models.Q(taken_until__lt=now)
        return self.filter(free, due_at__lte=now, tries__lt=MAX_FOLLOW_TRIES, attempt__ended_at=None)


class Following(models.Model):
    attempt = models.OneToOneField(Attempt, on_delete=models.CASCADE, primary_key=True, related_name="following")
    due_at = models.DateTimeField(db_default=Now())
    taken_until = models.DateTimeField(null=True, help_text="A worker is at it.")
    tries = models.PositiveIntegerField(default=0, help_text="Since it last got any further; the fencing token too.")
    looked_at = models.DateTimeField(null=True)
    size = models.PositiveBigIntegerField(default=0, help_text="Of the log, at the last look.")
    read = models.PositiveBigIntegerField(default=0, help_text="Bytes of the log that `state` knows.")
    seam = models.BinaryField(default=b"", help_text="The last of those bytes: another file would not have them.")
    state = models.BinaryField(null=True)

    objects = FollowingQuerySet.as_manager()

    class Meta:
        ordering = ["due_at"]
        indexes = [models.Index(fields=["due_at"], name="following_due")]

    def __str__(self) -> str:
        return f"log of {self.attempt}, {self.read} bytes read"
