"""Counters of recent password logins."""

from __future__ import annotations

from django.db import models


class LoginAttempts(models.Model):
    """One counter of an address, or of a user name from an address. `acmeweb.auth.login_limits` increments and deletes
    it."""

    key = models.CharField(
        max_length=64, primary_key=True, help_text="SHA-256 of the address, or of the user name and address."
    )
    since = models.DateTimeField(help_text="Start of the counting window.")
    count = models.PositiveIntegerField()

    class Meta:
        verbose_name_plural = "login attempts"
        indexes = [models.Index(fields=["since"], name="login_attempts_by_age")]

    def __str__(self) -> str:
        return f"{self.count} since {self.since:%H:%M:%S}"
