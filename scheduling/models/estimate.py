"""Start estimates of waiting jobs, and their errors."""

from __future__ import annotations

from datetime import timedelta

from django.db import models


class EstimateLead(models.TextChoices):
    """Time between an estimate and the estimated start. Errors are summarized per lead, because a minute matters more
    for a start in ten minutes than for one tomorrow."""

    SOON = "10m", "under 10 minutes"
    HOUR = "1h", "10 minutes to 1 hour"
    SHIFT = "6h", "1 to 6 hours"
    DAY = "1d", "6 hours to 1 day"
    LATER = "later", "over 1 day"

    @classmethod
    def of(cls, ahead: timedelta) -> str:
        return next(lead for lead, until in LEAD_UNTIL.items() if ahead < until)


LEAD_UNTIL: dict[str, timedelta] = {
    "10m": timedelta(minutes=10),
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "1d": timedelta(days=1),
    "later": timedelta(days=100_000),
}


class Forecast(models.Model):
    """The last estimation run of a cluster, and the state of the cluster that it used."""

    cluster = models.OneToOneField("jobs.Cluster", on_delete=models.CASCADE, related_name="forecast")
    made_at = models.DateTimeField()
    jobs = models.PositiveIntegerField(default=0)
    took_ms = models.PositiveIntegerField(default=0)
    seen = models.CharField(max_length=200, blank=True, help_text="What the queue and the nodes looked like.")

    def __str__(self) -> str:
        return f"{self.cluster}: {self.jobs} jobs at {self.made_at:%H:%M:%S}"


class Estimate(models.Model):
    """The estimated start of a waiting job. The first estimate is stored too: errors are measured against it."""

    job = models.OneToOneField("jobs.Job", on_delete=models.CASCADE, related_name="estimate")
    cluster = models.ForeignKey("jobs.Cluster", on_delete=models.CASCADE, related_name="estimates")
    p50 = models.DateTimeField()
    p90 = models.DateTimeField()
    made_at = models.DateTimeField(help_text="When it last moved.")
    first_p50 = models.DateTimeField()
    first_p90 = models.DateTimeField()
    first_made_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.job_id} at {self.p50:%d %b %H:%M}, by {self.p90:%d %b %H:%M}"


class EstimateOutcome(models.Model):
    """The first estimate of a job, and its actual start."""

    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="estimate_outcomes")
    cluster = models.ForeignKey("jobs.Cluster", on_delete=models.CASCADE, related_name="estimate_outcomes")
    made_at = models.DateTimeField()
    p50 = models.DateTimeField()
    p90 = models.DateTimeField()
    started_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "made_at"], name="an_estimate_is_judged_once")]
        indexes = [models.Index(fields=["cluster", "-started_at"], name="outcome_by_start")]

    def __str__(self) -> str:
        return f"{self.job_id}: {self.started_at - self.p50} off"


class EstimateError(models.Model):
    """The recent error of a cluster's estimates for one lead."""

    cluster = models.ForeignKey("jobs.Cluster", on_delete=models.CASCADE, related_name="estimate_errors")
    lead = models.CharField(max_length=5, choices=EstimateLead)
    jobs = models.PositiveIntegerField()
    median_s = models.FloatField("median absolute error (s)")
    within_p90 = models.FloatField(help_text="Part of the jobs that had started by their P90.")
    updated_at = models.DateTimeField()

    class Meta:
        ordering = ["cluster", "lead"]
        constraints = [models.UniqueConstraint(fields=["cluster", "lead"], name="one_error_per_lead")]

    @property
    def median(self) -> timedelta:
        return timedelta(seconds=self.median_s)

    @property
    def percent(self) -> int:
        return round(100 * self.within_p90)

    def __str__(self) -> str:
        return f"{self.cluster} {self.lead}: {self.median_s:.0f} s"
