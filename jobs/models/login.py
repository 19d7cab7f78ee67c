"""How often somebody tried to log in with a password lately."""

from __future__ import annotations

from django.db import models


class LoginAttempts(models.Model):
    """One counter: of an address, or of a user name from an address. `acmeweb.auth.login_limits` counts and forgets."""

    key = models.CharField(max_length=64, primary_key=True, help_text="SHA-256 of what is counted.")
    since = models.DateTimeField(help_text="When the window of this count began.")
    count = models.PositiveIntegerField()

    class Meta:
        verbose_name_plural = "login attempts"
        indexes = [models.Index(fields=["since"], name="login_attempts_by_age")]

    def __str__(self) -> str:
        return f"{self.count} since {self.since:%H:%M:%S}"
