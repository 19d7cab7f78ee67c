"""How far recovery may go by itself, as a team or an operator has said: the record's part of it.

Nothing said means propose. A row of a team goes before one of everybody, one of an action before one of all actions,
and one of a cluster before one of all clusters.
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
        OBSERVE = "observe", "observe: write down what would be done"
        PROPOSE = "propose", "propose: a person approves each deed"
        ACT = "act", "act: carried out at once, and told"

    cluster = models.ForeignKey(Cluster, null=True, blank=True, on_delete=models.CASCADE, related_name="recovery_modes")
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.CASCADE, related_name="recovery_modes")
    action = models.CharField(max_length=20, blank=True, help_text="restart, test nodes … Empty: every action.")
    mode = models.CharField(max_length=8, choices=Reach, default=Reach.PROPOSE)
    changed_at = models.DateTimeField(db_default=Now(), editable=False)
    changed_by = models.CharField(max_length=150, blank=True, editable=False)

    objects = RecoveryModeQuerySet.as_manager()

    class Meta:
        ordering = ["cluster", "team", "action"]
        constraints = [
            models.UniqueConstraint(
                fields=["cluster", "team", "action"], nulls_distinct=False, name="one_mode_per_team_and_action"
            ),
            models.CheckConstraint(condition=Q(mode__in=["observe", "propose", "act"]), name="recovery_mode_known"),
        ]

    def __str__(self) -> str:
        whom = self.team.name if self.team else "every team"
        where = f" on {self.cluster}" if self.cluster else ""
        return f"{self.mode}: {self.action or 'everything'} for {whom}{where}"
