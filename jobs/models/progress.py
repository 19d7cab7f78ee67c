"""What a job says of itself while it runs: how far it is and how it goes.

Progress grows by up to a thousand rows a second, so a row is narrow and there is one B-tree, its own key. Pulse is the
newest of each attempt: what pages and detectors ask for, without a search in the rows.
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
    at = models.DateTimeField(help_text="By the job's clock, but never later than ours.")
    step = models.PositiveBigIntegerField(null=True)
    tokens = models.PositiveBigIntegerField(null=True, help_text="Consumed since the beginning of the training.")
    sum_sq = models.FloatField(null=True, help_text="Of the squared lengths of the sequences, since the beginning.")
    loss = models.FloatField(null=True)
    grad_norm = models.FloatField(null=True)
    step_time_s = models.FloatField(null=True)
    learning_rate = models.FloatField(null=True)

    class Meta:
        abstract = True


class Progress(StepMetrics):
    """Append-only. The attempt is looked up by the statement that inserts, so no constraint needs to look again."""

    pk = models.CompositePrimaryKey("attempt_id", "at")
    attempt = models.ForeignKey(
        Attempt, on_delete=models.CASCADE, related_name="progress", db_constraint=False, db_index=False
    )

    class Meta:
        ordering = ["attempt_id", "at"]
        indexes = [BrinIndex(fields=["at"], name="progress_by_age")]  # for forgetting; costs an insert next to nothing
        verbose_name_plural = "progress"

    def __str__(self) -> str:
        return f"{self.attempt_id} step {self.step}"


class ProgressSource(models.TextChoices):
    REPORTS = "", "its reports"
    LOG = "log", "its log"
    LATE = "late", "its log, which nobody had read from the beginning"


class Pulse(StepMetrics):
    """What a log tells of an attempt counts only while the attempt itself reports no step."""

    attempt = models.OneToOneField(Attempt, primary_key=True, on_delete=models.CASCADE, related_name="pulse")
    heard_at = models.DateTimeField(db_default=Now(), help_text="By our clock.")
    source = models.CharField(
        max_length=4,
        choices=ProgressSource,
        blank=True,
        default=ProgressSource.REPORTS,
        db_default="",
        help_text="Who tells its steps.",
    )
    steps_total = models.PositiveBigIntegerField(null=True, help_text="Where it is to end, as its log says.")
    # No Checkpoint: nobody has looked whether it is whole, so nothing is ever started from it
    saved_step = models.PositiveBigIntegerField(null=True, help_text="The last checkpoint that its log says is saved.")
    saved_at = models.DateTimeField(null=True, help_text="When that one was saved, at the earliest.")
    saved_path = models.CharField(max_length=400, blank=True, default="", db_default="")

    @property
    def is_of_log(self) -> bool:
        return self.source != ProgressSource.REPORTS

    def __str__(self) -> str:
        return f"{self.attempt} step {self.step}"


class Section(models.Model):
    """A time in which no step is due, as the job declared it; without an end while it lasts."""

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
    """How long each rank computed in one step, without waiting for others; a rank is a position in the arrays.

    Only the newest few of an attempt are kept: they say who is slow now.
    """

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="rank_times")
    at = models.DateTimeField(db_default=Now())
    seconds = ArrayField(models.FloatField())
    nodes = ArrayField(models.CharField(max_length=64))
    groups = ArrayField(models.CharField(max_length=40), default=list, help_text="Who does the same work; empty: all.")

    class Meta:
        ordering = ["attempt", "-id"]
        verbose_name_plural = "times of ranks"

    def __str__(self) -> str:
        return f"{len(self.seconds)} ranks of {self.attempt}"
