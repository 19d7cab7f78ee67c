"""How often the log of an attempt counts a step: what a job without reports is judged by.

Work in hand: a row that is lost begins anew with the lines that come.
"""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models

from jobs.models import Attempt


class Cadence(models.Model):
    attempt = models.OneToOneField(Attempt, on_delete=models.CASCADE, primary_key=True, related_name="cadence")
    read = models.PositiveBigIntegerField(default=0, help_text="Bytes of its log that were looked at.")
    furthest = models.JSONField(default=dict, help_text="The highest step, by the shape of the line that counts it.")
    moments = ArrayField(models.FloatField(), default=list, help_text="When it was seen to count further, in seconds.")
    steps = ArrayField(models.PositiveIntegerField(), default=list, help_text="How many it told at each moment.")
    sections = models.JSONField(default=list, help_text="Times in which no step is due: name, begin, end.")
    looked_at = models.DateTimeField()

    class Meta:
        ordering = ["-looked_at"]

    def __str__(self) -> str:
        return f"cadence of {self.attempt}"
