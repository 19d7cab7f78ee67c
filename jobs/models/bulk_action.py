"""Actions on many jobs that a worker performs in the background."""

from __future__ import annotations

from typing import Self

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from jobs.models.people import Token


class BulkActionState(models.TextChoices):
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class BulkActionQuerySet(models.QuerySet["BulkAction"]):
    def unfinished(self) -> Self:
        return self.filter(ended_at__isnull=True)


class BulkAction(models.Model):
    """One action on the jobs that matched when it was requested, and how far it has got."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    # Without its token the rights of the request would be unknown
    token = models.ForeignKey(Token, null=True, on_delete=models.CASCADE, related_name="+")
    source = models.GenericIPAddressField(null=True)
    request_id = models.CharField(max_length=64, blank=True)
    action = models.CharField(max_length=20)
    why = models.TextField(blank=True)
    priority = models.IntegerField(default=0)
    job_keys = ArrayField(models.BigIntegerField())
    matched = models.PositiveIntegerField()
    position = models.PositiveIntegerField(default=0, help_text="Number of jobs that are done or refused.")
    refused = models.PositiveIntegerField(default=0)
    errors = models.JSONField(default=list, help_text="The first refused jobs, each with its error.")
    error = models.TextField(blank=True, help_text="Why the action ended before all jobs.")
    created_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True)

    objects = BulkActionQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["id"], name="bulk_action_open", condition=models.Q(ended_at__isnull=True)),
            models.Index(fields=["ended_at"], name="bulk_action_by_end"),
        ]

    def __str__(self) -> str:
        return f"{self.action} of {self.matched} jobs"

    @property
    def state(self) -> str:
        if self.ended_at is None:
            return BulkActionState.RUNNING
        return BulkActionState.FAILED if self.error else BulkActionState.COMPLETED

    @property
    def succeeded(self) -> int:
        return self.position - self.refused

    @property
    def remaining(self) -> int:
        return self.matched - self.position
