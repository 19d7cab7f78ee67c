"""What attempts drew at most, and what is learned from it about similar jobs."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from jobs.models import Attempt, Cluster


class AttemptPeak(models.Model):
    """The highest power per GPU of an attempt so far: of all its GPUs at the same time, as telemetry measured it."""

    attempt = models.OneToOneField(Attempt, on_delete=models.CASCADE, primary_key=True, related_name="power_peak")
    gpu_w = models.FloatField()
    is_learned = models.BooleanField(default=False, db_default=False, help_text="It ended and is in the learned peaks.")

    class Meta:
        indexes = [models.Index(fields=["attempt"], condition=Q(is_learned=False), name="attempt_peak_to_learn")]

    def __str__(self) -> str:
        return f"{self.attempt_id}: {self.gpu_w:.0f} W"


class LearnedPeaksQuerySet(models.QuerySet["LearnedPeaks"]):
    def counts(self, cluster: Cluster, scopes: Iterable[str]) -> dict[str, list[int]]:
        """Return the counts of these scopes, as far as attempts have ended in them."""
        return dict(self.filter(cluster=cluster, scope__in=sorted(set(scopes))).values_list("scope", "counts"))


class LearnedPeaks(models.Model):
    """How many attempts of one scope had their peak in each class of watts (`scheduling.power.rules.predictions`)."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="learned_peaks", db_index=False)
    scope = models.CharField(max_length=1000, help_text="User id, job name and kind as JSON, or the kind alone.")
    counts = ArrayField(models.PositiveIntegerField())

    objects = LearnedPeaksQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["cluster", "scope"], name="learned_peaks_of_scope")]

    def __str__(self) -> str:
        return f"{self.scope}: {sum(self.counts)} attempts"
