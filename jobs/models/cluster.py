"""Clusters and their nodes: what a cluster last reported, and what operators configured."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Self
from urllib.parse import urlsplit

from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models.functions import Now

from acmeweb.common.errors import InvalidInput
from jobs.core.cluster_kinds import ClusterKind, cluster_kind, schemes_text
from jobs.core.container_offers import container_offers
from jobs.core.deadlines import UnlikelyDeadlines
from jobs.core.gpu_shares import SHARD, WHOLE_GPU, profile_milli, slice_devices, whole_gpus
from jobs.core.lifecycle import (
    CLOSED_NODE_FLAGS,
    USABLE_NODE_STATES,
    JobKind,
    NodeFlag,
    NodeState,
    StateBadge,
    is_asleep,
    is_schedulable,
    node_badge,
    node_condition,
)
from jobs.core.preemption_contract import MAX_EXEMPT_MINUTES, CheckpointClause, ContractLimits, limit_errors
from jobs.core.slurm_notation import parse_signal
from jobs.core.spec import ClusterShape, NodeShape
from jobs.logs import allowed_paths
from jobs.logs.log_source import LogSource
from jobs.models.people import SLUG

SILENT_AFTER = timedelta(seconds=30)  # turns run every second, so 30 s without a response is not a short delay
SIMULATED_SUFFIX = "-simulated"  # of the version that a simulated cluster reports


def validate_signal(text: str) -> None:
    try:
        parse_signal(text)
    except InvalidInput as error:
        raise ValidationError(str(error)) from None


def validate_object(value: object) -> None:
    if not isinstance(value, dict):
        raise ValidationError('Must be an object, for example {"order": "sjf"}.')


def validate_cluster_address(text: str) -> None:
    """Check the form of the address. Whether there is a backend for it is checked by `scheduling.backends.opening`."""
    scheme, separator, place = text.partition("://")
    is_valid = _is_web_address(text) if scheme in ("http", "https") else bool(separator and place)
    if not is_valid or (scheme == "unix" and not place.startswith("/")):
        raise ValidationError(f"address must begin with {schemes_text()}, for example http://host:6820.")


def validate_metrics_address(text: str) -> None:
    if not _is_web_address(text):
        raise ValidationError(
            "metrics_address must begin with http:// or https://, for example http://host:9400/metrics."
        )


def validate_webhook(text: str) -> None:
    if not _is_web_address(text):
        raise ValidationError("The webhook must begin with https:// or http://, for example https://host/power.")


def _is_web_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # raised by parts.port
        return False


class ClusterMode(models.TextChoices):
    """What Acme may change on a cluster."""

    OBSERVE = "observe", "observe: watch, change nothing"
    ADVISE = "advise", "advise: propose starts, change nothing"
    DRIVE = "drive", "drive: decide what runs where"


DRIVE_EXPLANATION = (
    "Acme will start, stop and requeue jobs, and drain and resume nodes on this cluster. Jobs that were submitted"
    " outside Acme are never changed."
)


class SubmitIdentity(models.TextChoices):
    """The user that jobs run as on the cluster."""

    SERVICE = "service", "service: every job runs as the user of Acme's token"
    USER_HEADER = (
        "user_header",
        "user_header: each job runs as its owner; requires a token that may act for other users",
    )
    USER_TOKENS = "user_tokens", "user_tokens: each job runs as its owner, with a token of that user"


class SleepMode(models.TextChoices):
    """Whether nodes that are not needed sleep."""

    OFF = "off", "off: nodes stay awake"
    OBSERVE = "observe", "observe: show which nodes would sleep"
    PROPOSE = "propose", "propose: nodes sleep after an approval"
    ACT = "act", "act: nodes sleep and wake up by themselves"


class DrainMode(models.TextChoices):
    """What happens to the jobs on a drained node."""

    FINISH = "finish"
    CHECKPOINT = "checkpoint"  # each job is requeued after its next checkpoint
    NOW = "now"


class ClusterQuerySet(models.QuerySet["Cluster"]):
    def silent(self, now: datetime) -> Self:
        """Return clusters that have not responded recently, so their rows may be out of date."""
        return self.exclude(last_contact_at__gt=now - SILENT_AFTER)

    def with_tokens_for_another_address(self, tokens: Mapping[str, str], address: str) -> dict[str, Cluster]:
        """Return which of these token paths already belong to a cluster with another address, by field name.

        A token is only sent to the address that it was saved with. Otherwise a user who may test connections could have
        the token of any cluster, or of its users, sent to an address of their own.
        """
        # Compare real paths: a link to a token file must not bypass the check
        requested = {name: os.path.realpath(path) for name, path in tokens.items() if path}
        owners: dict[str, Cluster] = {}
        for row in self.exclude(address=address) if requested else ():
            saved = [os.path.realpath(path) for path in token_paths(vars(row)).values() if path]
            owners |= {
                name: row for name, path in requested.items() if any(_paths_overlap(path, other) for other in saved)
            }
        return owners


CONNECTION_FIELDS = (
    *("address", "api_user", "token_file", "submit_as", "user_token_directory"),
    *("metrics_address", "log_root", "workload_owners", "pod_template"),
)
TOKEN_FIELDS = ("token_file", "user_token_directory")


def token_paths(columns: Mapping[str, Any]) -> dict[str, str]:
    return {name: columns.get(name) or "" for name in TOKEN_FIELDS}


def _paths_overlap(path: str, other: str) -> bool:
    """Return whether the paths are equal or one is a directory that contains the other."""
    return os.path.commonpath([path, other]) in (path, other)


# What a cluster offers to jobs besides its nodes
OFFER_COLUMNS = (
    *("runs_images", "pod_template", "min_exempt_minutes", "max_exempt_minutes", "checkpoint_clause"),
    *("min_preemptions_per_day", "max_preemptions_per_day", "gpu_share_kinds"),
)


class Cluster(models.Model):
    name = models.CharField(max_length=40, unique=True, validators=[SLUG])
    title = models.CharField(max_length=120, blank=True)
    address = models.CharField(
        max_length=300,
        validators=[validate_cluster_address],
        help_text="Slurm: the address of slurmrestd, http://host:6820 or unix:///run/slurmrestd.sock. Kubernetes: the"
        " path of a kubeconfig file beneath a directory of ACME_TOKEN_DIRS, kubernetes:///path (?context=NAME chooses"
        " a context), or kubernetes://in-cluster.",
    )
    api_user = models.CharField(max_length=64, blank=True, help_text="Sent as X-SLURM-USER-NAME.")
    token_file = models.CharField(
        max_length=300,
        blank=True,
        help_text="Path to a file containing the JWT, beneath a directory of ACME_TOKEN_DIRS. Do not paste the token"
        " itself.",
    )
    submit_as = models.CharField(
        max_length=12,
        choices=SubmitIdentity,
        default=SubmitIdentity.SERVICE,
        help_text="With service, jobs of different users and teams are not isolated on the cluster: they share files,"
        " processes and signals. user_header needs a token of root or of the SlurmUser.",
    )
    user_token_directory = models.CharField(
        max_length=300,
        blank=True,
        help_text="For user_tokens: a directory beneath ACME_TOKEN_DIRS with one file per user, named after the Acme"
        " user. The token in the file determines the user on the cluster.",
    )
    workload_owners = models.JSONField(
        default=dict,
        db_default={},
        blank=True,
        validators=[validate_object],
        help_text="Kubernetes: where the user and the team of a workload are read, for example"
        ' {"user_from": ["label:user"], "team_from": ["label:team", "namespace"], "rename": {"ns-nlp": "nlp"}}.'
        " Empty: both are the namespace.",
    )
    pod_template = models.JSONField(
        default=dict,
        db_default={},
        blank=True,
        validators=[validate_object],
        help_text="Kubernetes: the namespace, image, volumes and resources of the pods of jobs, for example"
        ' {"image": "registry.example/train:1", "allowed_images": ["registry.example/train/*"], "volumes": {"datasets":'
        ' {"claim": "datasets", "mount_path": "/data", "read_only": true}}, "shared_memory": "64Gi"}. All settings are'
        " described in docs/kubernetes.md. Empty: no image is allowed, so no job starts.",
    )
    metrics_address = models.CharField(
        max_length=300,
        blank=True,
        validators=[validate_metrics_address],
        help_text="Address of a DCGM exporter that provides GPU telemetry.",
    )
    log_root = models.CharField(
        max_length=300,
        blank=True,
        help_text="Shared directory that job logs are written to. Kubernetes: Acme copies them there; empty: to its own"
        " directory.",
    )
    checkpoint_root = models.CharField(
        max_length=300,
        blank=True,
        help_text="Shared directory beneath which jobs save checkpoints. Empty: only reported checkpoints are known.",
    )
    mode = models.CharField(
        max_length=10, choices=ClusterMode, default=ClusterMode.OBSERVE, help_text=f"In drive: {DRIVE_EXPLANATION}"
    )
    placement = models.CharField(max_length=40, default="consolidate")
    checkpoint_signal = models.CharField(
        max_length=16,
        blank=True,
        default="USR1@60",
        validators=[validate_signal],
        help_text="Signal that requests a checkpoint before a job is stopped, unless the job sets its own:"
        " [B:]USR1[@seconds], as for sbatch --signal. Empty: no signal.",
    )
    test_command = models.TextField(
        blank=True, help_text="Command of a node test. Empty: the built-in test of GPUs, network and disk."
    )
    burn_in_minutes = models.PositiveIntegerField(
        "burn-in (minutes)",
        blank=True,
        default=60,
        validators=[MaxValueValidator(10_080)],
        help_text="How long a repaired node is tested before it accepts jobs.",
    )
    usage_half_life_hours = models.PositiveIntegerField(
        "half-life of usage (hours)",
        blank=True,
        default=168,
        db_default=168,
        validators=[MinValueValidator(1), MaxValueValidator(87_600)],
        help_text="The age at which past GPU time counts half in fair share. Slurm calls it PriorityDecayHalfLife.",
    )
    # What jobs may ask for. The defaults offer nothing
    min_exempt_minutes = models.PositiveIntegerField(
        "minimum protection after a start (minutes)",
        blank=True,
        default=0,
        db_default=0,
        validators=[MaxValueValidator(MAX_EXEMPT_MINUTES)],
        help_text="How long each preemptible job is protected from preemption after a start, even if it asks for less.",
    )
    max_exempt_minutes = models.PositiveIntegerField(
        "maximum protection after a start (minutes)",
        blank=True,
        default=0,
        db_default=0,
        validators=[MaxValueValidator(MAX_EXEMPT_MINUTES)],
        help_text="The longest protection that a preemptible job may ask for. 0: none. Owners of quota wait that long.",
    )
    checkpoint_clause = models.CharField(
        "preemption only at checkpoints",
        max_length=8,
        blank=True,
        choices=[(clause.value, clause.value) for clause in CheckpointClause],
        default=CheckpointClause.REFUSED.value,
        db_default=CheckpointClause.REFUSED.value,
        help_text="Whether jobs may state that they are preempted only right after a checkpoint. required: all are.",
    )
    min_preemptions_per_day = models.PositiveSmallIntegerField(
        "lowest limit of preemptions per day",
        null=True,
        blank=True,
        validators=[MaxValueValidator(1000)],
        help_text="The smallest daily maximum that a job may ask for. Leave empty if jobs may not ask for one.",
    )
    max_preemptions_per_day = models.PositiveSmallIntegerField(
        "highest limit of preemptions per day",
        null=True,
        blank=True,
        validators=[MaxValueValidator(1000)],
        help_text="How often a job may be preempted within 24 hours at most. Leave empty for no limit.",
    )
    gpu_share_kinds = ArrayField(
        models.CharField(max_length=12, choices=[(kind.value, kind.value) for kind in JobKind]),
        verbose_name="kinds of jobs that may share a GPU",
        default=list,
        db_default=[],
        blank=True,
        help_text="Separated by commas, for example evaluation,debug. Their jobs may request a part of a GPU:"
        " shards, MPS or a MIG slice. Leave empty for none.",
    )
    unlikely_deadlines = models.CharField(
        max_length=6,
        blank=True,
        choices=[(mode.value, mode.value) for mode in UnlikelyDeadlines],
        default=UnlikelyDeadlines.WARN.value,
        db_default=UnlikelyDeadlines.WARN.value,
        help_text="What happens to a job that is submitted with a deadline that it will probably miss.",
    )
    min_deadline_percent = models.PositiveSmallIntegerField(
        "unlikely deadline (percent)",
        blank=True,
        default=50,
        db_default=50,
        validators=[MinValueValidator(1), MaxValueValidator(99)],
        help_text="A deadline with a lower probability is unlikely.",
    )
    gpu_hour_price = models.FloatField(
        "price of a GPU-hour",
        null=True,
        blank=True,
        validators=[MinValueValidator(0.0), MaxValueValidator(1_000_000.0)],
        help_text="Used to show costs. Leave empty to show GPU-hours only.",
    )
    kwh_price = models.FloatField(
        "price of a kWh",
        null=True,
        blank=True,
        validators=[MinValueValidator(0.0), MaxValueValidator(1_000_000.0)],
        help_text="Used to show the cost of energy, in hours without an imported price. Leave empty to show kWh only.",
    )
    co2_g_per_kwh = models.FloatField(
        "CO2 per kWh (g)",
        null=True,
        blank=True,
        validators=[MinValueValidator(0.0), MaxValueValidator(10_000.0)],
        help_text="Carbon intensity of the electricity, in hours without an imported value. Leave empty if unknown.",
    )
    sleep_mode = models.CharField(
        "sleeping nodes",
        max_length=8,
        choices=SleepMode,
        default=SleepMode.OFF,
        db_default="off",
        help_text="Whether nodes that are not needed sleep. They wake up before they are needed. Needs the mode drive.",
    )
    sleep_reserve_nodes = models.PositiveIntegerField(
        "reserve of awake nodes",
        blank=True,
        default=1,
        db_default=1,
        validators=[MaxValueValidator(100_000)],
        help_text="Idle nodes of each kind of hardware that always stay awake, at least.",
    )
    min_awake_minutes = models.PositiveIntegerField(
        "minimum time awake (minutes)",
        blank=True,
        default=60,
        db_default=60,
        validators=[MaxValueValidator(10_080)],
        help_text="A node stays awake this long after it has woken up.",
    )
    min_asleep_minutes = models.PositiveIntegerField(
        "minimum time asleep (minutes)",
        blank=True,
        default=30,
        db_default=30,
        validators=[MaxValueValidator(10_080)],
        help_text="A node sleeps at least this long, unless a job starts on it.",
    )
    max_wakes_per_day = models.PositiveSmallIntegerField(
        "wake-ups of a node per day",
        blank=True,
        default=4,
        db_default=4,
        validators=[MinValueValidator(1), MaxValueValidator(144)],
        help_text="A node that woke up so often within 24 hours stays awake.",
    )
    boot_minutes = models.PositiveSmallIntegerField(
        "boot time (minutes)",
        blank=True,
        default=10,
        db_default=10,
        validators=[MinValueValidator(1), MaxValueValidator(240)],
        help_text="How long a node takes to wake up. Used until Acme has measured boots of its GPU model.",
    )
    sleep_webhook = models.CharField(
        "webhook for sleeping nodes",
        max_length=300,
        blank=True,
        validators=[validate_webhook],
        default="",
        db_default="",
        help_text="Called to turn a node off or on. Kubernetes: required. Slurm: leave empty to use its SuspendProgram"
        " and ResumeProgram.",
    )
    policy = models.CharField(max_length=40, default="acme")
    policy_settings = models.JSONField(
        default=dict,
        blank=True,
        validators=[validate_object],
        help_text='Settings of the policy acme, for example {"order": "fifo", "aging_s": 86400, "class_s": 86400,'
        ' "backfill": "easy", "reserve": ["pretrain"]}. Other policies have no settings.',
    )
    is_bundled = models.BooleanField(
        default=False, editable=False, help_text="Started by Acme, which also manages its connection settings."
    )
    product = models.CharField(max_length=60, blank=True, editable=False)
    api = models.CharField(max_length=20, blank=True, editable=False)
    runs_images = models.BooleanField(
        default=False, db_default=False, editable=False, help_text="Whether jobs may run in a container image."
    )
    last_contact_at = models.DateTimeField(null=True, editable=False, help_text="Time of the last response.")
    last_error = models.TextField(
        blank=True, editable=False, help_text="Error since the last response. Empty: no error."
    )
    unreadable_count = models.PositiveIntegerField(
        default=0, db_default=0, editable=False, help_text="Number of rows in the last response that could not be read."
    )
    unreadable_rows = models.TextField(
        blank=True, default="", db_default="", editable=False, help_text="These rows, with the errors."
    )
    error_since = models.DateTimeField(
        null=True, editable=False, help_text="Time since which its scheduling turns fail."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = ClusterQuerySet.as_manager()

    class Meta:
        ordering = ["name"]
        permissions = [("operate_cluster", "Can drain, resume and test nodes")]

    def __str__(self) -> str:
        return self.name

    @property
    def shares_one_user(self) -> bool:
        """Return whether all jobs run as the same user, so that users are not isolated from each other."""
        return self.submit_as == SubmitIdentity.SERVICE and not self.kind.isolates_jobs

    @property
    def is_simulated(self) -> bool:
        """Return whether the cluster says that it simulates its nodes and jobs."""
        return self.product.endswith(SIMULATED_SUFFIX)

    @property
    def copies_logs(self) -> bool:
        """Return whether Acme copies the output of jobs, because the cluster does not write it to files."""
        return not self.kind.writes_logs

    @property
    def log_directory(self) -> str:
        """Return the directory of the job logs, or an empty string if they are not stored."""
        if self.log_root or not self.copies_logs:
            return self.log_root
        return str(allowed_paths.pod_log_directory() / self.name)

    @property
    def has_logs(self) -> bool:
        return bool(self.log_directory)

    def log_source(self, path: str) -> LogSource:
        """Return where a log of this cluster is read."""
        return LogSource(self.log_directory, path)

    def new_log_path(self, name: str) -> str:
        """Return where the cluster, or Acme, should write a new log. Empty if its logs are not stored."""
        return f"{self.log_directory}/{name}.log" if self.has_logs else ""

    @property
    def token_address_warning(self) -> str:
        return (
            f"This token is saved for cluster {self}, so it is only sent to {self.address}. Save the new address before"
            " testing it, or use another token file."
        )

    @property
    def contract_limits(self) -> ContractLimits:
        """What jobs may ask for as protection from preemption."""
        return ContractLimits(
            min_exempt=timedelta(minutes=self.min_exempt_minutes),
            max_exempt=timedelta(minutes=self.max_exempt_minutes),
            checkpoint_clause=CheckpointClause(self.checkpoint_clause),
            min_per_day=self.min_preemptions_per_day,
            max_per_day=self.max_preemptions_per_day,
        )

    @property
    def kind(self) -> ClusterKind:
        return cluster_kind(self.address)

    @property
    def lets_nodes_sleep(self) -> bool:
        """Return whether Acme may let nodes sleep at all."""
        has_means = bool(self.sleep_webhook) or self.kind.powers_nodes
        return self.sleep_mode != SleepMode.OFF and self.mode == ClusterMode.DRIVE and has_means

    @property
    def sends_power_commands(self) -> bool:
        """Return whether the cluster itself gets a command for a sleep. On Slurm, a webhook replaces it."""
        return not self.kind.powers_nodes or not self.sleep_webhook

    def clean(self) -> None:
        limits = self.min_exempt_minutes, self.max_exempt_minutes
        if errors := limit_errors(*limits, self.min_preemptions_per_day, self.max_preemptions_per_day):
            raise ValidationError(errors)
        # The paths of the bundled cluster are set by Acme and lie inside ACME_VAR, where user paths may not
        if not self.is_bundled:
            _check_paths(self)

    @property
    def unreadable_text(self) -> str:
        """A sentence about rows of the last response that could not be read, or an empty string."""
        if not self.unreadable_count:
            return ""
        rows = "row" if self.unreadable_count == 1 else "rows"
        return f"{self.unreadable_count} {rows} of its answer cannot be read: {self.unreadable_rows}"

    @property
    def problem(self) -> str:
        """The current error of the cluster, or an empty string."""
        return self.last_error or self.unreadable_text

    def is_silent(self, now: datetime) -> bool:
        """Return whether the cluster has not responded recently."""
        return self.last_contact_at is None or self.last_contact_at <= now - SILENT_AFTER

    def is_failing(self, now: datetime) -> bool:
        """Return whether the cluster responds but its scheduling turns keep failing."""
        lasts = self.error_since is not None and self.error_since <= now - SILENT_AFTER
        return lasts and not self.is_silent(now)


def _check_paths(row: Cluster) -> None:
    """Raise ValidationError for paths that are not allowed and for incomplete token settings."""
    allowed = allowed_paths.load_allowed_paths()
    refusals: dict[str, str] = {}
    for name, check in (
        ("token_file", allowed.check_token_path),
        ("user_token_directory", allowed.check_token_directory),
        ("log_root", allowed.check_shared_directory),
        ("checkpoint_root", allowed.check_shared_directory),
    ):
        try:
            if value := getattr(row, name):
                check(value)
        except InvalidInput as refused:
            refusals[name] = f"{value} {refused}."
    # setdefault: an error of the path itself is more specific and takes precedence
    if (row.submit_as == SubmitIdentity.USER_TOKENS) != bool(row.user_token_directory):
        refusals.setdefault("user_token_directory", "Required with user_tokens; not used with other identities.")
    if row.submit_as != SubmitIdentity.SERVICE and not row.token_file:
        refusals.setdefault("token_file", "A token is needed to submit jobs as other users.")
    if refusals:
        raise ValidationError(refusals)


class RepairStage(models.TextChoices):
    """The progress of a closed node on its way back to work."""

    NONE = "", "none"
    REPAIR = "repair", "waiting for repair"
    BURN_IN = "burn-in"


def _node_shape(*, gpus: int, mig_slices: dict[str, int], **make: Any) -> NodeShape:
    return NodeShape(gpus=whole_gpus(gpus, mig_slices), mig_slices=tuple(sorted(mig_slices.items())), **make)


class NodeQuerySet(models.QuerySet["Node"]):
    def usable(self) -> Self:
        open_ = self.filter(state__in=USABLE_NODE_STATES, drain_requested=False)
        return open_.exclude(flags__overlap=list(CLOSED_NODE_FLAGS))

    def shape(self, cluster: Cluster) -> ClusterShape:
        """Return the hardware of the cluster, whatever the state of its nodes: a node that is down today may run a job
        tomorrow."""
        makes = ("gpus", "cpus", "memory_mb", "gpu_model", "nic_type", "shards_per_gpu", "share_gres", "mig_slices")
        rows = self.filter(cluster=cluster).values(*makes).annotate(count=models.Count("pk")).order_by(*makes)
        nodes = tuple(_node_shape(**row) for row in rows)
        if missing := cluster.get_deferred_fields().intersection(OFFER_COLUMNS):
            cluster.refresh_from_db(fields=list(missing))
        return ClusterShape(
            name=cluster.name,
            nodes=nodes,
            runs_images=cluster.runs_images,
            container_offers=container_offers(cluster.pod_template),
            contract_limits=cluster.contract_limits,
            gpu_share_kinds=tuple(cluster.gpu_share_kinds),
        )

    def most_whole_gpus(self) -> int:
        """Return the whole GPUs of the node that has most."""
        sizes = self.order_by().values_list("gpus", "mig_slices").distinct()
        return max((whole_gpus(gpus, slices) for gpus, slices in sizes), default=0)

    def not_usable(self) -> Self:
        """Return nodes that do not accept new jobs, whatever the reason."""
        # A subquery instead of the negated conditions, which would repeat the definition of usable
        return self.exclude(pk__in=self.usable().values("pk"))


class Node(models.Model):
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="nodes")
    name = models.CharField(max_length=64)
    gpus = models.PositiveSmallIntegerField("GPUs", default=0)
    gpu_model = models.CharField("GPU model", max_length=40, blank=True)
    cpus = models.PositiveIntegerField("CPUs", default=0)
    memory_mb = models.PositiveBigIntegerField("memory (MiB)", default=0)
    rack = models.CharField(max_length=40, blank=True)
    leaf = models.CharField("leaf switch", max_length=40, blank=True)
    pod = models.CharField(max_length=40, blank=True)
    nic_type = models.CharField("NIC type", max_length=40, blank=True)
    nic_count = models.PositiveSmallIntegerField("NICs", default=0)
    # Not a positive field: its check would read the whole table in the migration
    shards_per_gpu = models.SmallIntegerField(
        "shards per GPU",
        default=0,
        db_default=0,
        editable=False,
        help_text="Into how many parts the cluster can share each GPU of the node; 0: not at all.",
    )
    share_gres = models.CharField(
        "name of the shards",
        max_length=8,
        default=SHARD,
        db_default=SHARD,
        editable=False,
        help_text="Slurm's name of these parts: shard or mps.",
    )
    mig_slices = models.JSONField(
        "MIG slices",
        default=dict,
        db_default={},
        blank=True,
        editable=False,
        help_text="Number of MIG slices by profile. They are the last of the node's GPUs.",
    )
    gpu_uuids = ArrayField(models.CharField(max_length=64), default=list, blank=True, editable=False)
    gpu_pci = ArrayField(models.CharField(max_length=20), default=list, blank=True, editable=False)
    gpu_pods = models.JSONField(
        default=dict,
        db_default={},
        blank=True,
        editable=False,
        help_text="Kubernetes: the pod that holds each GPU, by the labels of the DCGM exporter.",
    )
    state = models.CharField(
        max_length=10, choices=[(s.value, s.value) for s in NodeState], default=NodeState.UNKNOWN, editable=False
    )
    flags = ArrayField(models.CharField(max_length=20), default=list, blank=True, editable=False)
    foreign_gpus = ArrayField(
        models.PositiveSmallIntegerField(),
        default=list,
        blank=True,
        editable=False,
        help_text="GPUs held by jobs that were submitted outside Acme.",
    )
    drain_requested = models.BooleanField(
        default=False, editable=False, help_text="A drain was requested through Acme."
    )
    drain_mode = models.CharField(max_length=10, choices=DrainMode, default=DrainMode.FINISH, editable=False)
    # On the node, not on the maintenance: a later drain or resume by an operator detaches it from the maintenance
    maintenance = models.ForeignKey(
        "Maintenance",
        null=True,
        on_delete=models.SET_NULL,
        related_name="closed",
        editable=False,
        help_text="Maintenance that closed the node and will reopen it.",
    )
    reason = models.TextField(blank=True, editable=False)
    reason_by = models.CharField(max_length=150, blank=True, editable=False)
    reason_at = models.DateTimeField(null=True, editable=False)
    repair_stage = models.CharField(
        max_length=8, choices=RepairStage, blank=True, default=RepairStage.NONE, editable=False
    )
    burn_in_until = models.DateTimeField(null=True, editable=False, help_text="End of the burn-in.")
    since = models.DateTimeField(db_default=Now(), editable=False, help_text="Time of the last change of state.")
    seen_at = models.DateTimeField(null=True, editable=False)

    objects = NodeQuerySet.as_manager()

    class Meta:
        ordering = ["cluster", "name"]
        constraints = [
            models.UniqueConstraint(fields=["cluster", "name"], name="one_node_per_name"),
            models.CheckConstraint(condition=models.Q(state__in=list(NodeState)), name="node_state_known"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def all_flags(self) -> list[str]:
        """The flags that the cluster reports, plus DRAIN as soon as an operator has requested a drain."""
        return sorted({*self.flags, NodeFlag.DRAIN} if self.drain_requested else self.flags)

    @cached_property
    def slice_profiles(self) -> dict[int, str]:
        """The MIG profile of each of its GPUs that is a slice, by index."""
        return slice_devices(self.gpus, self.mig_slices)

    @property
    def device_parts(self) -> list[float]:
        """Which part of a GPU each of its devices is: 1 for a GPU, less for a MIG slice."""
        slices = {gpu: profile_milli(profile) / WHOLE_GPU for gpu, profile in self.slice_profiles.items()}
        return [slices.get(gpu, 1.0) for gpu in range(self.gpus)]

    @property
    def whole_gpus(self) -> int:
        """Its GPUs without MIG slices. They have the first indices."""
        return whole_gpus(self.gpus, self.mig_slices)

    @property
    def physical_gpus(self) -> int:
        """The fewest GPUs that its whole ones and its slices are."""
        slices = sum(map(profile_milli, self.slice_profiles.values()))
        return self.whole_gpus - (-slices // WHOLE_GPU)

    @property
    def badge(self) -> StateBadge:
        return node_badge(NodeState(self.state), self.all_flags)

    @property
    def condition(self) -> str:
        return node_condition(NodeState(self.state), self.all_flags)

    @property
    def is_asleep(self) -> bool:
        """Return whether jobs start on it only after a boot: it sleeps, falls asleep or wakes up."""
        return is_asleep(NodeState(self.state), self.all_flags)

    @property
    def is_schedulable(self) -> bool:
        return is_schedulable(NodeState(self.state), self.all_flags)

    @property
    def is_drained(self) -> bool:
        return NodeFlag.DRAIN in self.all_flags
