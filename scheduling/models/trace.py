"""Job traces that users upload for replays."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from jobs.models import Team

UPLOAD_PREFIX = "upload:"  # followed by the row's number: the trace's name in a simulation


class UploadedTrace(models.Model):
    """An uploaded trace file. It is parsed once and stored in Acme's own export format."""

    name = models.CharField(max_length=80)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="traces")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="traces")
    jobs = models.PositiveIntegerField()
    span_s = models.FloatField(help_text="From the first submission to the last.")
    skipped_rows = models.PositiveIntegerField(default=0, help_text="Rows that could not be read.")
    skipped_examples = models.JSONField(default=list, help_text="The first of those, with their lines.")
    packed = models.BinaryField(help_text="Our export, packed with gzip.")
    created_at = models.DateTimeField(db_default=Now())
    used_at = models.DateTimeField(db_default=Now(), help_text="When a replay of it was last asked for.")

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["team", "-id"], name="trace_by_team")]

    def __str__(self) -> str:
        return self.name

    @property
    def trace_name(self) -> str:
        """The name of this trace in a simulation."""
        return f"{UPLOAD_PREFIX}{self.pk}"

    @property
    def span(self) -> timedelta:
        return timedelta(seconds=self.span_s)
