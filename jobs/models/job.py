"""What was asked (Job), each execution of it (Attempt), the GPUs it holds (Allocation), what it saved (Checkpoint)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Self

from django.conf import settings
from django.contrib.postgres.aggregates import ArrayAgg
from django.contrib.postgres.fields import ArrayField, DateTimeRangeField
from django.contrib.postgres.indexes import GinIndex, GistIndex
from django.db import models
from django.db.models.functions import Coalesce, Greatest, Now

from jobs.core import lifecycle
from jobs.core.attempt_end import TRAINING_KINDS
from jobs.core.lifecycle import FAILURE_STATES, FINAL_STATES, JOB_STATES, LIVE_STATES, Flag, JobKind, State
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
# Of the forty columns those that a table of jobs shows: half of what a page of them costs is to name them
LIST_COLUMNS = (
    *("public_id", "name", "kind", "cluster", "team__name", "user__username", "foreign_id", "foreign_user", "array_id"),
    *("nodes", "gpus_per_node", "preemptible", "priority", "state", "flags", "reason", "why"),
    *("submitted_at", "started_at", "ended_at", "exit_code", "signal"),
)


class JobQuerySet(models.QuerySet["Job"]):
    def visible_to(self, user, role: str = TeamRole.VIEWER) -> Self:
        """Jobs of the teams in which the user has at least this role."""
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
        """Of those that hold something, the widest first: there most is lost."""
        return self.live().filter(kind__in=sorted(TRAINING_KINDS)).order_by(TOTAL_GPUS.desc(), "-id")

    def on_requeue_hold(self) -> Self:
        """The scheduler gave up on them and a person must look."""
        return self.waiting().filter(flags__contains=[Flag.REQUEUE_HOLD])

    def with_unknown_outcome(self) -> Self:
        """Their clusters forgot how their last attempts ended, and a person must record it."""
        return self.waiting().filter(flags__contains=[Flag.OUTCOME_UNKNOWN])

    def hanging(self, deeds: models.QuerySet) -> Self:
        """Live jobs whose stop is among these deeds: mostly none, so they are looked up first."""
        attempts = list(deeds.order_by().values_list("attempt", flat=True))
        return self.live().filter(attempts__in=attempts, attempts__ended_at__isnull=True) if attempts else self.none()

    def recovering(self) -> Self:
        """What is done about their failure is being decided, or waits for somebody's yes."""
        return self.waiting().filter(recover_by__isnull=False)

    def latest_ended(self) -> Self:
        return self.filter(ended_at__isnull=False).order_by("-ended_at")

    def called(self, text: str) -> Self:
        """By a part of the name, or the beginning of the id."""
        return self.filter(models.Q(name__icontains=text) | models.Q(public_id__startswith=text.lower()))

    def with_list_columns(self) -> Self:
        """What a table of jobs shows: the nodes are those of the newest attempt, the cluster is its key alone."""
        newest = Attempt.objects.filter(job=models.OuterRef("pk")).order_by("-number")
        place = Coalesce(
            models.Subquery(newest.values("nodelist")[:1]), models.Value(""), output_field=models.TextField()
        )
        return self.select_related("user", "team").annotate(nodelist=place).only(*LIST_COLUMNS)


class Job(models.Model):
    tasks: object = None  # of the array that this row stands for, where a list folds arrays

    # identity
    public_id = models.CharField("job id", max_length=24, unique=True, editable=False)
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="jobs")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="jobs")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="acme_jobs")
    name = models.CharField(max_length=120)
    kind = models.CharField(max_length=12, choices=JOB_KIND_CHOICES, default=JobKind.OTHER)

    # what to run
    command = models.TextField()
    workdir = models.CharField(max_length=500, blank=True)
    environment = models.JSONField(default=dict, blank=True)

    # what it needs
    nodes = models.PositiveIntegerField(default=1)
    gpus_per_node = models.PositiveSmallIntegerField("GPUs per node", default=0)
    cpus_per_node = models.PositiveIntegerField("CPUs per node", default=1)
    memory_per_node_mb = models.PositiveBigIntegerField("memory per node (MiB)", default=0)
    gpu_model = models.CharField("GPU model", max_length=40, blank=True)
    nic_type = models.CharField("NIC type", max_length=40, blank=True)
    on_node = models.CharField(
        max_length=64, blank=True, default="", db_default="", editable=False, help_text="The only node it may run on."
    )
    time_limit = models.DurationField(null=True, blank=True, help_text="Empty: UNLIMITED.")

    # when, and in which order
    priority = models.IntegerField(default=0)
    preemptible = models.BooleanField(default=False)
    requeue_limit = models.PositiveSmallIntegerField(default=3)
    requeues = models.PositiveSmallIntegerField(default=0, editable=False)
    begin_at = models.DateTimeField(null=True, blank=True)
    hold = models.CharField(max_length=5, choices=HoldKind, default=HoldKind.NONE, blank=True, editable=False)
    array_id = models.CharField(max_length=16, blank=True, editable=False, db_index=True)
    array_index = models.PositiveIntegerField(null=True, editable=False)
    array_limit = models.PositiveIntegerField(null=True, editable=False, help_text="Tasks that may run at once.")

    # what it leaves behind
    checkpoint_dir = models.CharField(max_length=500, blank=True)
    checkpoint_interval = models.DurationField(null=True, blank=True)
    checkpoint_signal = models.CharField(
        max_length=16,
        blank=True,
        help_text="Asks it to save its work before it is stopped: [B:]USR1[@seconds], as for sbatch --signal.",
    )
    labels = models.JSONField(default=dict, blank=True)
    comment = models.TextField(blank=True)

    # what has become of it
    state = models.CharField(max_length=14, choices=JOB_STATE_CHOICES, default=State.PENDING, editable=False)
    flags = ArrayField(models.CharField(max_length=16), default=list, editable=False)
    reason = models.CharField(max_length=40, blank=True, editable=False, help_text="Slurm's word for why it waits.")
    why = models.TextField(blank=True, editable=False, help_text="The same as a sentence.")
    submitted_at = models.DateTimeField(db_default=Now(), editable=False)
    started_at = models.DateTimeField(null=True, editable=False)
    ended_at = models.DateTimeField(null=True, editable=False)
    exit_code = models.IntegerField(null=True, editable=False)
    signal = models.PositiveSmallIntegerField(null=True, editable=False)
    # what recovery does about its last failure
    recover_by = models.DateTimeField(
        null=True, editable=False, help_text="It waits for recovery; after this it becomes what its end says."
    )
    resume = models.JSONField(
        default=dict, editable=False, help_text="What the next attempt is told: checkpoint, its step, steps to skip."
    )
    foreign_id = models.CharField(
        max_length=64, blank=True, editable=False, help_text="Id and time of submission there, where it was not Acme's."
    )
    foreign_user = models.CharField(
        max_length=64, blank=True, editable=False, help_text="Who submitted it to the cluster, where it was not Acme."
    )
    foreign_key = models.CharField(
        max_length=48,
        blank=True,
        db_default="",
        editable=False,
        help_text="Installation and attempt key, where another Acme installation submitted it.",
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
            # What lists may be ordered by, with the id that makes every place unique
            models.Index(fields=["ended_at", "id"], name="job_by_end", condition=models.Q(ended_at__isnull=False)),
            models.Index(
                fields=["started_at", "id"], name="job_by_start", condition=models.Q(started_at__isnull=False)
            ),
            models.Index(fields=["priority", "id"], name="job_by_priority"),
            models.Index(fields=["name", "id"], name="job_by_name"),
            # The queue and what runs stay small whatever the history grows to.
            models.Index(
                fields=["cluster", "-priority", "submitted_at", "id"],
                name="job_queue",
                condition=models.Q(state=State.PENDING),
            ),
            # The same across clusters, for those who look at the whole
            models.Index(
                fields=["-priority", "submitted_at", "id"],
                name="job_queue_of_all",
                condition=models.Q(state=State.PENDING),
            ),
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
            # A handful among all that wait, and every look at the first page asks for them
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
            models.Index(fields=["recover_by"], name="job_recovering", condition=models.Q(recover_by__isnull=False)),
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
        """Submitted to the cluster by others: seen and counted, never changed."""
        return bool(self.foreign_id)

    @property
    def is_adopted(self) -> bool:
        """Taken over from another Acme installation: its command is not known here, so it cannot start again."""
        return bool(self.foreign_key) and not self.foreign_id

    @property
    def installation(self) -> str:
        """The other Acme installation that submitted it; empty for jobs of this one and of other people."""
        return self.foreign_key.partition(":")[0] if self.foreign_id else ""

    @property
    def owner_name(self) -> str:
        return self.foreign_user or self.user.get_username()

    @property
    def is_live(self) -> bool:
        return self.state in LIVE_STATES

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def is_configuring(self) -> bool:
        return Flag.CONFIGURING in self.flags

    def elapsed(self, now: datetime) -> timedelta | None:
        """How long it has run, or ran; None before it started."""
        return (self.ended_at or now) - self.started_at if self.started_at else None

    def waited(self, now: datetime) -> timedelta:
        return (self.started_at or self.ended_at or now) - self.submitted_at


class DependencyCondition(models.TextChoices):
    """What the other job must have come to, in sbatch's words."""

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
            models.CheckConstraint(condition=~models.Q(job=models.F("on")), name="no_job_waits_for_itself"),
        ]

    def __str__(self) -> str:
        return f"{self.after}:{self.on}"


# Of an attempt that is over: from its promise up to its end. A cluster's clock may have it end before it began.
ATTEMPT_SPAN = models.Func(
    "promised_at",
    Greatest("promised_at", "ended_at"),
    function="tstzrange",
    output_field=DateTimeRangeField(),
)


class AttemptQuerySet(models.QuerySet["Attempt"]):
    def live(self) -> Self:
        return self.filter(ended_at__isnull=True)

    def at(self, moment: datetime) -> Self:
        """Alive then, whether they are over by now or not; each half has an index of its own."""
        over = models.Q(ended_at__isnull=False, span__contains=moment)
        return self.alias(span=ATTEMPT_SPAN).filter(over | models.Q(ended_at__isnull=True, promised_at__lte=moment))


class Attempt(models.Model):
    """One execution. From the promise of GPUs (CONFIGURING) to its end; at most one of a job is alive."""

    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="attempts")
    number = models.PositiveSmallIntegerField()
    key = models.CharField(max_length=32, unique=True, help_text="Our id of it, which the cluster keeps too.")
    backend_id = models.CharField(max_length=40, blank=True, help_text="Slurm's own job id.")
    state = models.CharField(max_length=14, choices=ATTEMPT_STATE_CHOICES, default=State.RUNNING)
    nodelist = models.TextField(blank=True)
    log_path = models.CharField(max_length=500, blank=True)
    promised_at = models.DateTimeField(db_default=Now())
    accepted_at = models.DateTimeField(null=True, help_text="When its cluster took it, by our clock.")
    confirmed_at = models.DateTimeField(null=True, help_text="When the cluster began to run it, by its own clock.")
    seen_running_at = models.DateTimeField(null=True, help_text="When it was first seen running, by our clock.")
    ended_at = models.DateTimeField(null=True)
    missing_since = models.DateTimeField(null=True, help_text="The cluster answers, but does not know it any more.")
    exit_code = models.IntegerField(null=True)
    signal = models.PositiveSmallIntegerField(null=True)
    reason = models.TextField(blank=True)
    cause = models.CharField(
        max_length=80, blank=True, help_text="Why it ended: a diagnosis' label, once there is one."
    )
    # The newest checkpoint of it that has reached remote storage
    saved_at = models.DateTimeField(null=True)
    saved_step = models.PositiveBigIntegerField(null=True)
    # What a person or the scheduler wants it to become; the cluster is told by a deed and has the last word.
    stop_as = models.CharField(max_length=14, blank=True, choices=JOB_STATE_CHOICES)
    stop_why = models.TextField(blank=True)
    stacks_signal = models.CharField(
        max_length=12, blank=True, db_default="", help_text="Its processes answer it with their stacks; it said so."
    )

    objects = AttemptQuerySet.as_manager()

    class Meta:
        ordering = ["job", "number"]
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="attempts_are_counted"),
            models.UniqueConstraint(
                fields=["job"], condition=models.Q(ended_at__isnull=True), name="one_live_attempt_per_job"
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
            # Who asks why attempts failed looks every second at those of the last hour
            models.Index(
                fields=["ended_at"], name="attempt_failed", condition=models.Q(state__in=sorted(FAILURE_STATES))
            ),
            # Who held what at a moment that is over, however many came before and after it
            GistIndex(ATTEMPT_SPAN, name="attempt_by_span", condition=models.Q(ended_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return self.key

    @property
    def badge(self) -> lifecycle.StateBadge:
        flags = [Flag.CONFIGURING] if self.state == State.RUNNING and not self.confirmed_at else []
        return lifecycle.badge(State(self.state), flags)

    @property
    def exit_text(self) -> str:
        """`code:signal`, as sacct shows it."""
        if self.exit_code is None and self.signal is None:
            return ""
        return f"{self.exit_code or 0}:{self.signal or 0}"


class AllocationQuerySet(models.QuerySet["Allocation"]):
    def live(self) -> Self:
        return self.filter(released_at__isnull=True)

    def at(self, moment: datetime) -> Self:
        held = models.Q(released_at__isnull=True) | models.Q(released_at__gt=moment)
        return self.filter(held, attempt__in=Attempt.objects.at(moment).values("pk"), held_at__lte=moment)

    def held_per_node(self) -> dict[int, int]:
        """How many GPUs are held just now, by the node's primary key; idle nodes are not in it."""
        rows = self.live().filter(gpu__isnull=False).order_by()
        return dict(rows.values_list("node").annotate(models.Count("pk")))

    def gpus_by_attempt_and_node(self) -> Iterator[tuple[int, int, list[int | None]]]:
        """Attempt, node and the GPUs it holds there; [None] where it holds none. One row for each, not for each GPU."""
        rows = self.order_by().values_list("attempt_id", "node_id").annotate(gpus=ArrayAgg("gpu"))
        return rows.iterator(chunk_size=10_000)


class Allocation(models.Model):
    """One GPU held by an attempt; a node that gives CPUs and memory only has one row without a GPU.

    The database refuses a second live holder of a GPU (exclusion constraint `one_live_holder_per_gpu`, written in SQL
    in the first migration because Django cannot say it). It is checked at the end of each statement, so that one
    UPDATE may swap GPUs between attempts when a cluster chose other indices than we promised.
    """

    attempt = models.ForeignKey(Attempt, on_delete=models.PROTECT, related_name="allocations")
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="allocations")
    gpu = models.PositiveSmallIntegerField(null=True, help_text="Index on the node.")
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
    durable_at = models.DateTimeField(null=True, blank=True, help_text="When it had reached remote storage.")
    stall_s = models.FloatField(null=True, blank=True, help_text="Seconds for which saving it held training up.")
    verdict = models.CharField(max_length=4, choices=CheckpointVerdict, default=CheckpointVerdict.UNKNOWN, blank=True)
    verdict_why = models.TextField(blank=True)

    class Meta:
        ordering = ["job", "-step"]
        constraints = [models.UniqueConstraint(fields=["job", "path"], name="one_row_per_checkpoint")]

    def __str__(self) -> str:
        return f"{self.job} step {self.step}"
