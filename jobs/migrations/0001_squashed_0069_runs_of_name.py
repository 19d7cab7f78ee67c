"""The schema in one step. Databases that are older are refused, see `acmeweb.services.prepare`."""

import datetime

import django.contrib.postgres.fields
import django.contrib.postgres.fields.ranges
import django.contrib.postgres.indexes
import django.core.validators
import django.db.models.deletion
import django.db.models.expressions
import django.db.models.functions.comparison
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models

import jobs.core.lifecycle
import jobs.models.cluster
import jobs.models.installation

from ._guards import CREATE_SEQUENCE, KEEP_FIRST_SHARES, MAKE_EVENTS_APPEND_ONLY, SHARE_CONSTRAINTS


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("auth", "__first__"),
    ]

    operations = [
        migrations.CreateModel(
            name="Cluster",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "name",
                    models.CharField(
                        max_length=40,
                        unique=True,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^[a-z0-9][a-z0-9-]{0,39}$", "Use lowercase letters, digits and dashes, at most 40."
                            )
                        ],
                    ),
                ),
                ("title", models.CharField(blank=True, max_length=120)),
                (
                    "address",
                    models.CharField(
                        help_text="Slurm: the address of slurmrestd, http://host:6820 or unix:///run/slurmrestd.sock. Kubernetes: the path of a kubeconfig file beneath a directory of ACME_TOKEN_DIRS, kubernetes:///path (?context=NAME chooses a context), or kubernetes://in-cluster.",
                        max_length=300,
                        validators=[jobs.models.cluster.validate_cluster_address],
                    ),
                ),
                ("api_user", models.CharField(blank=True, help_text="Sent as X-SLURM-USER-NAME.", max_length=64)),
                (
                    "token_file",
                    models.CharField(
                        blank=True,
                        help_text="Path to a file containing the JWT, beneath a directory of ACME_TOKEN_DIRS. Do not paste the token itself.",
                        max_length=300,
                    ),
                ),
                (
                    "submit_as",
                    models.CharField(
                        choices=[
                            ("service", "service: every job runs as the user of Acme's token"),
                            (
                                "user_header",
                                "user_header: each job runs as its owner; requires a token that may act for other users",
                            ),
                            ("user_tokens", "user_tokens: each job runs as its owner, with a token of that user"),
                        ],
                        default="service",
                        help_text="With service, jobs of different users and teams are not isolated on the cluster: they share files, processes and signals. user_header needs a token of root or of the SlurmUser.",
                        max_length=12,
                    ),
                ),
                (
                    "user_token_directory",
                    models.CharField(
                        blank=True,
                        help_text="For user_tokens: a directory beneath ACME_TOKEN_DIRS with one file per user, named after the Acme user. The token in the file determines the user on the cluster.",
                        max_length=300,
                    ),
                ),
                (
                    "workload_owners",
                    models.JSONField(
                        blank=True,
                        db_default={},
                        default=dict,
                        help_text='Kubernetes: where the user and the team of a workload are read, for example {"user_from": ["label:user"], "team_from": ["label:team", "namespace"], "rename": {"ns-nlp": "nlp"}}. Empty: both are the namespace.',
                        validators=[jobs.models.cluster.validate_object],
                    ),
                ),
                (
                    "pod_template",
                    models.JSONField(
                        blank=True,
                        db_default={},
                        default=dict,
                        help_text='Kubernetes: the namespace, image, volumes and resources of the pods of jobs, for example {"image": "registry.example/train:1", "allowed_images": ["registry.example/train/*"], "volumes": {"datasets": {"claim": "datasets", "mount_path": "/data", "read_only": true}}, "shared_memory": "64Gi"}. All settings are described in docs/kubernetes.md. Empty: no image is allowed, so no job starts.',
                        validators=[jobs.models.cluster.validate_object],
                    ),
                ),
                (
                    "metrics_address",
                    models.CharField(
                        blank=True,
                        help_text="Address of a DCGM exporter that provides GPU telemetry.",
                        max_length=300,
                        validators=[jobs.models.cluster.validate_metrics_address],
                    ),
                ),
                (
                    "log_root",
                    models.CharField(
                        blank=True,
                        help_text="Shared directory that job logs are written to. Kubernetes: Acme copies them there; empty: to its own directory.",
                        max_length=300,
                    ),
                ),
                (
                    "checkpoint_root",
                    models.CharField(
                        blank=True,
                        help_text="Shared directory beneath which jobs save checkpoints. Empty: only reported checkpoints are known.",
                        max_length=300,
                    ),
                ),
                (
                    "mode",
                    models.CharField(
                        choices=[
                            ("observe", "observe: watch, change nothing"),
                            ("advise", "advise: propose starts, change nothing"),
                            ("drive", "drive: decide what runs where"),
                        ],
                        default="observe",
                        help_text="In drive: Acme will start, stop and requeue jobs, and drain and resume nodes on this cluster. Jobs that were submitted outside Acme are never changed.",
                        max_length=10,
                    ),
                ),
                ("placement", models.CharField(default="consolidate", max_length=40)),
                (
                    "checkpoint_signal",
                    models.CharField(
                        blank=True,
                        default="USR1@60",
                        help_text="Signal that requests a checkpoint before a job is stopped, unless the job sets its own: [B:]USR1[@seconds], as for sbatch --signal. Empty: no signal.",
                        max_length=16,
                        validators=[jobs.models.cluster.validate_signal],
                    ),
                ),
                (
                    "test_command",
                    models.TextField(
                        blank=True,
                        help_text="Command of a node test. Empty: the built-in test of GPUs, network and disk.",
                    ),
                ),
                (
                    "burn_in_minutes",
                    models.PositiveIntegerField(
                        blank=True,
                        default=60,
                        help_text="How long a repaired node is tested before it accepts jobs.",
                        validators=[django.core.validators.MaxValueValidator(10080)],
                        verbose_name="burn-in (minutes)",
                    ),
                ),
                (
                    "usage_half_life_hours",
                    models.PositiveIntegerField(
                        blank=True,
                        db_default=168,
                        default=168,
                        help_text="The age at which past GPU time counts half in fair share. Slurm calls it PriorityDecayHalfLife.",
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(87600),
                        ],
                        verbose_name="half-life of usage (hours)",
                    ),
                ),
                (
                    "min_exempt_minutes",
                    models.PositiveIntegerField(
                        blank=True,
                        db_default=0,
                        default=0,
                        help_text="How long each preemptible job is protected from preemption after a start, even if it asks for less.",
                        validators=[django.core.validators.MaxValueValidator(10080)],
                        verbose_name="minimum protection after a start (minutes)",
                    ),
                ),
                (
                    "max_exempt_minutes",
                    models.PositiveIntegerField(
                        blank=True,
                        db_default=0,
                        default=0,
                        help_text="The longest protection that a preemptible job may ask for. 0: none. Owners of quota wait that long.",
                        validators=[django.core.validators.MaxValueValidator(10080)],
                        verbose_name="maximum protection after a start (minutes)",
                    ),
                ),
                (
                    "checkpoint_clause",
                    models.CharField(
                        blank=True,
                        choices=[("refused", "refused"), ("optional", "optional"), ("required", "required")],
                        db_default="refused",
                        default="refused",
                        help_text="Whether jobs may state that they are preempted only right after a checkpoint. required: all are.",
                        max_length=8,
                        verbose_name="preemption only at checkpoints",
                    ),
                ),
                (
                    "min_preemptions_per_day",
                    models.PositiveSmallIntegerField(
                        blank=True,
                        help_text="The smallest daily maximum that a job may ask for. Leave empty if jobs may not ask for one.",
                        null=True,
                        validators=[django.core.validators.MaxValueValidator(1000)],
                        verbose_name="lowest limit of preemptions per day",
                    ),
                ),
                (
                    "max_preemptions_per_day",
                    models.PositiveSmallIntegerField(
                        blank=True,
                        help_text="How often a job may be preempted within 24 hours at most. Leave empty for no limit.",
                        null=True,
                        validators=[django.core.validators.MaxValueValidator(1000)],
                        verbose_name="highest limit of preemptions per day",
                    ),
                ),
                (
                    "gpu_share_kinds",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(
                            choices=[
                                ("pretrain", "pretrain"),
                                ("sft", "sft"),
                                ("mllm", "mllm"),
                                ("evaluation", "evaluation"),
                                ("debug", "debug"),
                                ("other", "other"),
                            ],
                            max_length=12,
                        ),
                        blank=True,
                        db_default=[],
                        default=list,
                        help_text="Separated by commas, for example evaluation,debug. Their jobs may request a part of a GPU: shards, MPS or a MIG slice. Leave empty for none.",
                        size=None,
                        verbose_name="kinds of jobs that may share a GPU",
                    ),
                ),
                (
                    "unlikely_deadlines",
                    models.CharField(
                        blank=True,
                        choices=[("ignore", "ignore"), ("warn", "warn"), ("refuse", "refuse")],
                        db_default="warn",
                        default="warn",
                        help_text="What happens to a job that is submitted with a deadline that it will probably miss.",
                        max_length=6,
                    ),
                ),
                (
                    "min_deadline_percent",
                    models.PositiveSmallIntegerField(
                        blank=True,
                        db_default=50,
                        default=50,
                        help_text="A deadline with a lower probability is unlikely.",
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(99),
                        ],
                        verbose_name="unlikely deadline (percent)",
                    ),
                ),
                (
                    "gpu_hour_price",
                    models.FloatField(
                        blank=True,
                        help_text="Used to show costs. Leave empty to show GPU-hours only.",
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(0.0),
                            django.core.validators.MaxValueValidator(1000000.0),
                        ],
                        verbose_name="price of a GPU-hour",
                    ),
                ),
                (
                    "kwh_price",
                    models.FloatField(
                        blank=True,
                        help_text="Used to show the cost of energy, in hours without an imported price. Leave empty to show kWh only.",
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(0.0),
                            django.core.validators.MaxValueValidator(1000000.0),
                        ],
                        verbose_name="price of a kWh",
                    ),
                ),
                (
                    "co2_g_per_kwh",
                    models.FloatField(
                        blank=True,
                        help_text="Carbon intensity of the electricity, in hours without an imported value. Leave empty if unknown.",
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(0.0),
                            django.core.validators.MaxValueValidator(10000.0),
                        ],
                        verbose_name="CO2 per kWh (g)",
                    ),
                ),
                (
                    "sleep_mode",
                    models.CharField(
                        choices=[
                            ("off", "off: nodes stay awake"),
                            ("observe", "observe: show which nodes would sleep"),
                            ("propose", "propose: nodes sleep after an approval"),
                            ("act", "act: nodes sleep and wake up by themselves"),
                        ],
                        db_default="off",
                        default="off",
                        help_text="Whether nodes that are not needed sleep. They wake up before they are needed. Needs the mode drive.",
                        max_length=8,
                        verbose_name="sleeping nodes",
                    ),
                ),
                (
                    "sleep_reserve_nodes",
                    models.PositiveIntegerField(
                        blank=True,
                        db_default=1,
                        default=1,
                        help_text="Idle nodes of each kind of hardware that always stay awake, at least.",
                        validators=[django.core.validators.MaxValueValidator(100000)],
                        verbose_name="reserve of awake nodes",
                    ),
                ),
                (
                    "min_awake_minutes",
                    models.PositiveIntegerField(
                        blank=True,
                        db_default=60,
                        default=60,
                        help_text="A node stays awake this long after it has woken up.",
                        validators=[django.core.validators.MaxValueValidator(10080)],
                        verbose_name="minimum time awake (minutes)",
                    ),
                ),
                (
                    "min_asleep_minutes",
                    models.PositiveIntegerField(
                        blank=True,
                        db_default=30,
                        default=30,
                        help_text="A node sleeps at least this long, unless a job starts on it.",
                        validators=[django.core.validators.MaxValueValidator(10080)],
                        verbose_name="minimum time asleep (minutes)",
                    ),
                ),
                (
                    "max_wakes_per_day",
                    models.PositiveSmallIntegerField(
                        blank=True,
                        db_default=4,
                        default=4,
                        help_text="A node that woke up so often within 24 hours stays awake.",
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(144),
                        ],
                        verbose_name="wake-ups of a node per day",
                    ),
                ),
                (
                    "boot_minutes",
                    models.PositiveSmallIntegerField(
                        blank=True,
                        db_default=10,
                        default=10,
                        help_text="How long a node takes to wake up. Used until Acme has measured boots of its GPU model.",
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(240),
                        ],
                        verbose_name="boot time (minutes)",
                    ),
                ),
                (
                    "sleep_webhook",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Called to turn a node off or on. Kubernetes: required. Slurm: leave empty to use its SuspendProgram and ResumeProgram.",
                        max_length=300,
                        validators=[jobs.models.cluster.validate_webhook],
                        verbose_name="webhook for sleeping nodes",
                    ),
                ),
                ("policy", models.CharField(default="acme", max_length=40)),
                (
                    "policy_settings",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        help_text='Settings of the policy acme, for example {"order": "fifo", "aging_s": 86400, "class_s": 86400, "backfill": "easy", "reserve": ["pretrain"]}. Other policies have no settings.',
                        validators=[jobs.models.cluster.validate_object],
                    ),
                ),
                (
                    "is_bundled",
                    models.BooleanField(
                        default=False,
                        editable=False,
                        help_text="Started by Acme, which also manages its connection settings.",
                    ),
                ),
                ("product", models.CharField(blank=True, editable=False, max_length=60)),
                ("api", models.CharField(blank=True, editable=False, max_length=20)),
                (
                    "runs_images",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        editable=False,
                        help_text="Whether jobs may run in a container image.",
                    ),
                ),
                (
                    "last_contact_at",
                    models.DateTimeField(editable=False, help_text="Time of the last response.", null=True),
                ),
                (
                    "last_error",
                    models.TextField(
                        blank=True, editable=False, help_text="Error since the last response. Empty: no error."
                    ),
                ),
                (
                    "unreadable_count",
                    models.PositiveIntegerField(
                        db_default=0,
                        default=0,
                        editable=False,
                        help_text="Number of rows in the last response that could not be read.",
                    ),
                ),
                (
                    "unreadable_rows",
                    models.TextField(
                        blank=True, db_default="", default="", editable=False, help_text="These rows, with the errors."
                    ),
                ),
                (
                    "error_since",
                    models.DateTimeField(
                        editable=False, help_text="Time since which its scheduling turns fail.", null=True
                    ),
                ),
                (
                    "turn_requested_at",
                    models.DateTimeField(
                        editable=False, help_text="Time of the last request for an early scheduling turn.", null=True
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
            ],
            options={
                "ordering": ["name"],
                "permissions": [("operate_cluster", "Can drain, resume and test nodes")],
            },
        ),
        migrations.CreateModel(
            name="Membership",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "role",
                    models.CharField(
                        choices=[
                            ("viewer", "Viewer"),
                            ("researcher", "Researcher"),
                            ("operator", "Operator"),
                            ("admin", "Admin"),
                        ],
                        default="researcher",
                        max_length=10,
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["team", "user"],
            },
        ),
        migrations.CreateModel(
            name="Team",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "name",
                    models.CharField(
                        max_length=40,
                        unique=True,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^[a-z0-9][a-z0-9-]{0,39}$", "Use lowercase letters, digits and dashes, at most 40."
                            )
                        ],
                    ),
                ),
                ("title", models.CharField(blank=True, max_length=120)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                (
                    "members",
                    models.ManyToManyField(
                        related_name="teams", through="jobs.Membership", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={
                "ordering": ["name"],
            },
        ),
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("public_id", models.CharField(editable=False, max_length=24, unique=True, verbose_name="job id")),
                ("name", models.CharField(max_length=120)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("pretrain", "pretrain"),
                            ("sft", "sft"),
                            ("mllm", "mllm"),
                            ("evaluation", "evaluation"),
                            ("debug", "debug"),
                            ("other", "other"),
                        ],
                        default=jobs.core.lifecycle.JobKind["OTHER"],
                        max_length=12,
                    ),
                ),
                ("command", models.TextField()),
                (
                    "image",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Reference of the container image that the job runs in. Empty: none.",
                        max_length=500,
                        verbose_name="container image",
                    ),
                ),
                (
                    "mounts",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=63),
                        blank=True,
                        db_default=[],
                        default=list,
                        help_text="Names of volumes that the cluster offers to jobs.",
                        size=None,
                    ),
                ),
                ("workdir", models.CharField(blank=True, max_length=500)),
                ("environment", models.JSONField(blank=True, default=dict)),
                ("nodes", models.PositiveIntegerField(default=1)),
                ("gpus_per_node", models.PositiveSmallIntegerField(default=0, verbose_name="GPUs per node")),
                (
                    "gpu_milli",
                    models.SmallIntegerField(
                        db_default=0,
                        default=0,
                        editable=False,
                        help_text="Part of one GPU that the job shares with others, instead of whole GPUs.",
                        verbose_name="thousandths of a GPU",
                    ),
                ),
                (
                    "share_gres",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        editable=False,
                        help_text="What Slurm must call the parts of the GPU, shard or mps; empty: any of them.",
                        max_length=8,
                        verbose_name="name of the share in Slurm",
                    ),
                ),
                (
                    "mig_profile",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        editable=False,
                        help_text="The MIG slice that the job requests instead of GPUs.",
                        max_length=32,
                        verbose_name="MIG profile",
                    ),
                ),
                ("cpus_per_node", models.PositiveIntegerField(default=1, verbose_name="CPUs per node")),
                ("memory_per_node_mb", models.PositiveBigIntegerField(default=0, verbose_name="memory per node (MiB)")),
                ("gpu_model", models.CharField(blank=True, max_length=200, verbose_name="GPU model")),
                ("nic_type", models.CharField(blank=True, max_length=40, verbose_name="NIC type")),
                (
                    "required_node",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        editable=False,
                        help_text="The only node on which the job may run.",
                        max_length=64,
                    ),
                ),
                ("time_limit", models.DurationField(blank=True, help_text="Empty: UNLIMITED.", null=True)),
                ("priority", models.IntegerField(default=0)),
                ("preemptible", models.BooleanField(default=False)),
                (
                    "preempt_exempt_time",
                    models.DurationField(
                        db_default=datetime.timedelta(0),
                        default=datetime.timedelta(0),
                        help_text="How long the job is protected from preemption after each start.",
                    ),
                ),
                (
                    "preempt_at_checkpoint",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Whether it is preempted only right after a checkpoint.",
                    ),
                ),
                (
                    "preemptions_per_day",
                    models.SmallIntegerField(
                        blank=True,
                        help_text="How often it may be preempted within 24 hours. Empty: no limit.",
                        null=True,
                    ),
                ),
                ("requeue_limit", models.PositiveSmallIntegerField(default=3)),
                ("requeues", models.PositiveSmallIntegerField(default=0, editable=False)),
                ("begin_at", models.DateTimeField(blank=True, null=True)),
                (
                    "deadline_at",
                    models.DateTimeField(blank=True, help_text="When the job should have ended.", null=True),
                ),
                (
                    "deadline_action",
                    models.CharField(
                        choices=[("continue", "continue"), ("cancel", "cancel")],
                        db_default="continue",
                        default="continue",
                        help_text="What happens when the deadline passes. cancel: the job ends, as with Slurm's --deadline.",
                        max_length=8,
                    ),
                ),
                (
                    "deadline_probability",
                    models.FloatField(
                        editable=False,
                        help_text="The last forecast of whether it meets its deadline, from 0 to 1.",
                        null=True,
                    ),
                ),
                (
                    "deadline_why",
                    models.TextField(
                        blank=True,
                        db_default="",
                        default="",
                        editable=False,
                        help_text="What the forecast results from.",
                    ),
                ),
                (
                    "hold",
                    models.CharField(
                        blank=True,
                        choices=[("", "no"), ("user", "by its owner"), ("admin", "by an operator")],
                        default="",
                        editable=False,
                        max_length=5,
                    ),
                ),
                ("array_id", models.CharField(blank=True, db_index=True, editable=False, max_length=16)),
                ("array_index", models.PositiveIntegerField(editable=False, null=True)),
                (
                    "array_limit",
                    models.PositiveIntegerField(
                        editable=False, help_text="Number of tasks that may run at the same time.", null=True
                    ),
                ),
                ("checkpoint_dir", models.CharField(blank=True, max_length=500)),
                ("checkpoint_interval", models.DurationField(blank=True, null=True)),
                (
                    "checkpoint_signal",
                    models.CharField(
                        blank=True,
                        help_text="Signal that requests a checkpoint before a stop: [B:]USR1[@seconds], as for sbatch --signal.",
                        max_length=16,
                    ),
                ),
                ("labels", models.JSONField(blank=True, default=dict)),
                ("comment", models.TextField(blank=True)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("PENDING", "PENDING"),
                            ("RUNNING", "RUNNING"),
                            ("SUSPENDED", "SUSPENDED"),
                            ("COMPLETED", "COMPLETED"),
                            ("CANCELLED", "CANCELLED"),
                            ("FAILED", "FAILED"),
                            ("TIMEOUT", "TIMEOUT"),
                            ("NODE_FAIL", "NODE_FAIL"),
                            ("PREEMPTED", "PREEMPTED"),
                            ("BOOT_FAIL", "BOOT_FAIL"),
                            ("DEADLINE", "DEADLINE"),
                            ("OUT_OF_MEMORY", "OUT_OF_MEMORY"),
                        ],
                        default=jobs.core.lifecycle.State["PENDING"],
                        editable=False,
                        max_length=14,
                    ),
                ),
                (
                    "flags",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=16), default=list, editable=False, size=None
                    ),
                ),
                (
                    "reason",
                    models.CharField(
                        blank=True, editable=False, help_text="Why the job waits, as a Slurm reason.", max_length=40
                    ),
                ),
                ("why", models.TextField(blank=True, editable=False, help_text="Why the job waits, as a sentence.")),
                (
                    "power_budgets",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=60),
                        blank=True,
                        db_default=[],
                        default=list,
                        editable=False,
                        help_text="Names of the power budgets that leave too little for it, while its reason is Power.",
                        size=None,
                    ),
                ),
                (
                    "submitted_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                ("started_at", models.DateTimeField(editable=False, null=True)),
                ("ended_at", models.DateTimeField(editable=False, null=True)),
                ("exit_code", models.IntegerField(editable=False, null=True)),
                ("signal", models.PositiveSmallIntegerField(editable=False, null=True)),
                (
                    "predicted_s",
                    models.FloatField(
                        editable=False,
                        help_text="Run time in seconds, predicted from similar jobs at its first scheduling turn.",
                        null=True,
                    ),
                ),
                (
                    "trees_predicted_s",
                    models.FloatField(
                        editable=False,
                        help_text="The same, blended with the prediction of trees, if they had been trained by then.",
                        null=True,
                    ),
                ),
                (
                    "run_time_learned",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        editable=False,
                        help_text="Whether predictions of later jobs include it.",
                    ),
                ),
                (
                    "recover_by",
                    models.DateTimeField(
                        editable=False,
                        help_text="The job waits for recovery until then. Afterwards the rules without recovery apply.",
                        null=True,
                    ),
                ),
                (
                    "resume",
                    models.JSONField(
                        default=dict,
                        editable=False,
                        help_text="Passed to the next attempt: checkpoint, its step, steps to skip.",
                    ),
                ),
                (
                    "foreign_id",
                    models.CharField(
                        blank=True,
                        editable=False,
                        help_text="Id and submission time on the cluster, for jobs submitted outside Acme.",
                        max_length=340,
                    ),
                ),
                (
                    "foreign_user",
                    models.CharField(
                        blank=True,
                        editable=False,
                        help_text="Owner on the cluster, for jobs submitted outside Acme.",
                        max_length=64,
                    ),
                ),
                (
                    "foreign_key",
                    models.CharField(
                        blank=True,
                        db_default="",
                        editable=False,
                        help_text="Installation and attempt key, for jobs of another Acme installation.",
                        max_length=48,
                    ),
                ),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="jobs", to="jobs.cluster"
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="acme_jobs",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="jobs", to="jobs.team"),
                ),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [
                    models.Index(fields=["cluster", "state", "-id"], name="job_by_state"),
                    models.Index(fields=["cluster", "-id"], name="job_of_cluster"),
                    models.Index(fields=["user", "-id"], name="job_by_user"),
                    models.Index(fields=["team", "-id"], name="job_by_team"),
                    models.Index(fields=["submitted_at"], name="job_by_time"),
                    django.contrib.postgres.indexes.GinIndex(
                        fields=["labels"], name="job_by_label", opclasses=["jsonb_path_ops"]
                    ),
                    models.Index(
                        condition=models.Q(("ended_at__isnull", False)), fields=["ended_at", "id"], name="job_by_end"
                    ),
                    models.Index(
                        condition=models.Q(("started_at__isnull", False)),
                        fields=["started_at", "id"],
                        name="job_by_start",
                    ),
                    models.Index(fields=["priority", "id"], name="job_by_priority"),
                    models.Index(fields=["name", "id"], name="job_by_name"),
                    models.Index(
                        condition=models.Q(("started_at__isnull", False)),
                        fields=["user", "name", "-submitted_at"],
                        name="job_runs_of_name",
                    ),
                    models.Index(
                        django.db.models.expressions.CombinedExpression(
                            models.F("nodes"), "*", models.F("gpus_per_node")
                        ),
                        models.F("id"),
                        name="job_by_gpus",
                    ),
                    models.Index(
                        condition=models.Q(("state", jobs.core.lifecycle.State["PENDING"])),
                        fields=["cluster", "-priority", "submitted_at", "id"],
                        name="job_queue",
                    ),
                    models.Index(
                        condition=models.Q(("state", jobs.core.lifecycle.State["PENDING"])),
                        fields=["-priority", "submitted_at", "id"],
                        name="job_queue_of_all",
                    ),
                    models.Index(
                        condition=models.Q(
                            (
                                "state__in",
                                [jobs.core.lifecycle.State["RUNNING"], jobs.core.lifecycle.State["SUSPENDED"]],
                            )
                        ),
                        fields=["cluster"],
                        name="job_live",
                    ),
                    models.Index(
                        models.OrderBy(models.F("started_at"), descending=True, nulls_first=True),
                        models.OrderBy(models.F("id"), descending=True),
                        condition=models.Q(
                            (
                                "state__in",
                                [jobs.core.lifecycle.State["RUNNING"], jobs.core.lifecycle.State["SUSPENDED"]],
                            )
                        ),
                        name="job_live_by_start",
                    ),
                    models.Index(
                        models.OrderBy(
                            django.db.models.expressions.CombinedExpression(
                                models.F("nodes"), "*", models.F("gpus_per_node")
                            ),
                            descending=True,
                        ),
                        models.OrderBy(models.F("id"), descending=True),
                        condition=models.Q(
                            (
                                "kind__in",
                                [
                                    jobs.core.lifecycle.JobKind["MLLM"],
                                    jobs.core.lifecycle.JobKind["PRETRAIN"],
                                    jobs.core.lifecycle.JobKind["SFT"],
                                ],
                            ),
                            (
                                "state__in",
                                [jobs.core.lifecycle.State["RUNNING"], jobs.core.lifecycle.State["SUSPENDED"]],
                            ),
                        ),
                        name="job_widest_trainings",
                    ),
                    models.Index(
                        condition=models.Q(
                            ("flags__contains", [jobs.core.lifecycle.Flag["REQUEUE_HOLD"]]),
                            ("state", jobs.core.lifecycle.State["PENDING"]),
                        ),
                        fields=["-id"],
                        name="job_held_back",
                    ),
                    models.Index(
                        condition=models.Q(
                            ("flags__contains", [jobs.core.lifecycle.Flag["OUTCOME_UNKNOWN"]]),
                            ("state", jobs.core.lifecycle.State["PENDING"]),
                        ),
                        fields=["-id"],
                        name="job_outcome_unknown",
                    ),
                    models.Index(
                        condition=models.Q(
                            ("deadline_at__isnull", False),
                            (
                                "state__in",
                                [
                                    jobs.core.lifecycle.State["PENDING"],
                                    jobs.core.lifecycle.State["RUNNING"],
                                    jobs.core.lifecycle.State["SUSPENDED"],
                                ],
                            ),
                        ),
                        fields=["cluster", "deadline_at"],
                        name="job_open_deadline",
                    ),
                    models.Index(
                        condition=models.Q(("recover_by__isnull", False)), fields=["recover_by"], name="job_recovering"
                    ),
                    models.Index(
                        condition=models.Q(
                            ("ended_at__isnull", False),
                            ("foreign_id", ""),
                            ("run_time_learned", False),
                            ("started_at__isnull", False),
                        ),
                        fields=["cluster", "ended_at"],
                        name="job_run_time_not_learned",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "state__in",
                                [
                                    jobs.core.lifecycle.State["PENDING"],
                                    jobs.core.lifecycle.State["RUNNING"],
                                    jobs.core.lifecycle.State["SUSPENDED"],
                                    jobs.core.lifecycle.State["COMPLETED"],
                                    jobs.core.lifecycle.State["CANCELLED"],
                                    jobs.core.lifecycle.State["FAILED"],
                                    jobs.core.lifecycle.State["TIMEOUT"],
                                    jobs.core.lifecycle.State["NODE_FAIL"],
                                    jobs.core.lifecycle.State["PREEMPTED"],
                                    jobs.core.lifecycle.State["BOOT_FAIL"],
                                    jobs.core.lifecycle.State["DEADLINE"],
                                    jobs.core.lifecycle.State["OUT_OF_MEMORY"],
                                ],
                            )
                        ),
                        name="job_state_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "kind__in",
                                [
                                    jobs.core.lifecycle.JobKind["PRETRAIN"],
                                    jobs.core.lifecycle.JobKind["SFT"],
                                    jobs.core.lifecycle.JobKind["MLLM"],
                                    jobs.core.lifecycle.JobKind["EVALUATION"],
                                    jobs.core.lifecycle.JobKind["DEBUG"],
                                    jobs.core.lifecycle.JobKind["OTHER"],
                                ],
                            )
                        ),
                        name="job_kind_known",
                    ),
                    models.CheckConstraint(condition=models.Q(("nodes__gte", 1)), name="job_has_a_node"),
                    models.UniqueConstraint(
                        condition=models.Q(("foreign_id", ""), _negated=True),
                        fields=("cluster", "foreign_id"),
                        name="one_row_per_foreign_job",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Attempt",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveSmallIntegerField()),
                (
                    "key",
                    models.CharField(
                        help_text="Id of the attempt in Acme, which is also stored on the cluster.",
                        max_length=32,
                        unique=True,
                    ),
                ),
                (
                    "backend_id",
                    models.CharField(blank=True, help_text="The cluster's own id of the job.", max_length=320),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("PENDING", "PENDING"),
                            ("RUNNING", "RUNNING"),
                            ("SUSPENDED", "SUSPENDED"),
                            ("COMPLETED", "COMPLETED"),
                            ("CANCELLED", "CANCELLED"),
                            ("FAILED", "FAILED"),
                            ("TIMEOUT", "TIMEOUT"),
                            ("NODE_FAIL", "NODE_FAIL"),
                            ("PREEMPTED", "PREEMPTED"),
                            ("BOOT_FAIL", "BOOT_FAIL"),
                            ("DEADLINE", "DEADLINE"),
                            ("OUT_OF_MEMORY", "OUT_OF_MEMORY"),
                            ("UNKNOWN", "UNKNOWN"),
                        ],
                        default=jobs.core.lifecycle.State["RUNNING"],
                        max_length=14,
                    ),
                ),
                ("nodelist", models.TextField(blank=True)),
                ("log_path", models.CharField(blank=True, max_length=500)),
                ("promised_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "accepted_at",
                    models.DateTimeField(help_text="When the cluster accepted it (clock of Acme).", null=True),
                ),
                ("confirmed_at", models.DateTimeField(help_text="When it started (clock of the cluster).", null=True)),
                (
                    "seen_running_at",
                    models.DateTimeField(help_text="When it was first observed running (clock of Acme).", null=True),
                ),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "missing_since",
                    models.DateTimeField(
                        help_text="Since when the cluster responds but does not know the attempt.", null=True
                    ),
                ),
                ("exit_code", models.IntegerField(null=True)),
                ("signal", models.PositiveSmallIntegerField(null=True)),
                ("reason", models.TextField(blank=True)),
                (
                    "cause",
                    models.CharField(
                        blank=True,
                        help_text="Root cause: the label of the diagnosis, as soon as there is one.",
                        max_length=80,
                    ),
                ),
                ("saved_at", models.DateTimeField(null=True)),
                ("saved_step", models.PositiveBigIntegerField(null=True)),
                ("checkpoint_asked_at", models.DateTimeField(editable=False, null=True)),
                (
                    "stop_state",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("PENDING", "PENDING"),
                            ("RUNNING", "RUNNING"),
                            ("SUSPENDED", "SUSPENDED"),
                            ("COMPLETED", "COMPLETED"),
                            ("CANCELLED", "CANCELLED"),
                            ("FAILED", "FAILED"),
                            ("TIMEOUT", "TIMEOUT"),
                            ("NODE_FAIL", "NODE_FAIL"),
                            ("PREEMPTED", "PREEMPTED"),
                            ("BOOT_FAIL", "BOOT_FAIL"),
                            ("DEADLINE", "DEADLINE"),
                            ("OUT_OF_MEMORY", "OUT_OF_MEMORY"),
                        ],
                        max_length=14,
                    ),
                ),
                ("stop_reason", models.TextField(blank=True)),
                (
                    "stacks_signal",
                    models.CharField(
                        blank=True,
                        db_default="",
                        help_text="Signal at which the processes write their stacks, as declared by the job.",
                        max_length=12,
                    ),
                ),
                (
                    "usage_counted",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        editable=False,
                        help_text="Whether the usage of its team contains it.",
                    ),
                ),
                (
                    "slowdown",
                    models.FloatField(
                        db_default=1.0,
                        default=1.0,
                        editable=False,
                        help_text="How many times as long the job runs on its GPU model as on the first one that it requested.",
                    ),
                ),
                (
                    "log_pending",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        editable=False,
                        help_text="Whether Acme still has to copy output to its log.",
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="attempts", to="jobs.job"
                    ),
                ),
            ],
            options={
                "ordering": ["job", "number"],
                "indexes": [
                    models.Index(fields=["backend_id"], name="attempt_by_backend_id"),
                    models.Index(condition=models.Q(("ended_at__isnull", True)), fields=["id"], name="attempt_live"),
                    models.Index(
                        condition=models.Q(("ended_at__isnull", True), ("missing_since__isnull", False)),
                        fields=["missing_since"],
                        name="attempt_missing",
                    ),
                    models.Index(
                        condition=models.Q(("usage_counted", False)),
                        fields=["ended_at"],
                        name="attempt_end_not_counted",
                    ),
                    models.Index(condition=models.Q(("log_pending", True)), fields=["id"], name="attempt_log_pending"),
                    models.Index(
                        condition=models.Q(
                            (
                                "state__in",
                                [
                                    jobs.core.lifecycle.State["BOOT_FAIL"],
                                    jobs.core.lifecycle.State["DEADLINE"],
                                    jobs.core.lifecycle.State["FAILED"],
                                    jobs.core.lifecycle.State["NODE_FAIL"],
                                    jobs.core.lifecycle.State["OUT_OF_MEMORY"],
                                    jobs.core.lifecycle.State["TIMEOUT"],
                                ],
                            )
                        ),
                        fields=["ended_at"],
                        name="attempt_failed",
                    ),
                    models.Index(
                        condition=models.Q(("cause", ""), _negated=True),
                        fields=["cause", "job"],
                        name="attempt_by_cause",
                    ),
                    django.contrib.postgres.indexes.GistIndex(
                        models.Func(
                            "promised_at",
                            django.db.models.functions.comparison.Greatest("promised_at", "ended_at"),
                            function="tstzrange",
                            output_field=django.contrib.postgres.fields.ranges.DateTimeRangeField(),
                        ),
                        condition=models.Q(("ended_at__isnull", False)),
                        name="attempt_by_span",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("job", "number"), name="attempts_are_counted"),
                    models.UniqueConstraint(
                        condition=models.Q(("ended_at__isnull", True)), fields=("job",), name="one_live_attempt_per_job"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "state__in",
                                [
                                    jobs.core.lifecycle.State["PENDING"],
                                    jobs.core.lifecycle.State["RUNNING"],
                                    jobs.core.lifecycle.State["SUSPENDED"],
                                    jobs.core.lifecycle.State["COMPLETED"],
                                    jobs.core.lifecycle.State["CANCELLED"],
                                    jobs.core.lifecycle.State["FAILED"],
                                    jobs.core.lifecycle.State["TIMEOUT"],
                                    jobs.core.lifecycle.State["NODE_FAIL"],
                                    jobs.core.lifecycle.State["PREEMPTED"],
                                    jobs.core.lifecycle.State["BOOT_FAIL"],
                                    jobs.core.lifecycle.State["DEADLINE"],
                                    jobs.core.lifecycle.State["OUT_OF_MEMORY"],
                                    jobs.core.lifecycle.State["UNKNOWN"],
                                ],
                            )
                        ),
                        name="attempt_state_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="LatestProgress",
            fields=[
                ("at", models.DateTimeField(help_text="Clock of the job, but never later than the clock of Acme.")),
                ("step", models.PositiveBigIntegerField(null=True)),
                (
                    "tokens",
                    models.PositiveBigIntegerField(help_text="Tokens consumed since the start of training.", null=True),
                ),
                (
                    "sum_sq",
                    models.FloatField(
                        help_text="Sum of the squared sequence lengths since the start of training.", null=True
                    ),
                ),
                ("loss", models.FloatField(null=True)),
                ("grad_norm", models.FloatField(null=True)),
                ("step_time_s", models.FloatField(null=True)),
                ("learning_rate", models.FloatField(null=True)),
                (
                    "mfu",
                    models.FloatField(
                        help_text="Model FLOPs utilization as a share of 1, as the job reports it.", null=True
                    ),
                ),
                (
                    "attempt",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="latest_progress",
                        serialize=False,
                        to="jobs.attempt",
                    ),
                ),
                (
                    "updated_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), help_text="Clock of Acme."
                    ),
                ),
                (
                    "source",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("", "reports of the job"),
                            ("log", "log of the job"),
                            ("late", "log of the job, not read from the start"),
                        ],
                        db_default="",
                        default="",
                        help_text="Source of the steps.",
                        max_length=4,
                    ),
                ),
                (
                    "steps_total",
                    models.PositiveBigIntegerField(
                        help_text="Last step of the training, according to the log.", null=True
                    ),
                ),
                (
                    "saved_step",
                    models.PositiveBigIntegerField(
                        help_text="Step of the last checkpoint in the log (unverified).", null=True
                    ),
                ),
                (
                    "saved_at",
                    models.DateTimeField(help_text="Earliest time at which that checkpoint was saved.", null=True),
                ),
                ("saved_path", models.CharField(blank=True, db_default="", default="", max_length=400)),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="EnergyClock",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("counted_until", models.DateTimeField()),
                (
                    "cluster",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="energy_clock", to="jobs.cluster"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Installation",
            fields=[
                ("only", models.BooleanField(default=True, editable=False, primary_key=True, serialize=False)),
                (
                    "id_on_clusters",
                    models.CharField(default=jobs.models.installation.new_installation_id, max_length=16),
                ),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "constraints": [models.CheckConstraint(condition=models.Q(("only", True)), name="one_installation")],
            },
        ),
        migrations.CreateModel(
            name="LoginAttempts",
            fields=[
                (
                    "key",
                    models.CharField(
                        help_text="SHA-256 of the address, or of the user name and address.",
                        max_length=64,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("since", models.DateTimeField(help_text="Start of the counting window.")),
                ("count", models.PositiveIntegerField()),
            ],
            options={
                "verbose_name_plural": "login attempts",
                "indexes": [models.Index(fields=["since"], name="login_attempts_by_age")],
            },
        ),
        migrations.CreateModel(
            name="Maintenance",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=60)),
                ("reason", models.TextField()),
                (
                    "whole_cluster",
                    models.BooleanField(default=False, help_text="Includes nodes that the cluster reports later."),
                ),
                ("start_at", models.DateTimeField()),
                ("end_at", models.DateTimeField()),
                (
                    "mode",
                    models.CharField(
                        choices=[("finish", "Finish"), ("checkpoint", "Checkpoint"), ("now", "Now")],
                        default="finish",
                        max_length=10,
                    ),
                ),
                (
                    "lead_time",
                    models.DurationField(
                        default=datetime.timedelta(days=1),
                        help_text="How long before the start jobs without a time limit stop starting on these nodes.",
                    ),
                ),
                ("by", models.CharField(max_length=150)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("begun_at", models.DateTimeField(help_text="Time at which the first node was closed.", null=True)),
                ("cancelled_at", models.DateTimeField(null=True)),
                ("closed_at", models.DateTimeField(help_text="Time at which all nodes were open again.", null=True)),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="maintenances", to="jobs.cluster"
                    ),
                ),
            ],
            options={
                "ordering": ["start_at", "id"],
            },
        ),
        migrations.CreateModel(
            name="Node",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=64)),
                ("gpus", models.PositiveSmallIntegerField(default=0, verbose_name="GPUs")),
                ("gpu_model", models.CharField(blank=True, max_length=40, verbose_name="GPU model")),
                ("cpus", models.PositiveIntegerField(default=0, verbose_name="CPUs")),
                ("memory_mb", models.PositiveBigIntegerField(default=0, verbose_name="memory (MiB)")),
                ("rack", models.CharField(blank=True, max_length=40)),
                ("leaf", models.CharField(blank=True, max_length=40, verbose_name="leaf switch")),
                ("pod", models.CharField(blank=True, max_length=40)),
                ("nic_type", models.CharField(blank=True, max_length=40, verbose_name="NIC type")),
                ("nic_count", models.PositiveSmallIntegerField(default=0, verbose_name="NICs")),
                (
                    "shards_per_gpu",
                    models.SmallIntegerField(
                        db_default=0,
                        default=0,
                        editable=False,
                        help_text="Into how many parts the cluster can share each GPU of the node; 0: not at all.",
                        verbose_name="shards per GPU",
                    ),
                ),
                (
                    "share_gres",
                    models.CharField(
                        db_default="shard",
                        default="shard",
                        editable=False,
                        help_text="Slurm's name of these parts: shard or mps.",
                        max_length=8,
                        verbose_name="name of the shards",
                    ),
                ),
                (
                    "mig_slices",
                    models.JSONField(
                        blank=True,
                        db_default={},
                        default=dict,
                        editable=False,
                        help_text="Number of MIG slices by profile. They are the last of the node's GPUs.",
                        verbose_name="MIG slices",
                    ),
                ),
                (
                    "gpu_uuids",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=64), blank=True, default=list, editable=False, size=None
                    ),
                ),
                (
                    "gpu_pci",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=20), blank=True, default=list, editable=False, size=None
                    ),
                ),
                (
                    "gpu_pods",
                    models.JSONField(
                        blank=True,
                        db_default={},
                        default=dict,
                        editable=False,
                        help_text="Kubernetes: the pod that holds each GPU, by the labels of the DCGM exporter.",
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("IDLE", "IDLE"),
                            ("MIXED", "MIXED"),
                            ("ALLOCATED", "ALLOCATED"),
                            ("DOWN", "DOWN"),
                            ("ERROR", "ERROR"),
                            ("UNKNOWN", "UNKNOWN"),
                        ],
                        default=jobs.core.lifecycle.NodeState["UNKNOWN"],
                        editable=False,
                        max_length=10,
                    ),
                ),
                (
                    "flags",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=20), blank=True, default=list, editable=False, size=None
                    ),
                ),
                (
                    "foreign_gpus",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.PositiveSmallIntegerField(),
                        blank=True,
                        default=list,
                        editable=False,
                        help_text="GPUs held by jobs that were submitted outside Acme.",
                        size=None,
                    ),
                ),
                (
                    "drain_requested",
                    models.BooleanField(default=False, editable=False, help_text="A drain was requested through Acme."),
                ),
                (
                    "drain_mode",
                    models.CharField(
                        choices=[("finish", "Finish"), ("checkpoint", "Checkpoint"), ("now", "Now")],
                        default="finish",
                        editable=False,
                        max_length=10,
                    ),
                ),
                ("reason", models.TextField(blank=True, editable=False)),
                ("reason_by", models.CharField(blank=True, editable=False, max_length=150)),
                ("reason_at", models.DateTimeField(editable=False, null=True)),
                (
                    "repair_stage",
                    models.CharField(
                        blank=True,
                        choices=[("", "none"), ("repair", "waiting for repair"), ("burn-in", "Burn In")],
                        default="",
                        editable=False,
                        max_length=8,
                    ),
                ),
                ("burn_in_until", models.DateTimeField(editable=False, help_text="End of the burn-in.", null=True)),
                (
                    "since",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        editable=False,
                        help_text="Time of the last change of state.",
                    ),
                ),
                ("seen_at", models.DateTimeField(editable=False, null=True)),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="nodes", to="jobs.cluster"
                    ),
                ),
                (
                    "maintenance",
                    models.ForeignKey(
                        editable=False,
                        help_text="Maintenance that closed the node and will reopen it.",
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="closed",
                        to="jobs.maintenance",
                    ),
                ),
            ],
            options={
                "ordering": ["cluster", "name"],
                "constraints": [
                    models.UniqueConstraint(fields=("cluster", "name"), name="one_node_per_name"),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "state__in",
                                [
                                    jobs.core.lifecycle.NodeState["IDLE"],
                                    jobs.core.lifecycle.NodeState["MIXED"],
                                    jobs.core.lifecycle.NodeState["ALLOCATED"],
                                    jobs.core.lifecycle.NodeState["DOWN"],
                                    jobs.core.lifecycle.NodeState["ERROR"],
                                    jobs.core.lifecycle.NodeState["UNKNOWN"],
                                ],
                            )
                        ),
                        name="node_state_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Event",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("type", models.CharField(help_text="job.submitted, job.state_changed, node.drained …", max_length=40)),
                ("by", models.CharField(help_text="User name, or name of the loop.", max_length=150)),
                ("source", models.GenericIPAddressField(help_text="Where the request came from.", null=True)),
                ("request_id", models.CharField(blank=True, max_length=64)),
                ("from_state", models.CharField(blank=True, max_length=40)),
                ("to_state", models.CharField(blank=True, max_length=40)),
                ("why", models.TextField(blank=True)),
                ("detail", models.JSONField(default=dict)),
                (
                    "attempt",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, related_name="events", to="jobs.attempt"
                    ),
                ),
                (
                    "cluster",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, related_name="events", to="jobs.cluster"
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, related_name="events", to="jobs.job"
                    ),
                ),
                (
                    "node",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, related_name="events", to="jobs.node"
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [
                    models.Index(condition=models.Q(("job__isnull", False)), fields=["job", "id"], name="event_by_job"),
                    models.Index(
                        condition=models.Q(("node__isnull", False)), fields=["node", "id"], name="event_by_node"
                    ),
                    models.Index(fields=["at"], name="event_by_time"),
                    models.Index(
                        condition=models.Q(("type", "node.state_changed")),
                        fields=["node", "-at", "-id"],
                        name="event_node_state_changed",
                    ),
                    models.Index(
                        condition=models.Q(("type__in", ("node.drained", "node.resumed"))),
                        fields=["node", "-at", "-id"],
                        name="event_node_drain_requested",
                    ),
                    models.Index(
                        condition=models.Q(("type", "node.tested")),
                        fields=["node", "-at", "-id"],
                        name="event_node_tested",
                    ),
                    models.Index(
                        condition=models.Q(("type", "policy.changed")), fields=["cluster", "id"], name="event_of_policy"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ClusterCommand",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("submit", "Submit"),
                            ("cancel", "Cancel"),
                            ("cancel_id", "Cancel Id"),
                            ("drain", "Drain"),
                            ("resume", "Resume"),
                            ("signal", "Signal"),
                            ("test", "Test"),
                            ("stacks", "Stacks"),
                            ("sleep", "Sleep"),
                            ("wake", "Wake"),
                        ],
                        max_length=10,
                    ),
                ),
                ("reason", models.TextField(blank=True)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "due_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        help_text="Earliest time of the next try. Moved into the future while a worker sends the command.",
                    ),
                ),
                (
                    "tries",
                    models.PositiveIntegerField(
                        default=0, help_text="Incremented before each try; also the fencing token."
                    ),
                ),
                (
                    "tries_without_effect",
                    models.PositiveIntegerField(
                        db_default=0,
                        default=0,
                        help_text="Number of tries that are known to have had no effect on the cluster.",
                    ),
                ),
                (
                    "is_being_sent",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="A worker sends the command, or died while sending it.",
                    ),
                ),
                ("done_at", models.DateTimeField(null=True)),
                ("outcome", models.TextField(blank=True)),
                (
                    "attempt",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="commands",
                        to="jobs.attempt",
                    ),
                ),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="commands", to="jobs.cluster"
                    ),
                ),
                (
                    "node",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, related_name="commands", to="jobs.node"
                    ),
                ),
            ],
            options={
                "ordering": ["id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("done_at__isnull", True)),
                        fields=["cluster", "due_at", "id"],
                        name="command_due",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("done_at__isnull", True)),
                        fields=("attempt", "kind"),
                        name="one_open_command_per_attempt",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("attempt__isnull", True), ("done_at__isnull", True)),
                        fields=("node", "kind"),
                        name="one_open_command_per_node",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Allocation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("gpu", models.PositiveSmallIntegerField(help_text="Index of the GPU on the node.", null=True)),
                (
                    "share_begin",
                    models.SmallIntegerField(db_default=0, default=0, help_text="First thousandth of the GPU."),
                ),
                (
                    "share",
                    models.SmallIntegerField(
                        db_default=1000, default=1000, help_text="Thousandths of the GPU; 1000 is all of it."
                    ),
                ),
                ("held_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("released_at", models.DateTimeField(null=True)),
                (
                    "attempt",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="allocations", to="jobs.attempt"
                    ),
                ),
                (
                    "node",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="allocations", to="jobs.node"
                    ),
                ),
            ],
            options={
                "ordering": ["attempt", "node", "gpu"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("released_at__isnull", True)),
                        fields=["node", "gpu"],
                        name="allocation_live",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="NodeClock",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "mhz",
                    models.PositiveSmallIntegerField(
                        help_text="Null: the highest clock; the row ends with the command.", null=True
                    ),
                ),
                ("began_at", models.DateTimeField()),
                ("confirmed_at", models.DateTimeField(help_text="When the command was done.", null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "node",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="clocks",
                        to="jobs.node",
                    ),
                ),
            ],
            options={
                "ordering": ["node", "began_at"],
                "indexes": [
                    models.Index(fields=["node", "began_at"], name="node_clock_by_time"),
                    models.Index(fields=["ended_at"], name="node_clock_by_age"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("ended_at", None)), fields=("node",), name="one_open_clock_per_node"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Progress",
            fields=[
                ("at", models.DateTimeField(help_text="Clock of the job, but never later than the clock of Acme.")),
                ("step", models.PositiveBigIntegerField(null=True)),
                (
                    "tokens",
                    models.PositiveBigIntegerField(help_text="Tokens consumed since the start of training.", null=True),
                ),
                (
                    "sum_sq",
                    models.FloatField(
                        help_text="Sum of the squared sequence lengths since the start of training.", null=True
                    ),
                ),
                ("loss", models.FloatField(null=True)),
                ("grad_norm", models.FloatField(null=True)),
                ("step_time_s", models.FloatField(null=True)),
                ("learning_rate", models.FloatField(null=True)),
                (
                    "mfu",
                    models.FloatField(
                        help_text="Model FLOPs utilization as a share of 1, as the job reports it.", null=True
                    ),
                ),
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "attempt_id", "at", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "attempt",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="progress",
                        to="jobs.attempt",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "progress",
                "ordering": ["attempt_id", "at"],
                "indexes": [django.contrib.postgres.indexes.BrinIndex(fields=["at"], name="progress_by_age")],
            },
        ),
        migrations.CreateModel(
            name="RankTimes",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("seconds", django.contrib.postgres.fields.ArrayField(base_field=models.FloatField(), size=None)),
                (
                    "nodes",
                    django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=64), size=None),
                ),
                (
                    "groups",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=40),
                        default=list,
                        help_text="Ranks with equal names do the same work. Empty: all do.",
                        size=None,
                    ),
                ),
                (
                    "attempt",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="rank_times", to="jobs.attempt"
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "times of ranks",
                "ordering": ["attempt", "-id"],
            },
        ),
        migrations.CreateModel(
            name="Sample",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "resolution",
                    models.PositiveSmallIntegerField(
                        choices=[(15, "Raw"), (300, "Five Minutes"), (3600, "Hour")], default=15
                    ),
                ),
                ("at", models.DateTimeField(help_text="Start of the interval that the row covers.")),
                (
                    "gpu_util",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.FloatField(null=True), default=list, size=None
                    ),
                ),
                (
                    "gpu_memory_mib",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.FloatField(null=True), default=list, size=None
                    ),
                ),
                (
                    "gpu_temperature_c",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.FloatField(null=True), default=list, size=None
                    ),
                ),
                (
                    "gpu_power_w",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.FloatField(null=True), default=list, size=None
                    ),
                ),
                (
                    "xid",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.FloatField(null=True), default=list, size=None
                    ),
                ),
                (
                    "gpu_energy_mj",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.FloatField(null=True), db_default=[], default=list, size=None
                    ),
                ),
                ("node_power_w", models.FloatField(null=True)),
                (
                    "counted",
                    models.JSONField(
                        db_default={},
                        default=dict,
                        help_text="Other counters that differ from a healthy node: one value per GPU, or names.",
                    ),
                ),
                (
                    "node",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="samples", to="jobs.node"
                    ),
                ),
            ],
            options={
                "ordering": ["node", "-at"],
                "indexes": [models.Index(fields=["resolution", "at"], name="sample_by_time")],
                "constraints": [
                    models.UniqueConstraint(fields=("node", "resolution", "at"), name="one_sample_per_interval")
                ],
            },
        ),
        migrations.CreateModel(
            name="Section",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(help_text="checkpoint, evaluation, compile …", max_length=40)),
                ("began_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "attempt",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="sections", to="jobs.attempt"
                    ),
                ),
            ],
            options={
                "ordering": ["attempt", "began_at"],
                "constraints": [
                    models.UniqueConstraint(fields=("attempt", "began_at", "name"), name="a_section_is_declared_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="SavedView",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=40)),
                (
                    "query",
                    models.CharField(
                        blank=True, help_text="The filters, as in the query string of the list.", max_length=1000
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                (
                    "first_for",
                    models.ManyToManyField(
                        blank=True,
                        help_text="Users whose list opens with this view.",
                        related_name="first_view",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="saved_views",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        blank=True,
                        help_text="Team that sees the view. Empty: only its owner.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="saved_views",
                        to="jobs.team",
                    ),
                ),
            ],
            options={
                "ordering": ["name"],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("team__isnull", True)),
                        fields=("owner", "name"),
                        name="one_view_of_a_person_per_name",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("team__isnull", False)),
                        fields=("team", "name"),
                        name="one_view_of_a_team_per_name",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="RecoveryMode",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "action",
                    models.CharField(
                        blank=True, help_text="Such as restart or test nodes. Empty: all actions.", max_length=20
                    ),
                ),
                (
                    "mode",
                    models.CharField(
                        choices=[
                            ("observe", "observe: record decisions only"),
                            ("propose", "propose: each action needs approval"),
                            ("act", "act: actions are carried out and reported"),
                        ],
                        default="propose",
                        max_length=8,
                    ),
                ),
                (
                    "changed_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                ("changed_by", models.CharField(blank=True, editable=False, max_length=150)),
                (
                    "cluster",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="recovery_modes",
                        to="jobs.cluster",
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="recovery_modes",
                        to="jobs.team",
                    ),
                ),
            ],
            options={
                "ordering": ["cluster", "team", "action"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("cluster", "team", "action"), name="one_mode_per_team_and_action", nulls_distinct=False
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("mode__in", ["observe", "propose", "act"])), name="recovery_mode_known"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Quota",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("pretrain", "pretrain"),
                            ("sft", "sft"),
                            ("mllm", "mllm"),
                            ("evaluation", "evaluation"),
                            ("debug", "debug"),
                            ("other", "other"),
                        ],
                        help_text="Empty: all kinds of jobs.",
                        max_length=12,
                    ),
                ),
                (
                    "gpu_model",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Limits GPUs of this model, beside a quota for all models. Empty: all models.",
                        max_length=40,
                        verbose_name="GPU model",
                    ),
                ),
                (
                    "gpus",
                    models.PositiveIntegerField(
                        help_text="Maximum number of GPUs that non-preemptible jobs may hold together."
                    ),
                ),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="quotas", to="jobs.cluster"
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="quotas", to="jobs.team"
                    ),
                ),
            ],
            options={
                "ordering": ["cluster", "team", "kind", "gpu_model"],
                "constraints": [
                    models.UniqueConstraint(fields=("team", "cluster", "kind", "gpu_model"), name="one_quota_per_model")
                ],
            },
        ),
        migrations.CreateModel(
            name="Token",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=80)),
                (
                    "scope",
                    models.CharField(
                        choices=[("read", "Read"), ("submit", "Submit"), ("operate", "Operate"), ("admin", "Admin")],
                        default="read",
                        max_length=10,
                    ),
                ),
                ("prefix", models.CharField(editable=False, max_length=12)),
                ("digest", models.CharField(editable=False, max_length=64, unique=True)),
                (
                    "networks",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=43),
                        blank=True,
                        default=list,
                        help_text="Client networks (CIDR); empty: any.",
                        size=None,
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("last_used_at", models.DateTimeField(editable=False, null=True)),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
                (
                    "team",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="tokens",
                        to="jobs.team",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="acme_tokens",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("scope__in", ["read", "submit", "operate", "admin"])),
                        name="token_scope_known",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ClusterMinute",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(help_text="Start of the minute.")),
                ("gpus", models.PositiveIntegerField(verbose_name="GPUs")),
                ("allocated", models.PositiveIntegerField()),
                (
                    "closed",
                    models.PositiveIntegerField(
                        help_text="Free GPUs on nodes that did not accept jobs or did not respond."
                    ),
                ),
                ("utilization", models.FloatField(help_text="Mean over the measured GPUs, in percent.", null=True)),
                ("running", models.PositiveIntegerField()),
                ("waiting", models.PositiveIntegerField()),
                ("requested", models.PositiveBigIntegerField(help_text="GPUs requested by the waiting jobs.")),
                ("busy_nodes", models.PositiveIntegerField(help_text="Nodes with jobs. Null: not counted.", null=True)),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="minutes", to="jobs.cluster"
                    ),
                ),
            ],
            options={
                "ordering": ["cluster", "-at"],
                "indexes": [models.Index(fields=["at"], name="minute_by_age")],
                "constraints": [models.UniqueConstraint(fields=("cluster", "at"), name="one_row_per_minute")],
            },
        ),
        migrations.CreateModel(
            name="EnergyHour",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("start", models.DateTimeField()),
                ("counter_j", models.FloatField(default=0.0, help_text="Joules by the GPUs' energy counters.")),
                ("power_j", models.FloatField(default=0.0, help_text="Joules by the GPUs' measured power.")),
                (
                    "estimate_j",
                    models.FloatField(
                        default=0.0, help_text="Joules by the power of the GPU model at its utilization."
                    ),
                ),
                (
                    "host_j",
                    models.FloatField(default=0.0, help_text="Joules of the nodes beside their GPUs, as a share."),
                ),
                ("gpu_s", models.FloatField(default=0.0, help_text="GPU-seconds that the values cover.")),
                (
                    "attempt",
                    models.ForeignKey(
                        help_text="Empty: not allocated.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="energy_hours",
                        to="jobs.attempt",
                    ),
                ),
                (
                    "cluster",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="energy_hours",
                        to="jobs.cluster",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("cluster", "start", "attempt"), name="one_energy_row_per_hour", nulls_distinct=False
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="EnergyPrice",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("start", models.DateTimeField(help_text="Start of the hour (UTC).")),
                (
                    "kwh_price",
                    models.FloatField(
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(-1000.0),
                            django.core.validators.MaxValueValidator(1000000.0),
                        ],
                    ),
                ),
                (
                    "co2_g_per_kwh",
                    models.FloatField(
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(0.0),
                            django.core.validators.MaxValueValidator(10000.0),
                        ],
                    ),
                ),
                (
                    "cluster",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="energy_prices",
                        to="jobs.cluster",
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("cluster", "start"), name="one_energy_price_per_hour")],
            },
        ),
        migrations.CreateModel(
            name="IdempotencyKey",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", models.CharField(max_length=200)),
                ("digest", models.CharField(help_text="Hash of method, address and body.", max_length=64)),
                ("status", models.PositiveSmallIntegerField()),
                ("headers", models.JSONField(default=dict)),
                (
                    "body",
                    models.TextField(help_text="JSON of the response as text, which preserves the order of its keys."),
                ),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["created_at"], name="idempotency_by_age")],
                "constraints": [models.UniqueConstraint(fields=("user", "key"), name="one_answer_per_key")],
            },
        ),
        migrations.CreateModel(
            name="Identity",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("issuer", models.CharField(max_length=255)),
                ("subject", models.CharField(max_length=255)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="identities",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "identities",
                "constraints": [models.UniqueConstraint(fields=("issuer", "subject"), name="one_user_per_identity")],
            },
        ),
        migrations.CreateModel(
            name="Dependency",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "after",
                    models.CharField(
                        choices=[("afterok", "Ok"), ("afterany", "Any"), ("afternotok", "Not Ok")], max_length=10
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="dependencies", to="jobs.job"
                    ),
                ),
                (
                    "on",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="dependents", to="jobs.job"
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "dependencies",
                "constraints": [
                    models.UniqueConstraint(fields=("job", "on"), name="one_dependency_per_pair"),
                    models.CheckConstraint(
                        condition=models.Q(("job", models.F("on")), _negated=True), name="no_job_waits_for_itself"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Checkpoint",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("step", models.PositiveBigIntegerField()),
                ("path", models.CharField(max_length=500)),
                ("saved_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "durable_at",
                    models.DateTimeField(blank=True, help_text="When the checkpoint was on remote storage.", null=True),
                ),
                (
                    "stall_s",
                    models.FloatField(blank=True, help_text="Seconds for which the save stalled training.", null=True),
                ),
                (
                    "verdict",
                    models.CharField(
                        blank=True,
                        choices=[("", "not judged"), ("good", "Good"), ("bad", "Bad")],
                        default="",
                        max_length=4,
                    ),
                ),
                ("verdict_why", models.TextField(blank=True)),
                (
                    "attempt",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="checkpoints",
                        to="jobs.attempt",
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="checkpoints", to="jobs.job"
                    ),
                ),
            ],
            options={
                "ordering": ["job", "-step"],
                "constraints": [models.UniqueConstraint(fields=("job", "path"), name="one_row_per_checkpoint")],
            },
        ),
        migrations.AddField(
            model_name="membership",
            name="team",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="memberships", to="jobs.team"
            ),
        ),
        migrations.AddField(
            model_name="maintenance",
            name="excluded_nodes",
            field=models.ManyToManyField(
                blank=True,
                help_text="Nodes that were resumed during the maintenance.",
                related_name="+",
                to="jobs.node",
            ),
        ),
        migrations.AddField(
            model_name="maintenance",
            name="nodes",
            field=models.ManyToManyField(blank=True, related_name="maintenances", to="jobs.node"),
        ),
        migrations.AddConstraint(
            model_name="membership",
            constraint=models.UniqueConstraint(fields=("team", "user"), name="one_role_per_team"),
        ),
        migrations.AddConstraint(
            model_name="membership",
            constraint=models.CheckConstraint(
                condition=models.Q(("role__in", ["viewer", "researcher", "operator", "admin"])),
                name="membership_role_known",
            ),
        ),
        migrations.AddIndex(
            model_name="maintenance",
            index=models.Index(
                condition=models.Q(("closed_at", None)), fields=["cluster", "start_at"], name="maintenance_ahead"
            ),
        ),
        migrations.AddConstraint(
            model_name="maintenance",
            constraint=models.CheckConstraint(
                condition=models.Q(("end_at__gt", models.F("start_at"))), name="maintenance_ends_after_start"
            ),
        ),
        migrations.AddConstraint(
            model_name="maintenance",
            constraint=models.CheckConstraint(
                condition=models.Q(("mode__in", ["finish", "checkpoint", "now"])), name="maintenance_mode_known"
            ),
        ),
        migrations.AddConstraint(
            model_name="maintenance",
            constraint=models.UniqueConstraint(
                condition=models.Q(("closed_at", None)),
                fields=("cluster", "name"),
                name="one_open_maintenance_per_name",
            ),
        ),
        CREATE_SEQUENCE,
        migrations.RunSQL(f"ALTER TABLE jobs_allocation {SHARE_CONSTRAINTS}", migrations.RunSQL.noop),
        KEEP_FIRST_SHARES,
        MAKE_EVENTS_APPEND_ONLY,
    ]
