"""Jobs, their attempts, the GPUs that attempts hold (allocations) and saved checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Self

from django.conf import settings
from django.contrib.postgres.aggregates import ArrayAgg
from django.contrib.postgres.fields import ArrayField, DateTimeRangeField
from django.contrib.postgres.indexes import GinIndex, GistIndex
from django.db import models
from django.db.models.functions import Cast, Coalesce, Greatest, Now

from jobs.core import lifecycle
from jobs.core.attempt_end import TRAINING_KINDS
from jobs.core.cluster_kinds import COPIED_LOGS_SCHEMES
from jobs.core.deadlines import DeadlineAction, DeadlineForecast, JobDeadline
from jobs.core.gpu_shares import WHOLE_GPU, charged_milli, gpu_number
from jobs.core.lifecycle import FAILURE_STATES, FINAL_STATES, JOB_STATES, LIVE_STATES, Flag, JobKind, State
from jobs.core.preemption_contract import PreemptionContract, PreemptionFacts, contract_text
from jobs.core.public_id import MAX_BACKEND_ID_LENGTH
from jobs.core.request_fields import MAX_IMAGE_LENGTH, MAX_WCKEY_LENGTH
from jobs.logs.log_source import LogSource
from jobs.models.cluster import Cluster, Node
from jobs.models.people import Team, TeamRole

JOB_STATE_CHOICES = [(state.value, state.value) for state in JOB_STATES]
ATTEMPT_STATE_CHOICES = [(state.value, state.value) for state in State]
JOB_KIND_CHOICES = [(kind.value, kind.value) for kind in JobKind]


class HoldKind(models.TextChoices):
    NONE = "", "no"
    USER = "user", "by its owner"
    ADMIN = "admin", "by an operator"


TOTAL_GPUS = models.F("nodes") * models.F("gpus_per_node")
# What accounts count, in thousandths of a GPU
CHARGED_MILLI = Cast("nodes", models.BigIntegerField()) * models.F("gpus_per_node") * WHOLE_GPU + models.F("gpu_milli")
# Of an allocation: a job holds all of a MIG slice, which is a part of a GPU
HELD_MILLI = models.Case(models.When(attempt__job__mig_profile="", then="share"), default="attempt__job__gpu_milli")
# The columns of a job table. Loading all forty columns would double the cost of a page
LIST_COLUMNS = (
    *("public_id", "name", "kind", "cluster__name", "team__name", "user__username", "foreign_id", "foreign_user"),
    *("array_id", "nodes", "gpus_per_node", "gpu_milli", "preemptible", "priority", "state", "flags", "reason", "why"),
    *("submitted_at", "started_at", "ended_at", "exit_code", "signal"),
    *("deadline_at", "deadline_action", "deadline_probability", "deadline_why"),
)


class JobQuerySet(models.QuerySet["Job"]):
    def visible_to(self, user, role: str = TeamRole.VIEWER) -> Self:
        """Return the jobs of teams in which the user has at least this role."""
        if user.is_superuser:
            return self
        return self.filter(team__in=Team.objects.where(user, role).values("pk"))

    def unfinished(self) -> Self:
        return self.exclude(state__in=FINAL_STATES)

    def waiting(self) -> Self:
        return self.filter(state=State.PENDING)

    def in_queue_order(self) -> Self:
        return self.order_by("-priority", "submitted_at", "id")

    def live(self) -> Self:
        return self.filter(state__in=sorted(LIVE_STATES))

    def largest_trainings(self) -> Self:
        """Return live training jobs, the largest first, because their failure loses the most work."""
        return self.live().filter(kind__in=sorted(TRAINING_KINDS)).order_by(TOTAL_GPUS.desc(), "-id")

    def on_requeue_hold(self) -> Self:
        """Return jobs that Acme does not start again until a user releases them."""
        return self.waiting().filter(flags__contains=[Flag.REQUEUE_HOLD])

    def with_unknown_outcome(self) -> Self:
        """Return jobs whose last attempt the cluster no longer knows; a user must record the outcome."""
        return self.waiting().filter(flags__contains=[Flag.OUTCOME_UNKNOWN])

    def hanging(self, commands: models.QuerySet) -> Self:
        """Return live jobs whose stop command is among these. Usually there are none, so the commands are queried
        first."""
        attempts = list(commands.order_by().values_list("attempt", flat=True))
        return self.live().filter(attempts__in=attempts, attempts__ended_at__isnull=True) if attempts else self.none()

    def recovering(self) -> Self:
        """Return jobs that wait for a recovery decision or for its approval."""
        return self.waiting().filter(recover_by__isnull=False)

    def latest_ended(self) -> Self:
        return self.filter(ended_at__isnull=False).order_by("-ended_at")

    def matching_text(self, text: str) -> Self:
        """Return jobs with this text in their name, or with an id that starts with it."""
        return self.filter(models.Q(name__icontains=text) | models.Q(public_id__startswith=text.lower()))

    def with_list_columns(self) -> Self:
        """Load only the columns of a job table. Node list and cause of failure are those of the newest attempt."""
        newest = Attempt.objects.filter(job=models.OuterRef("pk")).order_by("-number")
        place = Coalesce(
            models.Subquery(newest.values("nodelist")[:1]), models.Value(""), output_field=models.TextField()
        )
        cause = Coalesce(models.Subquery(newest.values("cause")[:1]), models.Value(""))
        related = self.select_related("user", "team", "cluster")
        return related.annotate(nodelist=place, cause=cause).only(*LIST_COLUMNS)

    def with_cause(self, cause: str) -> Self:
        """Return jobs of which an attempt failed with this root cause."""
        return self.filter(pk__in=Attempt.objects.filter(cause=cause).values("job"))


class Job(models.Model):
    """A job request and its current state. `jobs.actions` is the only code that changes it."""

    tasks: object = None  # set by lists that show an array as one row: the tasks that this row stands for
    loss_line: str = ""  # set by the job list: points of the loss sparkline

    # identity
    public_id = models.CharField("job id", max_length=24, unique=True, editable=False)
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="jobs")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="jobs")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="acme_jobs")
    name = models.CharField(max_length=120)
    kind = models.CharField(max_length=12, choices=JOB_KIND_CHOICES, default=JobKind.OTHER)

    # what to run
    command = models.TextField()
    image = models.CharField(
        "container image",
        max_length=MAX_IMAGE_LENGTH,
        blank=True,
        default="",
        db_default="",
        help_text="Reference of the container image that the job runs in. Empty: none.",
    )
    mounts = ArrayField(
        models.CharField(max_length=63),
        default=list,
        db_default=[],
        blank=True,
        help_text="Names of volumes that the cluster offers to jobs.",
    )
    workdir = models.CharField(max_length=500, blank=True)
    environment = models.JSONField(default=dict, blank=True)

    # resources
    nodes = models.PositiveIntegerField(default=1)
    gpus_per_node = models.PositiveSmallIntegerField("GPUs per node", default=0)
    # Not a positive field: its check would read the whole table in the migration
    gpu_milli = models.SmallIntegerField(
        "thousandths of a GPU",
        default=0,
        db_default=0,
        editable=False,
        help_text="Part of one GPU that the job shares with others, instead of whole GPUs.",
    )
    share_gres = models.CharField(
        "name of the share in Slurm",
        max_length=8,
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="What Slurm must call the parts of the GPU, shard or mps; empty: any of them.",
    )
    mig_profile = models.CharField(
        "MIG profile",
        max_length=32,
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="The MIG slice that the job requests instead of GPUs.",
    )
    cpus_per_node = models.PositiveIntegerField("CPUs per node", default=1)
    memory_per_node_mb = models.PositiveBigIntegerField("memory per node (MiB)", default=0)
    gpu_model = models.CharField("GPU model", max_length=200, blank=True)  # several: `jobs.core.gpu_models`
    nic_type = models.CharField("NIC type", max_length=40, blank=True)
    required_node = models.CharField(
        max_length=64,
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="The only node on which the job may run.",
    )
    time_limit = models.DurationField(null=True, blank=True, help_text="Empty: UNLIMITED.")

    # queueing
    priority = models.IntegerField(default=0)
    preemptible = models.BooleanField(default=False)
    preempt_exempt_time = models.DurationField(
        default=timedelta(0),
        db_default=timedelta(0),
        help_text="How long the job is protected from preemption after each start.",
    )
    preempt_at_checkpoint = models.BooleanField(
        default=False, db_default=False, help_text="Whether it is preempted only right after a checkpoint."
    )
    # Not a positive field: its check would read the whole table in the migration
    preemptions_per_day = models.SmallIntegerField(
        null=True, blank=True, help_text="How often it may be preempted within 24 hours. Empty: no limit."
    )
    requeue_limit = models.PositiveSmallIntegerField(default=3)
    requeues = models.PositiveSmallIntegerField(default=0, editable=False)
    begin_at = models.DateTimeField(null=True, blank=True)
    deadline_at = models.DateTimeField(null=True, blank=True, help_text="When the job should have ended.")
    deadline_action = models.CharField(
        max_length=8,
        choices=[(action.value, action.value) for action in DeadlineAction],
        default=DeadlineAction.CONTINUE.value,
        db_default=DeadlineAction.CONTINUE.value,
        help_text="What happens when the deadline passes. cancel: the job ends, as with Slurm's --deadline.",
    )
    deadline_probability = models.FloatField(
        null=True, editable=False, help_text="The last forecast of whether it meets its deadline, from 0 to 1."
    )
    deadline_why = models.TextField(
        blank=True, default="", db_default="", editable=False, help_text="What the forecast results from."
    )
    hold = models.CharField(max_length=5, choices=HoldKind, default=HoldKind.NONE, blank=True, editable=False)
    array_id = models.CharField(max_length=16, blank=True, editable=False, db_index=True)
    array_index = models.PositiveIntegerField(null=True, editable=False)
    array_limit = models.PositiveIntegerField(
        null=True, editable=False, help_text="Number of tasks that may run at the same time."
    )

    # checkpoints and labels
    checkpoint_dir = models.CharField(max_length=500, blank=True)
    checkpoint_interval = models.DurationField(null=True, blank=True)
    checkpoint_signal = models.CharField(
        max_length=16,
        blank=True,
        help_text="Signal that requests a checkpoint before a stop: [B:]USR1[@seconds], as for sbatch --signal.",
    )
    labels = models.JSONField(default=dict, blank=True)
    comment = models.TextField(blank=True)
    wckey = models.CharField("workload key", max_length=MAX_WCKEY_LENGTH, blank=True, default="", db_default="")

    # state
    state = models.CharField(max_length=14, choices=JOB_STATE_CHOICES, default=State.PENDING, editable=False)
    flags = ArrayField(models.CharField(max_length=16), default=list, editable=False)
    reason = models.CharField(
        max_length=40, blank=True, editable=False, help_text="Why the job waits, as a Slurm reason."
    )
    why = models.TextField(blank=True, editable=False, help_text="Why the job waits, as a sentence.")
    power_budgets = ArrayField(
        models.CharField(max_length=60),
        default=list,
        db_default=[],
        blank=True,
        editable=False,
        help_text="Names of the power budgets that leave too little for it, while its reason is Power.",
    )
    submitted_at = models.DateTimeField(db_default=Now(), editable=False)
    started_at = models.DateTimeField(null=True, editable=False)
    ended_at = models.DateTimeField(null=True, editable=False)
    exit_code = models.IntegerField(null=True, editable=False)
    signal = models.PositiveSmallIntegerField(null=True, editable=False)
    # recovery from the last failure
    predicted_s = models.FloatField(
        null=True,
        editable=False,
        help_text="Run time in seconds, predicted from similar jobs at its first scheduling turn.",
    )
    trees_predicted_s = models.FloatField(
        null=True,
        editable=False,
        help_text="The same, blended with the prediction of trees, if they had been trained by then.",
    )
    run_time_learned = models.BooleanField(
        default=False, db_default=False, editable=False, help_text="Whether predictions of later jobs include it."
    )
    recover_by = models.DateTimeField(
        null=True,
        editable=False,
        help_text="The job waits for recovery until then. Afterwards the rules without recovery apply.",
    )
    resume = models.JSONField(
        default=dict, editable=False, help_text="Passed to the next attempt: checkpoint, its step, steps to skip."
    )
    foreign_id = models.CharField(
        max_length=MAX_BACKEND_ID_LENGTH + 20,
        blank=True,
        editable=False,
        help_text="Id and submission time on the cluster, for jobs submitted outside Acme.",
    )
    foreign_user = models.CharField(
        max_length=64, blank=True, editable=False, help_text="Owner on the cluster, for jobs submitted outside Acme."
    )
    foreign_key = models.CharField(
        max_length=48,
        blank=True,
        db_default="",
        editable=False,
        help_text="Installation and attempt key, for jobs of another Acme installation.",
    )

    objects = JobQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["cluster", "state", "-id"], name="job_by_state"),
            models.Index(fields=["cluster", "-id"], name="job_of_cluster"),
            models.Index(fields=["user", "-id"], name="job_by_user"),
            models.Index(fields=["team", "-id"], name="job_by_team"),
            models.Index(fields=["submitted_at"], name="job_by_time"),
            GinIndex(fields=["labels"], name="job_by_label", opclasses=["jsonb_path_ops"]),
            # Sort orders of lists. The id makes the order unique
            models.Index(fields=["ended_at", "id"], name="job_by_end", condition=models.Q(ended_at__isnull=False)),
            models.Index(
                fields=["started_at", "id"], name="job_by_start", condition=models.Q(started_at__isnull=False)
            ),
            models.Index(fields=["priority", "id"], name="job_by_priority"),
            models.Index(fields=["name", "id"], name="job_by_name"),
            # The newest jobs of a name, of which steps per second are measured
            models.Index(
                fields=["user", "name", "-submitted_at"],
                name="job_runs_of_name",
                condition=models.Q(started_at__isnull=False),
            ),
            models.Index(TOTAL_GPUS, models.F("id"), name="job_by_gpus"),
            # Partial indexes stay small, whatever the size of the history
            models.Index(
                fields=["cluster", "-priority", "submitted_at", "id"],
                name="job_queue",
                condition=models.Q(state=State.PENDING),
            ),
            # The same order across clusters, for pages that show all of them
            models.Index(
                fields=["-priority", "submitted_at", "id"],
                name="job_queue_of_all",
                condition=models.Q(state=State.PENDING),
            ),
            # For limits: the index of all jobs of a user or team has a large history
            models.Index(fields=["user"], name="job_waiting_of_user", condition=models.Q(state=State.PENDING)),
            models.Index(fields=["team"], name="job_waiting_of_team", condition=models.Q(state=State.PENDING)),
            models.Index(fields=["cluster"], name="job_live", condition=models.Q(state__in=sorted(LIVE_STATES))),
            models.Index(
                models.F("started_at").desc(nulls_first=True),
                models.F("id").desc(),
                name="job_live_by_start",
                condition=models.Q(state__in=sorted(LIVE_STATES)),
            ),
            models.Index(
                TOTAL_GPUS.desc(),
                models.F("id").desc(),
                name="job_widest_trainings",
                condition=models.Q(state__in=sorted(LIVE_STATES), kind__in=sorted(TRAINING_KINDS)),
            ),
            # Few of the waiting jobs match, and every view of the start page queries them
            models.Index(
                fields=["-id"],
                name="job_held_back",
                condition=models.Q(state=State.PENDING, flags__contains=[Flag.REQUEUE_HOLD]),
            ),
            models.Index(
                fields=["-id"],
                name="job_outcome_unknown",
                condition=models.Q(state=State.PENDING, flags__contains=[Flag.OUTCOME_UNKNOWN]),
            ),
            models.Index(
                fields=["cluster", "deadline_at"],
                name="job_open_deadline",
                condition=models.Q(deadline_at__isnull=False, state__in=sorted(LIVE_STATES | {State.PENDING})),
            ),
            models.Index(fields=["recover_by"], name="job_recovering", condition=models.Q(recover_by__isnull=False)),
            models.Index(
                fields=["cluster", "ended_at"],
                name="job_run_time_not_learned",
                condition=models.Q(
                    run_time_learned=False, started_at__isnull=False, ended_at__isnull=False, foreign_id=""
                ),
            ),
        ]
        constraints = [
            models.CheckConstraint(condition=models.Q(state__in=list(JOB_STATES)), name="job_state_known"),
            models.CheckConstraint(condition=models.Q(kind__in=list(JobKind)), name="job_kind_known"),
            models.CheckConstraint(condition=models.Q(nodes__gte=1), name="job_has_a_node"),
            models.UniqueConstraint(
                fields=["cluster", "foreign_id"], condition=~models.Q(foreign_id=""), name="one_row_per_foreign_job"
            ),
        ]

    def __str__(self) -> str:
        return self.public_id

    @property
    def badge(self) -> lifecycle.StateBadge:
        return lifecycle.badge(State(self.state), self.flags)

    @property
    def is_final(self) -> bool:
        return self.state in FINAL_STATES

    @property
    def is_foreign(self) -> bool:
        """Whether the job was submitted outside Acme. Such jobs are shown and counted, never changed."""
        return bool(self.foreign_id)

    @property
    def is_adopted(self) -> bool:
        """Whether the job was taken over from another Acme installation. Its command is unknown here, so it cannot
        start again."""
        return bool(self.foreign_key) and not self.foreign_id

    @property
    def installation(self) -> str:
        """The id of the other Acme installation that submitted the job. Empty for all other jobs."""
        return self.foreign_key.partition(":")[0] if self.foreign_id else ""

    @property
    def owner_name(self) -> str:
        return self.foreign_user or self.user.get_username()

    @property
    def preemption_contract(self) -> PreemptionContract:
        return PreemptionContract.of(self)

    @property
    def deadline(self) -> JobDeadline | None:
        """The deadline with its forecast or outcome; None without one."""
        if self.deadline_at is None:
            return None
        return JobDeadline(
            at=self.deadline_at,
            action=DeadlineAction(self.deadline_action),
            forecast=DeadlineForecast(probability=self.deadline_probability, why=self.deadline_why),
            state=State(self.state),
            ended_at=self.ended_at,
        )

    @property
    def preemption_text(self) -> str:
        """When the job can be preempted, as a sentence."""
        return contract_text(self.preemption_contract, preemptible=self.preemptible)

    @property
    def is_live(self) -> bool:
        return self.state in LIVE_STATES

    @property
    def charged_milli(self) -> int:
        """What accounts count, in thousandths of a GPU."""
        return charged_milli(self.nodes * self.gpus_per_node, self.gpu_milli)

    @property
    def gpus(self) -> float:
        return gpu_number(self.charged_milli)

    @property
    def requested_gpus_per_node(self) -> float:
        if self.mig_profile:
            return 0
        return gpu_number(charged_milli(self.gpus_per_node, self.gpu_milli))

    @property
    def is_configuring(self) -> bool:
        return Flag.CONFIGURING in self.flags

    def elapsed(self, now: datetime) -> timedelta | None:
        """Return the run time of the job so far, or None before its start."""
        return (self.ended_at or now) - self.started_at if self.started_at else None

    def waited(self, now: datetime) -> timedelta:
        """Return how long the job waited for its start, or has waited so far."""
        return (self.started_at or self.ended_at or now) - self.submitted_at


class DependencyCondition(models.TextChoices):
    """The required end of the other job, in sbatch's terms."""

    OK = "afterok"
    ANY = "afterany"
    NOT_OK = "afternotok"


class Dependency(models.Model):
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="dependencies")
    on = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="dependents")
    after = models.CharField(max_length=10, choices=DependencyCondition)

    class Meta:
        verbose_name_plural = "dependencies"
        constraints = [
            models.UniqueConstraint(fields=["job", "on"], name="one_dependency_per_pair"),
            # Longer cycles are rejected when jobs are submitted
            models.CheckConstraint(condition=~models.Q(job=models.F("on")), name="no_job_waits_for_itself"),
        ]

    def __str__(self) -> str:
        return f"{self.after}:{self.on}"


# The period of an ended attempt. Greatest(), because by the cluster's clock it may end before its allocation.
ATTEMPT_SPAN = models.Func(
    "promised_at",
    Greatest("promised_at", "ended_at"),
    function="tstzrange",
    output_field=DateTimeRangeField(),
)


class AttemptQuerySet(models.QuerySet["Attempt"]):
    def live(self) -> Self:
        return self.filter(ended_at__isnull=True)

    def with_log(self) -> Self:
        """Return attempts whose log can be read."""
        schemes = (("job__cluster__address__startswith", scheme) for scheme in COPIED_LOGS_SCHEMES)
        has_none = models.Q(job__cluster__log_root="") & ~models.Q(*schemes, _connector=models.Q.OR)
        return self.exclude(log_path="").exclude(has_none)

    def with_pending_log(self) -> Self:
        """Return attempts of which Acme still copies the output."""
        return self.filter(log_pending=True)

    def preempted(self) -> Self:
        """Return ended attempts that were preempted. A job that completed before the stop arrived was not."""
        ended = self.filter(stop_state=State.PREEMPTED, ended_at__isnull=False)
        return ended.exclude(state=State.COMPLETED)

    def at(self, moment: datetime) -> Self:
        """Return attempts that were live at this time, whether they have ended since or not. Each half has its own
        index."""
        over = models.Q(ended_at__isnull=False, span__contains=moment)
        return self.alias(span=ATTEMPT_SPAN).filter(over | models.Q(ended_at__isnull=True, promised_at__lte=moment))


class Attempt(models.Model):
    """One execution of a job, from the allocation of GPUs (CONFIGURING) to its end. A job has at most one live
    attempt."""

    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="attempts")
    number = models.PositiveSmallIntegerField()
    key = models.CharField(
        max_length=32, unique=True, help_text="Id of the attempt in Acme, which is also stored on the cluster."
    )
    backend_id = models.CharField(
        max_length=MAX_BACKEND_ID_LENGTH, blank=True, help_text="The cluster's own id of the job."
    )
    state = models.CharField(max_length=14, choices=ATTEMPT_STATE_CHOICES, default=State.RUNNING)
    nodelist = models.TextField(blank=True)
    log_path = models.CharField(max_length=500, blank=True)
    promised_at = models.DateTimeField(db_default=Now())
    accepted_at = models.DateTimeField(null=True, help_text="When the cluster accepted it (clock of Acme).")
    confirmed_at = models.DateTimeField(null=True, help_text="When it started (clock of the cluster).")
    seen_running_at = models.DateTimeField(null=True, help_text="When it was first observed running (clock of Acme).")
    ended_at = models.DateTimeField(null=True)
    missing_since = models.DateTimeField(
        null=True, help_text="Since when the cluster responds but does not know the attempt."
    )
    exit_code = models.IntegerField(null=True)
    signal = models.PositiveSmallIntegerField(null=True)
    reason = models.TextField(blank=True)
    cause = models.CharField(
        max_length=80, blank=True, help_text="Root cause: the label of the diagnosis, as soon as there is one."
    )
    # The newest checkpoint of this attempt on remote storage
    saved_at = models.DateTimeField(null=True)
    saved_step = models.PositiveBigIntegerField(null=True)
    # When a preemption last asked it for a checkpoint, for jobs that are preempted only at checkpoints
    checkpoint_asked_at = models.DateTimeField(null=True, editable=False)
    # The state that a user or a loop requested with a stop. The cluster's report decides the final state
    stop_state = models.CharField(max_length=14, blank=True, choices=JOB_STATE_CHOICES)
    stop_reason = models.TextField(blank=True)
    stacks_signal = models.CharField(
        max_length=12,
        blank=True,
        db_default="",
        help_text="Signal at which the processes write their stacks, as declared by the job.",
    )

    usage_counted = models.BooleanField(
        default=False, db_default=False, editable=False, help_text="Whether the usage of its team contains it."
    )

    slowdown = models.FloatField(
        default=1.0,
        db_default=1.0,
        editable=False,
        help_text="How many times as long the job runs on its GPU model as on the first one that it requested.",
    )

    log_pending = models.BooleanField(
        default=False, db_default=False, editable=False, help_text="Whether Acme still has to copy output to its log."
    )

    objects = AttemptQuerySet.as_manager()

    class Meta:
        ordering = ["job", "number"]
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="attempts_are_counted"),
            models.UniqueConstraint(
                # Prevents a second start if two schedulers ever run at the same time
                fields=["job"],
                condition=models.Q(ended_at__isnull=True),
                name="one_live_attempt_per_job",
            ),
            models.CheckConstraint(condition=models.Q(state__in=list(State)), name="attempt_state_known"),
        ]
        indexes = [
            models.Index(fields=["backend_id"], name="attempt_by_backend_id"),
            models.Index(fields=["id"], name="attempt_live", condition=models.Q(ended_at__isnull=True)),
            models.Index(
                fields=["missing_since"],
                name="attempt_missing",
                condition=models.Q(ended_at__isnull=True, missing_since__isnull=False),
            ),
            models.Index(fields=["ended_at"], name="attempt_end_not_counted", condition=models.Q(usage_counted=False)),
            models.Index(fields=["id"], name="attempt_log_pending", condition=models.Q(log_pending=True)),
            # The diagnosis loop reads the failures of the last hour every second
            models.Index(
                fields=["ended_at"], name="attempt_failed", condition=models.Q(state__in=sorted(FAILURE_STATES))
            ),
            models.Index(fields=["cause", "job"], name="attempt_by_cause", condition=~models.Q(cause="")),
            # The allocations at a time in the past, independent of the size of the history
            GistIndex(ATTEMPT_SPAN, name="attempt_by_span", condition=models.Q(ended_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return self.key

    def preemption_facts(self) -> PreemptionFacts:
        """Return what the job's contract depends on. One query, if the contract limits preemptions per day."""
        earlier = Attempt.objects.filter(job=self.job_id).preempted().values_list("ended_at", flat=True)
        return PreemptionFacts(
            started_at=self.seen_running_at,
            saved_at=self.saved_at,
            asked_at=self.checkpoint_asked_at,
            preempted_at=() if self.job.preemptions_per_day is None else tuple(earlier),
        )

    @property
    def log_source(self) -> LogSource:
        return self.job.cluster.log_source(self.log_path)

    @property
    def badge(self) -> lifecycle.StateBadge:
        flags = [Flag.CONFIGURING] if self.state == State.RUNNING and not self.confirmed_at else []
        return lifecycle.badge(State(self.state), flags)

    @property
    def exit_text(self) -> str:
        """Exit code and signal as `code:signal`, as in sacct."""
        if self.exit_code is None and self.signal is None:
            return ""
        return f"{self.exit_code or 0}:{self.signal or 0}"


class AllocationQuerySet(models.QuerySet["Allocation"]):
    def live(self) -> Self:
        return self.filter(released_at__isnull=True)

    def at(self, moment: datetime) -> Self:
        # The attempt's index narrows the rows; allocations have no index over time
        held = models.Q(released_at__isnull=True) | models.Q(released_at__gt=moment)
        return self.filter(held, attempt__in=Attempt.objects.at(moment).values("pk"), held_at__lte=moment)

    def held_per_node(self) -> dict[int, int]:
        """Return the number of GPUs in use by node key. One of which only shares are held counts: no job that needs a
        whole GPU can have it. Idle nodes are not included."""
        rows = self.live().filter(gpu__isnull=False).order_by()
        return dict(rows.values_list("node").annotate(models.Count("gpu", distinct=True)))

    def gpus_by_attempt_and_node(self) -> Iterator[tuple[int, int, list[int | None], int]]:
        """Yield (attempt, node, GPUs held there, thousandths of each), one row per pair. The list is [None] if the
        attempt holds no GPU there. An attempt holds whole GPUs or one share."""
        rows = self.order_by().values_list("attempt_id", "node_id")
        rows = rows.annotate(gpus=ArrayAgg("gpu"), least=models.Min("share"))
        return rows.iterator(chunk_size=10_000)


class Allocation(models.Model):
    """One GPU, a MIG slice or a share of a GPU, held by an attempt. On a node where an attempt holds only CPUs and
    memory, one row with `gpu` null.

    A slice is a device of its own (`jobs.core.gpu_shares`): it has an index, and all of it is held.

    A share is a range of the thousandths of its GPU. The database rejects a second live holder of a GPU or of a
    thousandth with the exclusion constraints `one_live_holder_per_gpu`, in which the share with the first thousandth
    stands for its GPU, and `one_live_holder_per_thousandth`. They are written in SQL in a migration because Django
    cannot express them. They are checked at the end of each statement, so one UPDATE may swap GPUs between attempts if
    a cluster chose other indices than Acme.
    """

    attempt = models.ForeignKey(Attempt, on_delete=models.PROTECT, related_name="allocations")
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="allocations")
    gpu = models.PositiveSmallIntegerField(null=True, help_text="Index of the GPU on the node.")
    share_begin = models.SmallIntegerField(default=0, db_default=0, help_text="First thousandth of the GPU.")
    share = models.SmallIntegerField(
        default=WHOLE_GPU, db_default=WHOLE_GPU, help_text="Thousandths of the GPU; 1000 is all of it."
    )
    held_at = models.DateTimeField(db_default=Now())
    released_at = models.DateTimeField(null=True)

    objects = AllocationQuerySet.as_manager()

    class Meta:
        ordering = ["attempt", "node", "gpu"]
        indexes = [
            models.Index(fields=["node", "gpu"], name="allocation_live", condition=models.Q(released_at__isnull=True)),
        ]

    def __str__(self) -> str:
        return f"{self.node}:{'cpu' if self.gpu is None else self.gpu} by {self.attempt}"

    @property
    def share_text(self) -> str:
        """The part of the GPU, such as 0.5; empty for all of it."""
        return str(gpu_number(self.share)) if self.share < WHOLE_GPU else ""


class CheckpointVerdict(models.TextChoices):
    UNKNOWN = "", "not judged"
    GOOD = "good"
    BAD = "bad"


class Checkpoint(models.Model):
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="checkpoints")
    attempt = models.ForeignKey(Attempt, null=True, blank=True, on_delete=models.PROTECT, related_name="checkpoints")
    step = models.PositiveBigIntegerField()
    path = models.CharField(max_length=500)
    saved_at = models.DateTimeField(db_default=Now())
    durable_at = models.DateTimeField(null=True, blank=True, help_text="When the checkpoint was on remote storage.")
    stall_s = models.FloatField(null=True, blank=True, help_text="Seconds for which the save stalled training.")
    verdict = models.CharField(max_length=4, choices=CheckpointVerdict, default=CheckpointVerdict.UNKNOWN, blank=True)
    verdict_why = models.TextField(blank=True)

    class Meta:
        ordering = ["job", "-step"]
        # The path is the identity: a path that is overwritten replaces the checkpoint
        constraints = [models.UniqueConstraint(fields=["job", "path"], name="one_row_per_checkpoint")]

    def __str__(self) -> str:
        return f"{self.job} step {self.step}"
