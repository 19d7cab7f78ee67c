"""The step cadence in the log of an attempt, from which hangs of jobs without reports are detected.

Working state, not history: if a row is lost, the cadence starts again with the next lines.
"""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models

from jobs.models import Attempt


class Cadence(models.Model):
    attempt = models.OneToOneField(Attempt, on_delete=models.CASCADE, primary_key=True, related_name="cadence")
    read = models.PositiveBigIntegerField(default=0, help_text="Bytes of the log that were read.")
    furthest = models.JSONField(default=dict, help_text="Highest step, by the shape of the line that contains it.")
    moments = ArrayField(models.FloatField(), default=list, help_text="Times at which the step increased, in seconds.")
    steps = ArrayField(
        models.PositiveIntegerField(), default=list, help_text="Increase of the step at each of these times."
    )
    sections = models.JSONField(default=list, help_text="Periods without steps: name, begin, end.")
    looked_at = models.DateTimeField()

    class Meta:
        ordering = ["-looked_at"]

    def __str__(self) -> str:
        return f"cadence of {self.attempt}"
