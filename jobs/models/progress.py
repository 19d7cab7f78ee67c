"""Progress of running jobs, as reported by the job or read from its log.

`Progress` grows by up to a thousand rows per second, so its rows are narrow and its primary key is the only B-tree.
`LatestProgress` holds the newest values of each attempt: pages and detectors read it without searching in `Progress`.
"""

from __future__ import annotations

from datetime import timedelta

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models.functions import Now

from jobs.models.job import Attempt

PROGRESS_RETENTION = timedelta(days=31)


class StepMetrics(models.Model):
    at = models.DateTimeField(help_text="Clock of the job, but never later than the clock of Acme.")
    step = models.PositiveBigIntegerField(null=True)
    tokens = models.PositiveBigIntegerField(null=True, help_text="Tokens consumed since the start of training.")
    sum_sq = models.FloatField(null=True, help_text="Sum of the squared sequence lengths since the start of training.")
    loss = models.FloatField(null=True)
    grad_norm = models.FloatField(null=True)
    step_time_s = models.FloatField(null=True)
    learning_rate = models.FloatField(null=True)
    mfu = models.FloatField(null=True, help_text="Model FLOPs utilization as a share of 1, as the job reports it.")

    class Meta:
        abstract = True


class Progress(StepMetrics):
    """Append-only. No foreign key constraint: the INSERT statement already looks up the attempt."""

    pk = models.CompositePrimaryKey("attempt_id", "at")
    attempt = models.ForeignKey(
        Attempt, on_delete=models.CASCADE, related_name="progress", db_constraint=False, db_index=False
    )

    class Meta:
        ordering = ["attempt_id", "at"]
        indexes = [
            BrinIndex(fields=["at"], name="progress_by_age")
        ]  # for deleting old rows; a BRIN index adds almost no cost to an insert
        verbose_name_plural = "progress"

    def __str__(self) -> str:
        return f"{self.attempt_id} step {self.step}"


class ProgressSource(models.TextChoices):
    """Where the steps of an attempt come from."""

    REPORTS = "", "reports of the job"
    LOG = "log", "log of the job"
    LATE = "late", "log of the job, not read from the start"


class LatestProgress(StepMetrics):
    """The newest values of an attempt. Values from the log are used only until the attempt reports steps itself."""

    attempt = models.OneToOneField(Attempt, primary_key=True, on_delete=models.CASCADE, related_name="latest_progress")
    updated_at = models.DateTimeField(db_default=Now(), help_text="Clock of Acme.")
    source = models.CharField(
        max_length=4,
        choices=ProgressSource,
        blank=True,
        default=ProgressSource.REPORTS,
        db_default="",
        help_text="Source of the steps.",
    )
    steps_total = models.PositiveBigIntegerField(
        null=True, help_text="Last step of the training, according to the log."
    )
    # Not stored as a Checkpoint: it is not verified, so no attempt resumes from it
    saved_step = models.PositiveBigIntegerField(
        null=True, help_text="Step of the last checkpoint in the log (unverified)."
    )
    saved_at = models.DateTimeField(null=True, help_text="Earliest time at which that checkpoint was saved.")
    saved_path = models.CharField(max_length=400, blank=True, default="", db_default="")

    @property
    def is_of_log(self) -> bool:
        return self.source != ProgressSource.REPORTS

    def __str__(self) -> str:
        return f"{self.attempt} step {self.step}"


class Section(models.Model):
    """A period that the job declared, in which no step is due. `ended_at` is null while it lasts."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="sections")
    name = models.CharField(max_length=40, help_text="checkpoint, evaluation, compile …")
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["attempt", "began_at"]
        constraints = [
            models.UniqueConstraint(fields=["attempt", "began_at", "name"], name="a_section_is_declared_once")
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.attempt}"


class RankTimes(models.Model):
    """How long each rank computed in one step, without waiting for others. The rank is the position in the arrays.

    Only the newest rows of an attempt are kept, because they show which rank is slow now.
    """

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="rank_times")
    at = models.DateTimeField(db_default=Now())
    seconds = ArrayField(models.FloatField())
    nodes = ArrayField(models.CharField(max_length=64))
    groups = ArrayField(
        models.CharField(max_length=40),
        default=list,
        help_text="Ranks with equal names do the same work. Empty: all do.",
    )

    class Meta:
        ordering = ["attempt", "-id"]
        verbose_name_plural = "times of ranks"

    def __str__(self) -> str:
        return f"{len(self.seconds)} ranks of {self.attempt}"
