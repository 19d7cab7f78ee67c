"""Replays requested by users."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Self

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from jobs.core.lifecycle import StatusBadge
from jobs.models import Team
from scheduling.core.run_badges import run_badge


class SimulationState(models.TextChoices):
    """States of simulations, named like the states of jobs."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


UNFINISHED_STATES = (SimulationState.PENDING, SimulationState.RUNNING)
# A worker reports every second, so one that is silent for a minute counts as dead
WORKER_SILENCE_LIMIT = timedelta(seconds=60)


class SimulationQuerySet(models.QuerySet["Simulation"]):
    def unfinished(self) -> Self:
        return self.filter(state__in=UNFINISHED_STATES)

    def with_live_worker(self, now: datetime) -> Self:
        """Running simulations whose worker has reported recently."""
        return self.filter(state=SimulationState.RUNNING, heartbeat_at__gt=now - WORKER_SILENCE_LIMIT)

    def free(self, now: datetime) -> Self:
        """Simulations without a worker: not started, or their worker is silent."""
        silent = models.Q(state=SimulationState.RUNNING, heartbeat_at__lte=now - WORKER_SILENCE_LIMIT)
        return self.filter(models.Q(state=SimulationState.PENDING) | silent)


class Simulation(models.Model):
    """A replay of a trace under some policies, requested by a user and run by a worker."""

    public_id = models.CharField(max_length=16, unique=True)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="simulations")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="simulations")
    trace = models.CharField(max_length=40, help_text="acme:seren, acme:kalos, history, or upload: and its number.")
    policies = models.JSONField(default=list)
    params = models.JSONField(default=dict, help_text="The rest of what was asked, as it was asked.")
    state = models.CharField(max_length=10, choices=SimulationState, default=SimulationState.PENDING)
    progress = models.FloatField(default=0.0, help_text="Percent.")
    tries = models.PositiveIntegerField(default=0, help_text="How often a worker began it; its fencing token too.")
    result = models.JSONField(null=True)
    error = models.TextField(blank=True)
    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)
    heartbeat_at = models.DateTimeField(null=True, help_text="When its worker last said that it is at it.")
    ended_at = models.DateTimeField(null=True)

    objects = SimulationQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["team", "-id"], name="simulation_by_team"),
            models.Index(fields=["id"], name="simulation_open", condition=models.Q(state__in=["PENDING", "RUNNING"])),
        ]

    def __str__(self) -> str:
        return self.public_id

    @property
    def is_open(self) -> bool:
        return self.state in UNFINISHED_STATES

    @property
    def is_running(self) -> bool:
        return self.state == SimulationState.RUNNING

    @property
    def has_result(self) -> bool:
        return self.state == SimulationState.COMPLETED

    @property
    def badge(self) -> StatusBadge:
        return run_badge(self.state)
