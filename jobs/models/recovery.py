"""How far recovery may act without approval, as configured by teams and operators.

Without a row the mode is propose. A row of a team takes precedence over a row for all teams, a row of an action over
one for all actions, and a row of a cluster over one for all clusters.
"""

from __future__ import annotations

from typing import Self

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from jobs.models.cluster import Cluster
from jobs.models.job import Job
from jobs.models.people import Team


class RecoveryModeQuerySet(models.QuerySet["RecoveryMode"]):
    def for_job(self, job: Job) -> Self:
        cluster = Q(cluster=None) | Q(cluster=job.cluster_id)
        return self.filter(cluster, Q(team=None) | Q(team=job.team_id))


class RecoveryMode(models.Model):
    class Reach(models.TextChoices):
        OBSERVE = "observe", "observe: record decisions only"
        PROPOSE = "propose", "propose: each action needs approval"
        ACT = "act", "act: actions are carried out and reported"

    cluster = models.ForeignKey(Cluster, null=True, blank=True, on_delete=models.CASCADE, related_name="recovery_modes")
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.CASCADE, related_name="recovery_modes")
    action = models.CharField(max_length=20, blank=True, help_text="Such as restart or test nodes. Empty: all actions.")
    mode = models.CharField(max_length=8, choices=Reach, default=Reach.PROPOSE)
    changed_at = models.DateTimeField(db_default=Now(), editable=False)
    changed_by = models.CharField(max_length=150, blank=True, editable=False)

    objects = RecoveryModeQuerySet.as_manager()

    class Meta:
        ordering = ["cluster", "team", "action"]
        constraints = [
            models.UniqueConstraint(
                # Nulls are values here: null means all clusters or all teams
                fields=["cluster", "team", "action"],
                nulls_distinct=False,
                name="one_mode_per_team_and_action",
            ),
            models.CheckConstraint(condition=Q(mode__in=["observe", "propose", "act"]), name="recovery_mode_known"),
        ]

    def __str__(self) -> str:
        teams = self.team.name if self.team else "every team"
        where = f" on {self.cluster}" if self.cluster else ""
        return f"{self.mode}: {self.action or 'everything'} for {teams}{where}"
