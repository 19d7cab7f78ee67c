"""Evaluation campaigns: a Campaign measures some checkpoints with the datasets of a Suite.

An Evaluation is one dataset of one checkpoint, a cell of the result table. It is split into Shards as GPUs become free;
each sample is in exactly one shard. A Trial is a job that processes some shards of one checkpoint. A Staging is a copy
of a checkpoint on a node's own disk.
"""

from __future__ import annotations

from typing import Self

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from jobs.core.lifecycle import StatusBadge
from jobs.models import Cluster, Job, Team
from jobs.models.people import SLUG
from scheduling.core.run_badges import run_badge


class Framework(models.TextChoices):
    PLAIN = "plain", "plain commands"
    LM_EVAL = "lm-eval", "lm-evaluation-harness"
    OPENCOMPASS = "opencompass", "OpenCompass"


class Suite(models.Model):
    """One version of a suite. Rows never change: a changed suite is a new version, so results stay comparable."""

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="suites")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="suites")
    name = models.CharField(max_length=40, validators=[SLUG])
    version = models.PositiveIntegerField(default=1)
    title = models.CharField(max_length=120, blank=True)
    framework = models.CharField(max_length=12, choices=Framework, default=Framework.PLAIN)
    serve = models.TextField(blank=True, help_text="Started once a trial; it listens at $ACME_PORT when it is ready.")
    infer = models.TextField(help_text="Answers the samples of one shard, into $ACME_OUTPUT.")
    metric = models.TextField(blank=True, help_text="Scores them, without a GPU; it writes $ACME_RESULT.")
    output_root = models.CharField(max_length=300, help_text="Shared directory that all nodes can write to.")
    stage_root = models.CharField(max_length=300, blank=True, help_text="Where a node keeps a copy; empty: no copies.")
    gpus = models.PositiveSmallIntegerField("GPUs of a trial", default=1)
    cpus = models.PositiveSmallIntegerField("CPUs of a trial", default=4)
    memory_mb = models.PositiveBigIntegerField(default=0)
    metric_jobs = models.PositiveSmallIntegerField(
        default=16, help_text="CPU jobs of a campaign that may score at once."
    )
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ["team", "name", "-version"]
        constraints = [models.UniqueConstraint(fields=["team", "name", "version"], name="one_suite_per_version")]

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"


class SuiteDataset(models.Model):
    suite = models.ForeignKey(Suite, on_delete=models.CASCADE, related_name="datasets")
    position = models.PositiveIntegerField()
    name = models.CharField(max_length=80)
    samples = models.PositiveIntegerField()
    parts = models.PositiveIntegerField(default=1000, help_text="In how many pieces it may be cut; 1: it stays whole.")
    infer = models.TextField(blank=True, help_text="Instead of the suite's.")
    metric = models.TextField(blank=True, help_text="Instead of the suite's.")
    infer_s = models.FloatField(null=True, help_text="Seconds of all its samples on one GPU, before any were measured.")
    score_s = models.FloatField(null=True, help_text="Seconds of its metric, before any were measured.")

    class Meta:
        ordering = ["suite", "position"]
        constraints = [
            models.UniqueConstraint(fields=["suite", "name"], name="one_dataset_per_name"),
            models.CheckConstraint(condition=models.Q(samples__gte=1, parts__gte=1), name="dataset_has_samples"),
        ]

    def __str__(self) -> str:
        return self.name


class CampaignState(models.TextChoices):
    """States of campaigns and evaluations, named like the states of jobs."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


OPEN_CAMPAIGN_STATES = (CampaignState.PENDING, CampaignState.RUNNING)


class CampaignQuerySet(models.QuerySet["Campaign"]):
    def unfinished(self) -> Self:
        return self.filter(state__in=OPEN_CAMPAIGN_STATES)


class Campaign(models.Model):
    """Some checkpoints, evaluated with one suite."""

    public_id = models.CharField(max_length=16, unique=True)
    name = models.CharField(
        max_length=120, db_default="", help_text="Not unique. Default: the run, its steps and the suite."
    )
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="campaigns")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="campaigns")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="campaigns")
    suite = models.ForeignKey(Suite, on_delete=models.PROTECT, related_name="campaigns")
    rule = models.ForeignKey("EvaluationRule", null=True, on_delete=models.SET_NULL, related_name="campaigns")
    checkpoints = ArrayField(models.CharField(max_length=500))
    checkpoint_gb = models.FloatField(default=14.0)
    nodes = models.PositiveIntegerField(null=True, help_text="At most so many at once; empty: what the deadline asks.")
    deadline_at = models.DateTimeField(null=True)
    state = models.CharField(max_length=10, choices=CampaignState, default=CampaignState.PENDING)
    turn = models.PositiveBigIntegerField(
        default=0, help_text="Counted by each change; who looked before it changes nothing."
    )
    plan = models.JSONField(null=True, help_text="Made once, before anything ran.")
    why = models.TextField(blank=True)
    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    objects = CampaignQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["team", "-id"], name="campaign_by_team"),
            models.Index(fields=["id"], name="campaign_open", condition=models.Q(state__in=OPEN_CAMPAIGN_STATES)),
        ]

    def __str__(self) -> str:
        return self.public_id

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_CAMPAIGN_STATES

    @property
    def badge(self) -> StatusBadge:
        return run_badge(self.state)


class Evaluation(models.Model):
    """One dataset of one checkpoint."""

    campaign = models.ForeignKey(Campaign, on_delete=models.CASCADE, related_name="evaluations")
    checkpoint = models.CharField(max_length=500)
    dataset = models.ForeignKey(SuiteDataset, on_delete=models.PROTECT, related_name="evaluations")
    state = models.CharField(max_length=10, choices=CampaignState, default=CampaignState.PENDING)
    given = models.PositiveIntegerField(default=0, help_text="Samples that are in a shard already.")
    scores = models.JSONField(null=True)
    reused = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, help_text="Whose result this is.")
    why = models.TextField(blank=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["campaign", "checkpoint", "dataset"], name="a_campaign_evaluates_once"),
        ]
        indexes = [
            models.Index(
                fields=["dataset", "checkpoint"], name="evaluation_done", condition=models.Q(state="COMPLETED")
            ),
        ]

    def __str__(self) -> str:
        return f"{self.dataset_id} of {self.checkpoint}"


class TrialKind(models.TextChoices):
    INFER = "infer"
    SCORE = "score"


class Trial(models.Model):
    """A job that processes some shards of one checkpoint: inference on GPUs, or scoring on CPUs."""

    campaign = models.ForeignKey(Campaign, on_delete=models.CASCADE, related_name="trials")
    job = models.OneToOneField(Job, on_delete=models.PROTECT, related_name="trial")
    kind = models.CharField(max_length=5, choices=TrialKind)
    checkpoint = models.CharField(max_length=500)
    nonce = models.CharField(max_length=32, help_text="Its own lines in its log begin with it.")
    expected_s = models.FloatField(default=0.0)
    log_read_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True, help_text="When its end was taken over into its shards.")
    why = models.TextField(blank=True)

    class Meta:
        ordering = ["id"]
        indexes = [
            models.Index(fields=["campaign"], name="trial_open", condition=models.Q(ended_at__isnull=True)),
        ]

    def __str__(self) -> str:
        return f"{self.kind} trial {self.pk}"


class ShardState(models.TextChoices):
    WAITING = "WAITING"  # for a GPU
    INFERRING = "INFERRING"
    INFERRED = "INFERRED"  # waits for its metric
    SCORING = "SCORING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class Shard(models.Model):
    evaluation = models.ForeignKey(Evaluation, on_delete=models.CASCADE, related_name="shards")
    start = models.PositiveIntegerField()
    samples = models.PositiveIntegerField()
    state = models.CharField(max_length=9, choices=ShardState, default=ShardState.WAITING)
    trial = models.ForeignKey(
        Trial, null=True, on_delete=models.SET_NULL, related_name="shards"
    )  # that processes it now
    inferred_by = models.ForeignKey(Trial, null=True, on_delete=models.SET_NULL, related_name="inferred")
    scored_by = models.ForeignKey(Trial, null=True, on_delete=models.SET_NULL, related_name="scored")
    tries = models.PositiveSmallIntegerField(default=0, help_text="Its command failed so often.")
    losses = models.PositiveSmallIntegerField(default=0, help_text="Its job was taken away so often.")
    infer_s = models.FloatField(null=True)
    inferred_at_s = models.FloatField(null=True, help_text="Since its job began.")
    score_s = models.FloatField(null=True)
    scored_at_s = models.FloatField(null=True)
    scores = models.JSONField(null=True)
    why = models.TextField(blank=True)

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["evaluation", "start"], name="a_sample_is_in_one_shard")]
        indexes = [
            models.Index(
                fields=["evaluation"], name="shard_open", condition=~models.Q(state__in=["COMPLETED", "FAILED"])
            ),
        ]

    def __str__(self) -> str:
        return f"{self.evaluation_id}[{self.start}:{self.start + self.samples}]"


class StagingState(models.TextChoices):
    COPYING = "COPYING"
    READY = "READY"
    FAILED = "FAILED"
    REMOVING = "REMOVING"
    REMOVED = "REMOVED"


class Staging(models.Model):
    """A checkpoint's copy on a node. The campaigns of a team share it; the last one that needs it removes it."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="stagings")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="stagings")
    node = models.CharField(max_length=64)
    checkpoint = models.CharField(max_length=500)
    path = models.CharField(max_length=400)
    nonce = models.CharField(max_length=32)
    state = models.CharField(max_length=8, choices=StagingState, default=StagingState.COPYING)
    job = models.ForeignKey(Job, null=True, on_delete=models.PROTECT, related_name="stagings")
    removal = models.ForeignKey(Job, null=True, on_delete=models.PROTECT, related_name="removals")
    gb = models.FloatField(null=True)
    took_s = models.FloatField(null=True)
    why = models.TextField(blank=True)
    created_at = models.DateTimeField(db_default=Now())
    moved_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["cluster", "node", "path"],
                condition=models.Q(state__in=["COPYING", "READY", "REMOVING"]),
                name="one_copy_per_node",
            ),
        ]
        indexes = [
            models.Index(
                fields=["cluster"], name="staging_there", condition=models.Q(state__in=["COPYING", "READY", "REMOVING"])
            ),
        ]

    def __str__(self) -> str:
        return f"{self.checkpoint} on {self.node}"
