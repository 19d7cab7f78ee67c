"""Channels that receive incident notices, and the state of the notice for each channel and incident."""

from __future__ import annotations

from typing import Self

from django.db import models
from django.db.models.functions import Now

from failures.incidents.grouping import IncidentScope
from failures.models.incident import Incident
from jobs.models import Team


class Channel(models.Model):
    class Kind(models.TextChoices):
        EMAIL = "email"
        WEBHOOK = "webhook"
        SLACK = "slack", "slack: an incoming webhook of Slack or Mattermost"

    team = models.ForeignKey(
        Team, null=True, blank=True, on_delete=models.CASCADE, related_name="channels",
        help_text="Only incidents that affect jobs of this team are sent. Leave empty to send all incidents.",
    )  # fmt: skip
    kind = models.CharField(max_length=8, choices=Kind)
    target = models.CharField(max_length=500, help_text="An e-mail address, or the URL of a webhook.")
    secret = models.CharField(
        max_length=64, blank=True, editable=False, help_text="Key with which messages to a webhook are signed."
    )
    scope = models.CharField(
        max_length=8, blank=True, choices=[(one.value, one.value) for one in IncidentScope],
        help_text="Only incidents of this scope are sent. Leave empty to send all.",
    )  # fmt: skip
    min_gpu_hours = models.FloatField(default=0, help_text="Least GPU-hours lost in an incident before it is sent.")
    is_enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    created_by = models.CharField(max_length=150, blank=True, editable=False)
    called_at = models.DateTimeField(null=True, editable=False, help_text="When a message to it was last tried.")

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(
                fields=["team", "kind", "target"], nulls_distinct=False, name="one_channel_per_target"
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.team or 'every team'}"


class NoticeQuerySet(models.QuerySet["Notice"]):
    def open(self) -> Self:
        """Notices whose current message was not sent yet."""
        return self.exclude(wanted=models.F("sent")).filter(given_up_at__isnull=True)


class Notice(models.Model):
    channel = models.ForeignKey(Channel, on_delete=models.CASCADE, related_name="notices")
    incident = models.ForeignKey(Incident, on_delete=models.PROTECT, related_name="notices")
    wanted = models.CharField(max_length=64, help_text="Hash of the message to send.")
    sent = models.CharField(max_length=64, blank=True, help_text="Hash of the last message sent.")
    update = models.PositiveIntegerField(default=0, help_text="Number of messages sent.")
    due_at = models.DateTimeField(db_default=Now())
    tries = models.PositiveIntegerField(
        default=0, help_text="Number of tries, counted before each one. Also the fencing token."
    )
    failures = models.PositiveSmallIntegerField(default=0, help_text="Number of consecutive failures.")
    sent_at = models.DateTimeField(null=True)
    given_up_at = models.DateTimeField(null=True)
    last_error = models.TextField(blank=True)

    objects = NoticeQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["channel", "incident"], name="one_notice_per_channel_and_incident")
        ]
        indexes = [
            models.Index(
                fields=["due_at"],
                name="notice_due",
                condition=models.Q(given_up_at__isnull=True) & ~models.Q(wanted=models.F("sent")),
            )
        ]

    def __str__(self) -> str:
        return f"{self.incident} to {self.channel}"
