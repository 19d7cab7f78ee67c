"""Stored responses of API requests, so that a repeated request has an effect only once."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Self

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

KEY_LIFETIME = timedelta(hours=24)


class IdempotencyKeyQuerySet(models.QuerySet["IdempotencyKey"]):
    def forgotten(self, now: datetime) -> Self:
        """Return keys that are too old to answer a repeated request."""
        return self.filter(created_at__lt=now - KEY_LIFETIME)


class IdempotencyKey(models.Model):
    """One completed request, written in the transaction of its work: either both are stored or neither."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=200)
    digest = models.CharField(max_length=64, help_text="Hash of method, address and body.")
    status = models.PositiveSmallIntegerField()
    headers = models.JSONField(default=dict)
    body = models.TextField(help_text="JSON of the response as text, which preserves the order of its keys.")
    created_at = models.DateTimeField(db_default=Now())

    objects = IdempotencyKeyQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="one_answer_per_key")]
        indexes = [models.Index(fields=["created_at"], name="idempotency_by_age")]

    def __str__(self) -> str:
        return f"{self.key} by {self.user}"
