"""The schema in one step. Databases that are older are refused, see `acmeweb.services.prepare`."""

import datetime

import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models

from ._ledger_triggers import CREATE_TRIGGERS


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("auth", "__first__"),
        ("failures", "0001_squashed_0017_step_text"),
        ("jobs", "0001_squashed_0069_runs_of_name"),
    ]

    operations = [
        migrations.CreateModel(
            name="Lease",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=80, unique=True)),
                ("holder", models.CharField(max_length=120)),
                ("term", models.BigIntegerField(default=1)),
                ("expires_at", models.DateTimeField()),
                (
                    "session",
                    models.IntegerField(help_text="The holder's process in the database; none: given back.", null=True),
                ),
                ("session_began", models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="LedgerChange",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("cluster_id", models.BigIntegerField()),
                ("since", models.DateTimeField(help_text="Start of the time whose figures may have changed.")),
                ("until", models.DateTimeField(help_text="Empty: up to now.", null=True)),
            ],
        ),
        migrations.CreateModel(
            name="AttemptPeak",
            fields=[
                (
                    "attempt",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="power_peak",
                        serialize=False,
                        to="jobs.attempt",
                    ),
                ),
                ("gpu_w", models.FloatField()),
                (
                    "is_learned",
                    models.BooleanField(
                        db_default=False, default=False, help_text="It ended and is in the learned peaks."
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("is_learned", False)), fields=["attempt"], name="attempt_peak_to_learn"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Estimate",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("p50", models.DateTimeField()),
                ("p90", models.DateTimeField()),
                ("made_at", models.DateTimeField(help_text="When it last moved.")),
                ("first_p50", models.DateTimeField()),
                ("first_p90", models.DateTimeField()),
                ("first_made_at", models.DateTimeField()),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="estimates", to="jobs.cluster"
                    ),
                ),
                (
                    "job",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="estimate", to="jobs.job"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="EvaluationRule",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("directory", models.CharField(max_length=500)),
                (
                    "suite",
                    models.CharField(help_text="NAME for its newest version at the time, or NAME@2.", max_length=60),
                ),
                (
                    "pattern",
                    models.CharField(
                        blank=True, help_text="Of the name within the directory; * is anything.", max_length=100
                    ),
                ),
                (
                    "which",
                    models.CharField(
                        choices=[("newest", "newest only"), ("every", "every checkpoint")],
                        default="newest",
                        max_length=6,
                    ),
                ),
                (
                    "interval",
                    models.DurationField(
                        default=datetime.timedelta(0), help_text="The least time between two campaigns."
                    ),
                ),
                (
                    "per_day",
                    models.PositiveIntegerField(default=24, help_text="At most so many campaigns in 24 hours."),
                ),
                ("nodes", models.PositiveIntegerField(null=True)),
                ("checkpoint_gb", models.FloatField(default=14.0)),
                ("is_enabled", models.BooleanField(default=True)),
                (
                    "started",
                    models.PositiveBigIntegerField(
                        default=0, help_text="Campaigns; who looked before it changed starts nothing."
                    ),
                ),
                (
                    "based_at",
                    models.DateTimeField(help_text="When what had been there before was set aside.", null=True),
                ),
                ("looked_at", models.DateTimeField(null=True)),
                ("why", models.TextField(blank=True, help_text="What it waits for, or what is wrong.")),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="evaluation_rules", to="jobs.cluster"
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="evaluation_rules", to="jobs.team"
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="evaluation_rules",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("is_enabled", True)), fields=["looked_at"], name="evaluation_rule_on"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Suite",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "name",
                    models.CharField(
                        max_length=40,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^[a-z0-9][a-z0-9-]{0,39}$", "Use lowercase letters, digits and dashes, at most 40."
                            )
                        ],
                    ),
                ),
                ("version", models.PositiveIntegerField(default=1)),
                ("title", models.CharField(blank=True, max_length=120)),
                (
                    "framework",
                    models.CharField(
                        choices=[
                            ("plain", "plain commands"),
                            ("lm-eval", "lm-evaluation-harness"),
                            ("opencompass", "OpenCompass"),
                        ],
                        default="plain",
                        max_length=12,
                    ),
                ),
                (
                    "serve",
                    models.TextField(
                        blank=True, help_text="Started once a trial; it listens at $ACME_PORT when it is ready."
                    ),
                ),
                ("infer", models.TextField(help_text="Answers the samples of one shard, into $ACME_OUTPUT.")),
                (
                    "metric",
                    models.TextField(blank=True, help_text="Scores them, without a GPU; it writes $ACME_RESULT."),
                ),
                (
                    "output_root",
                    models.CharField(help_text="Shared directory that all nodes can write to.", max_length=300),
                ),
                (
                    "stage_root",
                    models.CharField(
                        blank=True, help_text="Where a node keeps a copy; empty: no copies.", max_length=300
                    ),
                ),
                ("gpus", models.PositiveSmallIntegerField(default=1, verbose_name="GPUs of a trial")),
                ("cpus", models.PositiveSmallIntegerField(default=4, verbose_name="CPUs of a trial")),
                ("memory_mb", models.PositiveBigIntegerField(default=0)),
                (
                    "metric_jobs",
                    models.PositiveSmallIntegerField(
                        default=16, help_text="CPU jobs of a campaign that may score at once."
                    ),
                ),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="suites", to="jobs.team"
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="suites", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={
                "ordering": ["team", "name", "-version"],
                "constraints": [
                    models.UniqueConstraint(fields=("team", "name", "version"), name="one_suite_per_version")
                ],
            },
        ),
        migrations.CreateModel(
            name="Campaign",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("public_id", models.CharField(max_length=16, unique=True)),
                (
                    "name",
                    models.CharField(
                        db_default="",
                        help_text="Not unique. Default: the run, its steps and the suite.",
                        max_length=120,
                    ),
                ),
                (
                    "checkpoints",
                    django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=500), size=None),
                ),
                ("checkpoint_gb", models.FloatField(default=14.0)),
                (
                    "nodes",
                    models.PositiveIntegerField(
                        help_text="At most so many at once; empty: what the deadline asks.", null=True
                    ),
                ),
                ("deadline_at", models.DateTimeField(null=True)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("PENDING", "Pending"),
                            ("RUNNING", "Running"),
                            ("COMPLETED", "Completed"),
                            ("FAILED", "Failed"),
                            ("CANCELLED", "Cancelled"),
                        ],
                        default="PENDING",
                        max_length=10,
                    ),
                ),
                (
                    "turn",
                    models.PositiveBigIntegerField(
                        default=0, help_text="Counted by each change; who looked before it changes nothing."
                    ),
                ),
                ("plan", models.JSONField(help_text="Made once, before anything ran.", null=True)),
                ("why", models.TextField(blank=True)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("started_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="campaigns", to="jobs.cluster"
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="campaigns", to="jobs.team"
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="campaigns",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "rule",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="campaigns",
                        to="scheduling.evaluationrule",
                    ),
                ),
                (
                    "suite",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="campaigns", to="scheduling.suite"
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [
                    models.Index(fields=["team", "-id"], name="campaign_by_team"),
                    models.Index(
                        condition=models.Q(("state__in", ("PENDING", "RUNNING"))), fields=["id"], name="campaign_open"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Forecast",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("made_at", models.DateTimeField()),
                ("jobs", models.PositiveIntegerField(default=0)),
                ("took_ms", models.PositiveIntegerField(default=0)),
                (
                    "seen",
                    models.CharField(blank=True, help_text="What the queue and the nodes looked like.", max_length=200),
                ),
                (
                    "cluster",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="forecast", to="jobs.cluster"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="GpuSpeed",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "pattern",
                    models.CharField(
                        help_text="A job name; * stands for any text, ? for one character.", max_length=120
                    ),
                ),
                ("gpu_model", models.CharField(max_length=40)),
                (
                    "speed",
                    models.FloatField(help_text="Steps per second, or any unit that all models of the pattern share."),
                ),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "cluster",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="gpu_speeds",
                        to="jobs.cluster",
                    ),
                ),
            ],
            options={
                "ordering": ["cluster", "pattern", "gpu_model"],
                "constraints": [
                    models.UniqueConstraint(fields=("cluster", "pattern", "gpu_model"), name="one_speed_per_gpu_model"),
                    models.CheckConstraint(condition=models.Q(("speed__gt", 0)), name="gpu_speed_is_positive"),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("pattern", ""), _negated=True), models.Q(("gpu_model", ""), _negated=True)
                        ),
                        name="gpu_speed_is_named",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="LearnedPeaks",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "scope",
                    models.CharField(
                        help_text="User id, job name and kind as JSON, or the kind alone.", max_length=1000
                    ),
                ),
                (
                    "counts",
                    django.contrib.postgres.fields.ArrayField(base_field=models.PositiveIntegerField(), size=None),
                ),
                (
                    "cluster",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="learned_peaks",
                        to="jobs.cluster",
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("cluster", "scope"), name="learned_peaks_of_scope")],
            },
        ),
        migrations.CreateModel(
            name="LearnedRunTime",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "scope",
                    models.CharField(
                        help_text="User id, job name and GPUs as JSON, or a wider scope.", max_length=1000
                    ),
                ),
                ("mean_s", models.FloatField()),
                ("version", models.PositiveIntegerField(help_text="The version of the model that last changed it.")),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="learned_run_times", to="jobs.cluster"
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("cluster", "scope"), name="one_run_time_per_scope")],
            },
        ),
        migrations.CreateModel(
            name="LedgerPeriod",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("start", models.DateTimeField()),
                ("length_s", models.PositiveIntegerField(choices=[(3600, "Hour"), (86400, "Day")])),
                ("until", models.DateTimeField(help_text="End of the time that the figures cover.")),
                ("is_outdated", models.BooleanField(default=True, help_text="Whether it has to be computed again.")),
                ("revision", models.PositiveIntegerField(default=0, help_text="Number of changes of this row.")),
                (
                    "version",
                    models.CharField(
                        blank=True, help_text="Version of the rules that assign time to buckets.", max_length=8
                    ),
                ),
                ("figures", models.JSONField(help_text="Empty: not computed yet.", null=True)),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="ledger_periods", to="jobs.cluster"
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["cluster", "start"], name="ledger_period_by_start")],
                "constraints": [
                    models.UniqueConstraint(fields=("cluster", "length_s", "start"), name="one_row_per_ledger_period")
                ],
            },
        ),
        migrations.CreateModel(
            name="NodeSleep",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("observed", "Observed"),
                            ("proposed", "Proposed"),
                            ("requested", "Requested"),
                            ("asleep", "Asleep"),
                            ("waking", "Waking"),
                            ("awake", "Awake"),
                            ("failed", "Failed"),
                            ("withdrawn", "Withdrawn"),
                            ("declined", "Declined"),
                        ],
                        max_length=10,
                    ),
                ),
                ("why", models.TextField(blank=True)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("requested_at", models.DateTimeField(help_text="When Acme requested that it sleeps.", null=True)),
                ("requested_by", models.CharField(blank=True, max_length=150)),
                ("asleep_at", models.DateTimeField(null=True)),
                ("wake_requested_at", models.DateTimeField(null=True)),
                ("wake_why", models.TextField(blank=True)),
                (
                    "closed_at",
                    models.DateTimeField(help_text="When it had booted, or the sleep ended otherwise.", null=True),
                ),
                ("called_at", models.DateTimeField(help_text="When the webhook accepted the last change.", null=True)),
                (
                    "call_due_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        help_text="Earliest time of the next try of the webhook.",
                    ),
                ),
                (
                    "last_error",
                    models.TextField(blank=True, help_text="Why the webhook or the cluster did not accept the change."),
                ),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="node_sleeps", to="jobs.cluster"
                    ),
                ),
                (
                    "node",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="sleeps", to="jobs.node"
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [
                    models.Index(fields=["cluster", "-closed_at"], name="node_sleep_by_end"),
                    models.Index(
                        condition=models.Q(("closed_at__isnull", True)), fields=["cluster"], name="node_sleep_open"
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("closed_at__isnull", True)),
                        fields=("node",),
                        name="one_open_sleep_per_node",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "state__in",
                                [
                                    "observed",
                                    "proposed",
                                    "requested",
                                    "asleep",
                                    "waking",
                                    "awake",
                                    "failed",
                                    "withdrawn",
                                    "declined",
                                ],
                            )
                        ),
                        name="node_sleep_state_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="NodeTest",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("nodes", models.JSONField(help_text="Names of those under test.")),
                ("partners", models.JSONField(default=list, help_text="Known good, and closed for the test as well.")),
                (
                    "closed",
                    models.JSONField(default=list, help_text="Those that the test itself closed, and opens again."),
                ),
                ("round", models.PositiveSmallIntegerField(default=1)),
                ("began_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("ended_at", models.DateTimeField(null=True)),
                ("good", models.JSONField(default=list)),
                ("faulty", models.JSONField(default=list)),
                ("unjudged", models.JSONField(default=dict, help_text="Name and why.")),
                ("sentence", models.TextField(blank=True)),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="node_tests", to="jobs.cluster"
                    ),
                ),
                (
                    "decision",
                    models.OneToOneField(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="node_test",
                        to="failures.decision",
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("ended_at__isnull", True)), fields=["cluster"], name="node_test_open"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="OpenCircuit",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "endpoint",
                    models.CharField(
                        choices=[("control", "slurmrestd"), ("telemetry", "telemetry"), ("logs", "log storage")],
                        max_length=10,
                    ),
                ),
                ("address", models.CharField(help_text="A row of another address counts no more.", max_length=300)),
                ("timeouts", models.PositiveIntegerField(default=0, help_text="In a row.")),
                ("since", models.DateTimeField()),
                ("retry_at", models.DateTimeField()),
                ("why", models.TextField()),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="open_circuits", to="jobs.cluster"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("cluster", "endpoint"), name="one_circuit_per_endpoint")
                ],
            },
        ),
        migrations.CreateModel(
            name="PairTestJob",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("round", models.PositiveSmallIntegerField()),
                (
                    "wave",
                    models.PositiveSmallIntegerField(
                        default=0, help_text="Of round two: no node is in two jobs of a wave."
                    ),
                ),
                ("nodes", models.JSONField()),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("ended_at", models.DateTimeField(null=True)),
                ("passed", models.BooleanField(help_text="Empty: nobody knows.", null=True)),
                ("why", models.TextField(blank=True)),
                (
                    "test",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="pair_tests", to="scheduling.nodetest"
                    ),
                ),
            ],
            options={
                "ordering": ["round", "wave", "id"],
                "constraints": [
                    models.UniqueConstraint(fields=("test", "round", "nodes"), name="one_pair_test_per_round")
                ],
            },
        ),
        migrations.CreateModel(
            name="PowerBudget",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "scope",
                    models.CharField(
                        choices=[("cluster", "Cluster"), ("rack", "Rack"), ("leaf", "Leaf"), ("pod", "Pod")],
                        max_length=7,
                    ),
                ),
                (
                    "place",
                    models.CharField(
                        blank=True, help_text="The rack, leaf or pod; empty for the cluster.", max_length=40
                    ),
                ),
                (
                    "limit_w",
                    models.PositiveIntegerField(
                        help_text="Watts of all its nodes together, with their hosts.",
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(1000000000),
                        ],
                    ),
                ),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "mode",
                    models.CharField(
                        choices=[
                            ("off", "off: nothing"),
                            ("observe", "observe: record when clocks would be capped"),
                            ("act", "act: cap the clocks of the GPUs"),
                        ],
                        db_default="off",
                        default="off",
                        editable=False,
                        max_length=7,
                    ),
                ),
                (
                    "low_cap_percent",
                    models.PositiveSmallIntegerField(
                        db_default=80,
                        default=80,
                        editable=False,
                        help_text="Of the limit. Above it, evaluation and debug jobs are capped.",
                    ),
                ),
                (
                    "all_cap_percent",
                    models.PositiveSmallIntegerField(
                        db_default=89,
                        default=89,
                        editable=False,
                        help_text="Above it, evaluation and debug jobs are capped further, then all jobs.",
                    ),
                ),
                (
                    "lowest_clock_percent",
                    models.PositiveSmallIntegerField(
                        db_default=100,
                        default=100,
                        editable=False,
                        help_text="Above it, all jobs run at the lowest clock.",
                    ),
                ),
                (
                    "level",
                    models.PositiveSmallIntegerField(
                        db_default=0, default=0, editable=False, help_text="0: not capped."
                    ),
                ),
                ("level_since", models.DateTimeField(editable=False, null=True)),
                (
                    "command",
                    models.PositiveBigIntegerField(
                        db_default=0, default=0, editable=False, help_text="Number of the last command."
                    ),
                ),
                ("commanded_at", models.DateTimeField(editable=False, null=True)),
                (
                    "above_at",
                    models.DateTimeField(
                        editable=False, help_text="The last reading that was not low enough for a release.", null=True
                    ),
                ),
                ("reading_at", models.DateTimeField(editable=False, null=True)),
                ("measured_w", models.FloatField(editable=False, null=True)),
                (
                    "unread_nodes",
                    models.PositiveIntegerField(
                        db_default=0,
                        default=0,
                        editable=False,
                        help_text="Nodes without a fresh reading, which count by an estimate.",
                    ),
                ),
                (
                    "command_error",
                    models.TextField(
                        blank=True, db_default="", default="", editable=False, help_text="Why the last command failed."
                    ),
                ),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="power_budgets", to="jobs.cluster"
                    ),
                ),
            ],
            options={
                "ordering": ["cluster", "scope", "place"],
                "constraints": [
                    models.UniqueConstraint(fields=("cluster", "scope", "place"), name="one_power_budget_per_place"),
                    models.CheckConstraint(
                        condition=models.Q(("scope__in", ["cluster", "rack", "leaf", "pod"])),
                        name="power_budget_scope_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("place", ""), ("scope", "cluster")),
                            models.Q(
                                models.Q(("scope", "cluster"), _negated=True), models.Q(("place", ""), _negated=True)
                            ),
                            _connector="OR",
                        ),
                        name="power_budget_has_place",
                    ),
                    models.CheckConstraint(condition=models.Q(("limit_w__gt", 0)), name="power_budget_is_positive"),
                    models.CheckConstraint(
                        condition=models.Q(("mode__in", ["off", "observe", "act"])), name="power_cap_mode_known"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("all_cap_percent__gte", models.F("low_cap_percent")),
                            ("low_cap_percent__gte", 50),
                            ("lowest_clock_percent__gte", models.F("all_cap_percent")),
                            ("lowest_clock_percent__lte", 100),
                        ),
                        name="power_cap_percents_ascend",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="PowerCap",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("level", models.PositiveSmallIntegerField()),
                ("low_mhz", models.PositiveSmallIntegerField(help_text="Clock of low-priority jobs, for an A100.")),
                ("high_mhz", models.PositiveSmallIntegerField(help_text="Clock of all others.")),
                ("is_observed", models.BooleanField(default=False, help_text="Mode observe: no clock was changed.")),
                ("began_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                ("peak_share", models.FloatField(help_text="The highest measured share of the limit.")),
                (
                    "budget",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="caps",
                        to="scheduling.powerbudget",
                    ),
                ),
            ],
            options={
                "ordering": ["budget", "-began_at"],
                "indexes": [
                    models.Index(fields=["budget", "-began_at"], name="power_cap_by_time"),
                    models.Index(fields=["ended_at"], name="power_cap_by_age"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("ended_at", None)), fields=("budget",), name="one_open_cap_per_budget"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ProcessedCheckpoint",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("path", models.CharField(max_length=500)),
                ("seen_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "campaign",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="processed_checkpoints",
                        to="scheduling.campaign",
                    ),
                ),
                (
                    "rule",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="processed_checkpoints",
                        to="scheduling.evaluationrule",
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "constraints": [models.UniqueConstraint(fields=("rule", "path"), name="a_rule_sees_a_checkpoint_once")],
            },
        ),
        migrations.CreateModel(
            name="RunTimeModel",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.PositiveIntegerField(default=0)),
                (
                    "jobs",
                    models.PositiveIntegerField(default=0, help_text="Number of ended jobs that it was learned from."),
                ),
                ("updated_at", models.DateTimeField()),
                ("imported_until", models.DateTimeField(help_text="End of the newest imported job.", null=True)),
                ("measured_at", models.DateTimeField(null=True)),
                (
                    "measured_jobs",
                    models.PositiveIntegerField(default=0, help_text="Number of ended jobs that had a prediction."),
                ),
                (
                    "median_ratio",
                    models.FloatField(help_text="Half of the predictions are wrong by at most this factor.", null=True),
                ),
                (
                    "p90_ratio",
                    models.FloatField(help_text="Nine of ten predictions are wrong by at most this factor.", null=True),
                ),
                (
                    "trees_measured_jobs",
                    models.PositiveIntegerField(
                        db_default=0, default=0, help_text="Number of ended jobs that had a prediction by trees."
                    ),
                ),
                ("trees_median_ratio", models.FloatField(help_text="The same as median_ratio, for trees.", null=True)),
                ("trees_p90_ratio", models.FloatField(help_text="The same as p90_ratio, for trees.", null=True)),
                (
                    "cluster",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="run_time_model", to="jobs.cluster"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Simulation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("public_id", models.CharField(max_length=16, unique=True)),
                (
                    "trace",
                    models.CharField(
                        help_text="acme:seren, acme:kalos, history, or upload: and its number.", max_length=40
                    ),
                ),
                ("policies", models.JSONField(default=list)),
                ("params", models.JSONField(default=dict, help_text="The rest of what was asked, as it was asked.")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("PENDING", "Pending"),
                            ("RUNNING", "Running"),
                            ("COMPLETED", "Completed"),
                            ("FAILED", "Failed"),
                            ("CANCELLED", "Cancelled"),
                        ],
                        default="PENDING",
                        max_length=10,
                    ),
                ),
                ("progress", models.FloatField(default=0.0, help_text="Percent.")),
                (
                    "tries",
                    models.PositiveIntegerField(
                        default=0, help_text="How often a worker began it; its fencing token too."
                    ),
                ),
                ("result", models.JSONField(null=True)),
                ("error", models.TextField(blank=True)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("started_at", models.DateTimeField(null=True)),
                (
                    "heartbeat_at",
                    models.DateTimeField(help_text="When its worker last said that it is at it.", null=True),
                ),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="simulations", to="jobs.team"
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="simulations",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [
                    models.Index(fields=["team", "-id"], name="simulation_by_team"),
                    models.Index(
                        condition=models.Q(("state__in", ["PENDING", "RUNNING"])), fields=["id"], name="simulation_open"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Staging",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("node", models.CharField(max_length=64)),
                ("checkpoint", models.CharField(max_length=500)),
                ("path", models.CharField(max_length=400)),
                ("nonce", models.CharField(max_length=32)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("COPYING", "Copying"),
                            ("READY", "Ready"),
                            ("FAILED", "Failed"),
                            ("REMOVING", "Removing"),
                            ("REMOVED", "Removed"),
                        ],
                        default="COPYING",
                        max_length=8,
                    ),
                ),
                ("gb", models.FloatField(null=True)),
                ("took_s", models.FloatField(null=True)),
                ("why", models.TextField(blank=True)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("moved_at", models.DateTimeField(null=True)),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="stagings", to="jobs.cluster"
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, related_name="stagings", to="jobs.job"
                    ),
                ),
                (
                    "removal",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, related_name="removals", to="jobs.job"
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="stagings", to="jobs.team"
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("state__in", ["COPYING", "READY", "REMOVING"])),
                        fields=["cluster"],
                        name="staging_there",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("state__in", ["COPYING", "READY", "REMOVING"])),
                        fields=("cluster", "node", "path"),
                        name="one_copy_per_node",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="SuiteDataset",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("position", models.PositiveIntegerField()),
                ("name", models.CharField(max_length=80)),
                ("samples", models.PositiveIntegerField()),
                (
                    "parts",
                    models.PositiveIntegerField(
                        default=1000, help_text="In how many pieces it may be cut; 1: it stays whole."
                    ),
                ),
                ("infer", models.TextField(blank=True, help_text="Instead of the suite's.")),
                ("metric", models.TextField(blank=True, help_text="Instead of the suite's.")),
                (
                    "infer_s",
                    models.FloatField(
                        help_text="Seconds of all its samples on one GPU, before any were measured.", null=True
                    ),
                ),
                ("score_s", models.FloatField(help_text="Seconds of its metric, before any were measured.", null=True)),
                (
                    "suite",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="datasets", to="scheduling.suite"
                    ),
                ),
            ],
            options={
                "ordering": ["suite", "position"],
                "constraints": [
                    models.UniqueConstraint(fields=("suite", "name"), name="one_dataset_per_name"),
                    models.CheckConstraint(
                        condition=models.Q(("parts__gte", 1), ("samples__gte", 1)), name="dataset_has_samples"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Evaluation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("checkpoint", models.CharField(max_length=500)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("PENDING", "Pending"),
                            ("RUNNING", "Running"),
                            ("COMPLETED", "Completed"),
                            ("FAILED", "Failed"),
                            ("CANCELLED", "Cancelled"),
                        ],
                        default="PENDING",
                        max_length=10,
                    ),
                ),
                ("given", models.PositiveIntegerField(default=0, help_text="Samples that are in a shard already.")),
                ("scores", models.JSONField(null=True)),
                ("why", models.TextField(blank=True)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "campaign",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="evaluations",
                        to="scheduling.campaign",
                    ),
                ),
                (
                    "reused",
                    models.ForeignKey(
                        help_text="Whose result this is.",
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to="scheduling.evaluation",
                    ),
                ),
                (
                    "dataset",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="evaluations",
                        to="scheduling.suitedataset",
                    ),
                ),
            ],
            options={
                "ordering": ["id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("state", "COMPLETED")),
                        fields=["dataset", "checkpoint"],
                        name="evaluation_done",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("campaign", "checkpoint", "dataset"), name="a_campaign_evaluates_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="TrainedTrees",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.PositiveIntegerField()),
                ("trained_at", models.DateTimeField()),
                (
                    "learned_jobs",
                    models.PositiveIntegerField(help_text="Number of jobs that had ended on the cluster by then."),
                ),
                (
                    "training_jobs",
                    models.PositiveIntegerField(help_text="Number of jobs that it was trained on, the newest ones."),
                ),
                ("first_end", models.DateTimeField(help_text="End of the oldest of them.")),
                ("last_end", models.DateTimeField(help_text="End of the newest of them.")),
                ("document", models.BinaryField()),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="trained_trees", to="jobs.cluster"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("cluster", "version"), name="one_document_per_trees_version")
                ],
            },
        ),
        migrations.CreateModel(
            name="Trial",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(choices=[("infer", "Infer"), ("score", "Score")], max_length=5)),
                ("checkpoint", models.CharField(max_length=500)),
                ("nonce", models.CharField(help_text="Its own lines in its log begin with it.", max_length=32)),
                ("expected_s", models.FloatField(default=0.0)),
                ("log_read_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(help_text="When its end was taken over into its shards.", null=True)),
                ("why", models.TextField(blank=True)),
                (
                    "campaign",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="trials", to="scheduling.campaign"
                    ),
                ),
                (
                    "job",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT, related_name="trial", to="jobs.job"
                    ),
                ),
            ],
            options={
                "ordering": ["id"],
                "indexes": [
                    models.Index(condition=models.Q(("ended_at__isnull", True)), fields=["campaign"], name="trial_open")
                ],
            },
        ),
        migrations.CreateModel(
            name="Shard",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("start", models.PositiveIntegerField()),
                ("samples", models.PositiveIntegerField()),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("WAITING", "Waiting"),
                            ("INFERRING", "Inferring"),
                            ("INFERRED", "Inferred"),
                            ("SCORING", "Scoring"),
                            ("COMPLETED", "Completed"),
                            ("FAILED", "Failed"),
                        ],
                        default="WAITING",
                        max_length=9,
                    ),
                ),
                ("tries", models.PositiveSmallIntegerField(default=0, help_text="Its command failed so often.")),
                ("losses", models.PositiveSmallIntegerField(default=0, help_text="Its job was taken away so often.")),
                ("infer_s", models.FloatField(null=True)),
                ("inferred_at_s", models.FloatField(help_text="Since its job began.", null=True)),
                ("score_s", models.FloatField(null=True)),
                ("scored_at_s", models.FloatField(null=True)),
                ("scores", models.JSONField(null=True)),
                ("why", models.TextField(blank=True)),
                (
                    "evaluation",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="shards", to="scheduling.evaluation"
                    ),
                ),
                (
                    "inferred_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="inferred",
                        to="scheduling.trial",
                    ),
                ),
                (
                    "scored_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="scored",
                        to="scheduling.trial",
                    ),
                ),
                (
                    "trial",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="shards",
                        to="scheduling.trial",
                    ),
                ),
            ],
            options={
                "ordering": ["id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("state__in", ["COMPLETED", "FAILED"]), _negated=True),
                        fields=["evaluation"],
                        name="shard_open",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("evaluation", "start"), name="a_sample_is_in_one_shard")
                ],
            },
        ),
        migrations.CreateModel(
            name="UploadedTrace",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=80)),
                ("jobs", models.PositiveIntegerField()),
                ("span_s", models.FloatField(help_text="From the first submission to the last.")),
                ("skipped_rows", models.PositiveIntegerField(default=0, help_text="Rows that could not be read.")),
                ("skipped_examples", models.JSONField(default=list, help_text="The first of those, with their lines.")),
                ("packed", models.BinaryField(help_text="Our export, packed with gzip.")),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "used_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        help_text="When a replay of it was last asked for.",
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="traces", to="jobs.team"
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="traces", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [models.Index(fields=["team", "-id"], name="trace_by_team")],
            },
        ),
        migrations.CreateModel(
            name="AccountUsage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("gpu_seconds", models.FloatField()),
                ("at", models.DateTimeField()),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="account_usages", to="jobs.cluster"
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="account_usages", to="jobs.team"
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("cluster", "team"), name="one_usage_per_team")],
            },
        ),
        migrations.CreateModel(
            name="EstimateError",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "lead",
                    models.CharField(
                        choices=[
                            ("10m", "under 10 minutes"),
                            ("1h", "10 minutes to 1 hour"),
                            ("6h", "1 to 6 hours"),
                            ("1d", "6 hours to 1 day"),
                            ("later", "over 1 day"),
                        ],
                        max_length=5,
                    ),
                ),
                ("jobs", models.PositiveIntegerField()),
                ("median_s", models.FloatField(verbose_name="median absolute error (s)")),
                ("within_p90", models.FloatField(help_text="Part of the jobs that had started by their P90.")),
                ("updated_at", models.DateTimeField()),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="estimate_errors", to="jobs.cluster"
                    ),
                ),
            ],
            options={
                "ordering": ["cluster", "lead"],
                "constraints": [models.UniqueConstraint(fields=("cluster", "lead"), name="one_error_per_lead")],
            },
        ),
        migrations.CreateModel(
            name="EstimateOutcome",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("made_at", models.DateTimeField()),
                ("p50", models.DateTimeField()),
                ("p90", models.DateTimeField()),
                ("started_at", models.DateTimeField()),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="estimate_outcomes", to="jobs.cluster"
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="estimate_outcomes", to="jobs.job"
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["cluster", "-started_at"], name="outcome_by_start")],
                "constraints": [models.UniqueConstraint(fields=("job", "made_at"), name="an_estimate_is_judged_once")],
            },
        ),
        *CREATE_TRIGGERS,
    ]
