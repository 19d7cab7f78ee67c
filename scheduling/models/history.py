"""What scheduling remembers of ended jobs: the usage of teams, and run times."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple, Self

from django.db import models
from django.db.models import F, FloatField, Max, OuterRef, Subquery, Sum
from django.db.models.functions import Coalesce, Extract, Greatest

from jobs.models.cluster import Cluster
from jobs.models.job import Job
from scheduling.core.run_time_scopes import JobTraits
from scheduling.models.run_time_trees import TrainedTrees

HOUR_S = 3600.0

# GPU-seconds of an attempt between `start` and `till`, halved since: the integral of exp(-rate * age). sinh keeps the
# precision of short attempts, where 1 - exp(-x) would lose most digits. PostgreSQL raises an error for numbers that are
# too large or too small for a float, so only 64 half-lives of an attempt count, and no exponent is below -600
DECAYED_ATTEMPT = """
(j.nodes::float8 * j.gpus_per_node + j.gpu_milli / 1000.0) * 2 / %(rate)s * sinh(%(rate)s / 2 * s.ran)
  * exp(greatest(-600, -%(rate)s * (extract(epoch FROM %(now)s - e.till)::float8 + s.ran / 2)))
"""
ATTEMPT_TIMES = """
CROSS JOIN LATERAL (SELECT least(coalesce(a.ended_at, %(now)s), %(now)s) AS till) e
CROSS JOIN LATERAL (
  SELECT least(64 * ln(2) / %(rate)s, greatest(0, extract(epoch FROM e.till - a.promised_at)))::float8 AS ran
) s
"""


def half_life_s(cluster: Cluster) -> float:
    return cluster.usage_half_life_hours * HOUR_S


def decay_rate(cluster: Cluster) -> float:
    """Return the decay per second of the cluster's usage."""
    return math.log(2) / half_life_s(cluster)


class AccountUsage(models.Model):
    """The GPU time that ended attempts of a team have used on a cluster, halved every half-life until `at`.

    The sum outlives the attempts, so it is exact after retention has deleted them. After a change of the half-life,
    past usage decays at the new rate from then on, as in Slurm.
    """

    cluster = models.ForeignKey("jobs.Cluster", on_delete=models.CASCADE, related_name="account_usages")
    team = models.ForeignKey("jobs.Team", on_delete=models.CASCADE, related_name="account_usages")
    gpu_seconds = models.FloatField()
    at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["cluster", "team"], name="one_usage_per_team")]

    def __str__(self) -> str:
        return f"{self.team_id} on {self.cluster_id}: {self.gpu_seconds:.0f} GPU-seconds"


class RunTimeModelQuerySet(models.QuerySet["RunTimeModel"]):
    def usable(self, cluster: Cluster) -> Self:
        """Return the cluster's model if it was learned from at least one job."""
        return self.filter(cluster=cluster, jobs__gt=0)

    def with_trees(self) -> Any:
        """Add version and number of training jobs of the cluster's newest trees; None without any."""
        newest = TrainedTrees.objects.filter(cluster=OuterRef("cluster")).order_by("-version")
        return self.annotate(
            trees_version=Subquery(newest.values("version")[:1]),
            training_jobs=Subquery(newest.values("training_jobs")[:1]),
        )


class RunTimeModel(models.Model):
    """The version of a cluster's learned run times, and the error of the predictions made with them."""

    cluster = models.OneToOneField("jobs.Cluster", on_delete=models.CASCADE, related_name="run_time_model")
    version = models.PositiveIntegerField(default=0)
    jobs = models.PositiveIntegerField(default=0, help_text="Number of ended jobs that it was learned from.")
    updated_at = models.DateTimeField()
    imported_until = models.DateTimeField(null=True, help_text="End of the newest imported job.")
    measured_at = models.DateTimeField(null=True)
    measured_jobs = models.PositiveIntegerField(default=0, help_text="Number of ended jobs that had a prediction.")
    median_ratio = models.FloatField(null=True, help_text="Half of the predictions are wrong by at most this factor.")
    p90_ratio = models.FloatField(null=True, help_text="Nine of ten predictions are wrong by at most this factor.")
    trees_measured_jobs = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Number of ended jobs that had a prediction by trees."
    )
    trees_median_ratio = models.FloatField(null=True, help_text="The same as median_ratio, for trees.")
    trees_p90_ratio = models.FloatField(null=True, help_text="The same as p90_ratio, for trees.")

    objects = RunTimeModelQuerySet.as_manager()

    def __str__(self) -> str:
        return f"{self.cluster_id}: version {self.version}, {self.jobs} jobs"


class LearnedRunTimeQuerySet(models.QuerySet["LearnedRunTime"]):
    def means(self, cluster: Cluster, scopes: Iterable[str]) -> dict[str, float]:
        """Return the mean run times of these scopes, as far as they are known."""
        return dict(self.filter(cluster=cluster, scope__in=sorted(set(scopes))).values_list("scope", "mean_s"))


class LearnedRunTime(models.Model):
    """The mean run time of the jobs of one scope: a user with a job name and size, and the wider scopes of these."""

    cluster = models.ForeignKey("jobs.Cluster", on_delete=models.CASCADE, related_name="learned_run_times")
    scope = models.CharField(max_length=1000, help_text="User id, job name and GPUs as JSON, or a wider scope.")
    mean_s = models.FloatField()
    version = models.PositiveIntegerField(help_text="The version of the model that last changed it.")

    objects = LearnedRunTimeQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["cluster", "scope"], name="one_run_time_per_scope")]

    def __str__(self) -> str:
        return f"{self.scope}: {self.mean_s:.0f} s"


class EndedJob(NamedTuple):
    """A job that has ended, with the run time of all its attempts together, on the first GPU model of its request."""

    pk: int
    traits: JobTraits
    submitted_at: datetime
    ended_at: datetime
    ran_s: float


def jobs_in_order_of_ends(pks: Any) -> list[EndedJob]:
    """Return these ended jobs. Ends at the same time follow their starts."""
    began = Coalesce("attempts__confirmed_at", "attempts__promised_at")
    ran = Extract(Greatest(F("attempts__ended_at"), began) - began, "epoch", output_field=FloatField())
    ran /= F("attempts__slowdown")
    rows: Any = Job.objects.filter(pk__in=pks).annotate(ran=Sum(ran), last=Max("attempts__id"))
    columns = ("pk", "user_id", "name", "nodes", "gpus_per_node", "kind", "submitted_at", "ended_at", "ran")
    return [
        EndedJob(pk, JobTraits(str(user), name, nodes * gpus, kind), submitted, ended, ran_s or 0.0)
        for pk, user, name, nodes, gpus, kind, submitted, ended, ran_s in rows.order_by("ended_at", "last").values_list(
            *columns
        )
    ]
