"""What the programs' door remembers of requests, so that a repeated one does its work once."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Self

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

KEY_LIFETIME = timedelta(hours=24)


class IdempotencyKeyQuerySet(models.QuerySet["IdempotencyKey"]):
    def forgotten(self, now: datetime) -> Self:
        """Too old to be answered from."""
        return self.filter(created_at__lt=now - KEY_LIFETIME)


class IdempotencyKey(models.Model):
    """One request that was carried out, written in the transaction of its work: both are there or neither is."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=200)
    digest = models.CharField(max_length=64, help_text="Of method, address and body.")
    status = models.PositiveSmallIntegerField()
    headers = models.JSONField(default=dict)
    body = models.TextField(help_text="The answer's JSON, as text: its order is kept.")
    created_at = models.DateTimeField(db_default=Now())

    objects = IdempotencyKeyQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="one_answer_per_key")]
        indexes = [models.Index(fields=["created_at"], name="idempotency_by_age")]

    def __str__(self) -> str:
        return f"{self.key} by {self.user}"
