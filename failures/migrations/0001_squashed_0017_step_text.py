"""The schema in one step. Databases that are older are refused, see `acmeweb.services.prepare`."""

import datetime

import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models

import failures.models.past_failure
from failures.models import pgvector


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("auth", "__first__"),
        ("jobs", "0001_squashed_0069_runs_of_name"),
    ]

    operations = [
        migrations.RunPython(pgvector.create_vector_extension, migrations.RunPython.noop),
        migrations.CreateModel(
            name="Diagnosis",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("failed_at", models.DateTimeField(help_text="When the attempt ended.")),
                ("recorded_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "due_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        help_text="When the next work is due. A claim moves it to the end of the lease.",
                    ),
                ),
                (
                    "tries",
                    models.PositiveSmallIntegerField(
                        default=0, help_text="Number of tries, counted before each one. Also the fencing token."
                    ),
                ),
                ("last_error", models.TextField(blank=True, help_text="Error of the last try.")),
                ("judged_at", models.DateTimeField(null=True)),
                (
                    "bundle_stored_at",
                    models.DateTimeField(
                        help_text="When the evidence bundle was stored, which completes the work.", null=True
                    ),
                ),
                ("root_cause", models.CharField(default="Unknown", max_length=40)),
                (
                    "engine_root_cause",
                    models.CharField(default="Unknown", max_length=40, verbose_name="engine diagnosis"),
                ),
                (
                    "category",
                    models.CharField(
                        choices=[
                            ("Infrastructure", "Infrastructure"),
                            ("Framework", "Framework"),
                            ("Script", "Script"),
                            ("None", "None"),
                            ("Unknown", "Unknown"),
                        ],
                        default="Unknown",
                        max_length=16,
                    ),
                ),
                (
                    "confidence",
                    models.FloatField(
                        default=0,
                        validators=[
                            django.core.validators.MinValueValidator(0),
                            django.core.validators.MaxValueValidator(1),
                        ],
                    ),
                ),
                ("evidence", models.JSONField(default=list)),
                ("chain", models.JSONField(default=list)),
                ("suspect_nodes", models.JSONField(default=list)),
                ("suspect_gpus", models.JSONField(default=list, verbose_name="suspect GPUs")),
                (
                    "restart_helps",
                    models.CharField(
                        choices=[("yes", "yes"), ("no", "no"), ("unknown", "unknown")], default="unknown", max_length=8
                    ),
                ),
                ("restart_reason", models.TextField(blank=True)),
                ("action", models.TextField(blank=True)),
                ("alternatives", models.JSONField(default=list)),
                (
                    "blame",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("node", "node"),
                            ("gpu", "gpu"),
                            ("network", "network"),
                            ("storage", "storage"),
                            ("scheduler", "scheduler"),
                            ("job", "job"),
                        ],
                        max_length=10,
                    ),
                ),
                ("engine", models.CharField(blank=True, max_length=20)),
                ("rules_version", models.CharField(blank=True, max_length=64)),
                ("notes", models.JSONField(default=list)),
                ("lines", models.PositiveBigIntegerField(default=0, verbose_name="lines of the log")),
                ("size", models.PositiveBigIntegerField(default=0, verbose_name="bytes of the log")),
                ("gpus", models.PositiveIntegerField(default=0, verbose_name="GPUs")),
                (
                    "ran",
                    models.DurationField(
                        default=datetime.timedelta,
                        help_text="From the start of the attempt to its end, as the cluster reports them.",
                    ),
                ),
                (
                    "lost",
                    models.DurationField(default=datetime.timedelta, help_text="Run time since the last checkpoint."),
                ),
                ("bundle", models.BinaryField(help_text="At most 64 KiB of text, compressed.", null=True)),
                ("bundle_size", models.PositiveIntegerField(default=0)),
                (
                    "review",
                    models.CharField(
                        blank=True,
                        choices=[("", "not reviewed"), ("confirmed", "Confirmed"), ("corrected", "Corrected")],
                        default="",
                        max_length=10,
                    ),
                ),
                ("reviewed_at", models.DateTimeField(null=True)),
                ("review_note", models.TextField(blank=True)),
                (
                    "attempt",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT, related_name="diagnosis", to="jobs.attempt"
                    ),
                ),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="diagnoses", to="jobs.cluster"
                    ),
                ),
                (
                    "nodes",
                    models.ManyToManyField(
                        help_text="Suspect nodes that are known to Acme.", related_name="diagnoses", to="jobs.node"
                    ),
                ),
                (
                    "reviewed_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "diagnoses",
                "ordering": ["-id"],
            },
        ),
        migrations.CreateModel(
            name="Incident",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("root_cause", models.CharField(default="Unknown", max_length=40)),
                (
                    "category",
                    models.CharField(
                        choices=[
                            ("Infrastructure", "Infrastructure"),
                            ("Framework", "Framework"),
                            ("Script", "Script"),
                            ("None", "None"),
                            ("Unknown", "Unknown"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "scope",
                    models.CharField(choices=[("node", "node"), ("service", "service"), ("job", "job")], max_length=8),
                ),
                ("subject", models.CharField(help_text="Affected node, service or job.", max_length=200)),
                (
                    "words",
                    models.CharField(blank=True, help_text="Shape of the first line of evidence.", max_length=200),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[("open", "Open"), ("acknowledged", "Acknowledged"), ("resolved", "Resolved")],
                        default="open",
                        max_length=12,
                    ),
                ),
                ("first_symptom_at", models.DateTimeField()),
                ("last_symptom_at", models.DateTimeField()),
                ("opened_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("acknowledged_at", models.DateTimeField(null=True)),
                ("acknowledged_by", models.CharField(blank=True, max_length=150)),
                ("resolved_at", models.DateTimeField(null=True)),
                ("resolved_by", models.CharField(blank=True, max_length=150)),
                ("resolved_why", models.TextField(blank=True)),
                ("attempts", models.PositiveIntegerField(default=0, help_text="Number of failed attempts.")),
                ("gpu_hours_lost", models.FloatField(default=0, verbose_name="GPU-hours lost")),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="incidents", to="jobs.cluster"
                    ),
                ),
                (
                    "lead",
                    models.ForeignKey(
                        help_text="Diagnosis that names the cause.",
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="failures.diagnosis",
                    ),
                ),
                ("nodes", models.ManyToManyField(related_name="incidents", to="jobs.node")),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("state", "resolved"), _negated=True),
                        fields=["cluster", "-last_symptom_at"],
                        name="incident_unresolved",
                    ),
                    models.Index(fields=["-last_symptom_at"], name="incident_by_time"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ["open", "acknowledged", "resolved"])),
                        name="incident_state_known",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Anomaly",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "symptom",
                    models.CharField(
                        choices=[
                            ("hang", "hang"),
                            ("slow", "slow"),
                            ("slow_rank", "slow_rank"),
                            ("slow_node", "slow_node"),
                            ("loss_spike", "loss_spike"),
                            ("nan", "nan"),
                            ("node", "node"),
                        ],
                        max_length=10,
                    ),
                ),
                (
                    "severity",
                    models.CharField(choices=[("note", "note"), ("warn", "warn"), ("bad", "bad")], max_length=4),
                ),
                ("since", models.DateTimeField()),
                (
                    "seen_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), help_text="Time of the last detection."
                    ),
                ),
                ("ended_at", models.DateTimeField(null=True)),
                ("why", models.TextField()),
                ("observed", models.FloatField(default=0, help_text="For slow steps: measured seconds per step.")),
                ("expected", models.FloatField(default=0)),
                (
                    "attempt",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="anomalies",
                        to="jobs.attempt",
                    ),
                ),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="anomalies", to="jobs.cluster"
                    ),
                ),
                (
                    "node",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.CASCADE, related_name="anomalies", to="jobs.node"
                    ),
                ),
                (
                    "incident",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="anomalies",
                        to="failures.incident",
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("ended_at__isnull", True)), fields=["cluster"], name="anomaly_ongoing"
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("attempt__isnull", False), ("ended_at__isnull", True)),
                        fields=("attempt", "symptom"),
                        name="one_ongoing_anomaly_per_attempt",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("attempt__isnull", True), ("ended_at__isnull", True)),
                        fields=("node", "symptom"),
                        name="one_ongoing_anomaly_per_node",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("attempt__isnull", False), ("node__isnull", False), _connector="OR"),
                        name="anomaly_has_a_subject",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Channel",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("email", "Email"),
                            ("webhook", "Webhook"),
                            ("slack", "slack: an incoming webhook of Slack or Mattermost"),
                        ],
                        max_length=8,
                    ),
                ),
                ("target", models.CharField(help_text="An e-mail address, or the URL of a webhook.", max_length=500)),
                (
                    "secret",
                    models.CharField(
                        blank=True,
                        editable=False,
                        help_text="Key with which messages to a webhook are signed.",
                        max_length=64,
                    ),
                ),
                (
                    "scope",
                    models.CharField(
                        blank=True,
                        choices=[("node", "node"), ("service", "service"), ("job", "job")],
                        help_text="Only incidents of this scope are sent. Leave empty to send all.",
                        max_length=8,
                    ),
                ),
                (
                    "min_gpu_hours",
                    models.FloatField(default=0, help_text="Least GPU-hours lost in an incident before it is sent."),
                ),
                ("is_enabled", models.BooleanField(default=True)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                ("created_by", models.CharField(blank=True, editable=False, max_length=150)),
                (
                    "team",
                    models.ForeignKey(
                        blank=True,
                        help_text="Only incidents that affect jobs of this team are sent. Leave empty to send all incidents.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="channels",
                        to="jobs.team",
                    ),
                ),
            ],
            options={
                "ordering": ["id"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("team", "kind", "target"), name="one_channel_per_target", nulls_distinct=False
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Decision",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("facts", models.JSONField()),
                ("history", models.JSONField()),
                ("policy", models.JSONField()),
                (
                    "action",
                    models.CharField(
                        choices=[
                            ("nothing", "nothing"),
                            ("restart", "restart"),
                            ("restart elsewhere", "restart elsewhere"),
                            ("test nodes", "test nodes"),
                            ("roll back", "roll back"),
                            ("wait", "wait"),
                            ("ask for more", "ask for more"),
                            ("stop", "stop"),
                        ],
                        max_length=20,
                    ),
                ),
                (
                    "mode",
                    models.CharField(
                        choices=[("observe", "observe"), ("propose", "propose"), ("act", "act")], max_length=8
                    ),
                ),
                ("why", models.TextField()),
                ("pro", models.JSONField(default=list)),
                ("con", models.JSONField(default=list)),
                ("limits", models.JSONField(default=list, help_text="Reasons why the mode was lowered: [mode, why].")),
                ("drain", models.JSONField(default=list)),
                ("test", models.JSONField(default=list)),
                ("checkpoint_path", models.CharField(blank=True, max_length=1000)),
                ("checkpoint_step", models.PositiveBigIntegerField(null=True)),
                ("skip", models.JSONField(help_text="First and last step whose data are skipped.", null=True)),
                ("change", models.JSONField(blank=True, default=list, help_text="Changes to the request of the job.")),
                ("undo", models.TextField(blank=True)),
                ("not_before", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
                ("consumes_retry", models.BooleanField(default=False)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("observed", "Observed"),
                            ("proposed", "Proposed"),
                            ("approved", "Approved"),
                            ("acting", "Acting"),
                            ("done", "Done"),
                            ("declined", "Declined"),
                            ("expired", "Expired"),
                            ("failed", "Failed"),
                            ("undone", "Undone"),
                            ("withdrawn", "Withdrawn"),
                        ],
                        default="proposed",
                        max_length=10,
                    ),
                ),
                (
                    "answered_by",
                    models.CharField(
                        blank=True, help_text="User who approved, declined or undid the decision.", max_length=150
                    ),
                ),
                ("answered_at", models.DateTimeField(null=True)),
                ("answer_reason", models.TextField(blank=True)),
                (
                    "due_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), help_text="When the next step is due."
                    ),
                ),
                ("tries", models.PositiveIntegerField(default=0)),
                (
                    "errors",
                    models.PositiveSmallIntegerField(default=0, help_text="Number of tries that failed with an error."),
                ),
                ("began_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                ("outcome", models.TextField(blank=True)),
                (
                    "anomaly",
                    models.OneToOneField(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="decision",
                        to="failures.anomaly",
                    ),
                ),
                (
                    "attempt",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="decisions",
                        to="jobs.attempt",
                    ),
                ),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="decisions", to="jobs.cluster"
                    ),
                ),
                (
                    "diagnosis",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="decisions",
                        to="failures.diagnosis",
                    ),
                ),
                (
                    "incident",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="decisions", to="failures.incident"
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("state__in", ("proposed", "approved", "acting"))),
                        fields=["due_at"],
                        name="decision_open",
                    ),
                    models.Index(fields=["cluster", "began_at"], name="decision_carried_out"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("state", "withdrawn"), _negated=True),
                        fields=("diagnosis",),
                        name="one_standing_decision_per_diagnosis",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "state__in",
                                [
                                    "observed",
                                    "proposed",
                                    "approved",
                                    "acting",
                                    "done",
                                    "declined",
                                    "expired",
                                    "failed",
                                    "undone",
                                    "withdrawn",
                                ],
                            )
                        ),
                        name="decision_state_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("diagnosis__isnull", False), ("anomaly__isnull", False), _connector="XOR"),
                        name="decision_has_one_ground",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="LearnedRule",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=60, unique=True)),
                (
                    "kind",
                    models.CharField(
                        choices=[("signature", "Signature"), ("filter", "Filter")], default="signature", max_length=10
                    ),
                ),
                (
                    "label",
                    models.CharField(
                        blank=True, help_text="Root cause that the rule names. Empty for a filter rule.", max_length=40
                    ),
                ),
                ("pattern", models.CharField(max_length=2000)),
                ("example", models.CharField(max_length=600)),
                (
                    "origin",
                    models.CharField(
                        choices=[("learned", "Learned"), ("frequency", "Frequency"), ("model", "Model")], max_length=10
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[("shadow", "Shadow"), ("adopted", "Adopted"), ("retired", "Retired")],
                        default="shadow",
                        max_length=10,
                    ),
                ),
                (
                    "replay",
                    models.JSONField(
                        default=dict,
                        help_text="Result of the replay on all stored bundles at the time of the proposal.",
                    ),
                ),
                ("proposed_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("adopted_at", models.DateTimeField(null=True)),
                ("adopted_by", models.CharField(blank=True, max_length=150)),
                ("retired_at", models.DateTimeField(null=True)),
                ("retired_by", models.CharField(blank=True, max_length=150)),
                ("retired_why", models.TextField(blank=True)),
                (
                    "owner",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "source",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="taught", to="failures.diagnosis"
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ["shadow", "adopted", "retired"])), name="rule_state_known"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("kind", "filter"), models.Q(("label", ""), _negated=True), _connector="XOR"
                        ),
                        name="rule_names_a_cause",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="LogReadState",
            fields=[
                (
                    "attempt",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="log_read_state",
                        serialize=False,
                        to="jobs.attempt",
                    ),
                ),
                ("due_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "claimed_until",
                    models.DateTimeField(help_text="End of the lease of the worker that claimed the row.", null=True),
                ),
                (
                    "tries",
                    models.PositiveIntegerField(
                        default=0, help_text="Tries since the last progress. Also the fencing token."
                    ),
                ),
                ("looked_at", models.DateTimeField(null=True)),
                ("size", models.PositiveBigIntegerField(default=0, help_text="Size of the log at the last read.")),
                (
                    "read",
                    models.PositiveBigIntegerField(
                        default=0, help_text="Bytes of the log that are included in the state."
                    ),
                ),
                (
                    "seam",
                    models.BinaryField(
                        default=b"", help_text="The last bytes read, to detect that the file was replaced."
                    ),
                ),
                ("state", models.BinaryField(null=True)),
                (
                    "steps_looked_at",
                    models.DateTimeField(help_text="Last attempt to read steps, successful or not.", null=True),
                ),
                (
                    "steps_read_at",
                    models.DateTimeField(help_text="Time at which the log was last read for steps.", null=True),
                ),
                (
                    "steps_read",
                    models.PositiveBigIntegerField(
                        db_default=0, default=0, help_text="Bytes of the log that were read for steps."
                    ),
                ),
                (
                    "cadence",
                    models.JSONField(help_text="Times and sections of the printed steps; null if not read.", null=True),
                ),
            ],
            options={
                "ordering": ["due_at"],
                "indexes": [models.Index(fields=["due_at"], name="log_read_state_due")],
            },
        ),
        migrations.CreateModel(
            name="ManualOverride",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("by", models.CharField(max_length=150)),
                ("why", models.TextField()),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("lifted_at", models.DateTimeField(null=True)),
                ("lifted_by", models.CharField(blank=True, max_length=150)),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="overrides", to="jobs.cluster"
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, related_name="overrides", to="jobs.job"
                    ),
                ),
                (
                    "node",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, related_name="overrides", to="jobs.node"
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("lifted_at__isnull", True)), fields=["cluster"], name="override_active"
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("job__isnull", False), ("node__isnull", False), _connector="XOR"),
                        name="override_has_one_subject",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ModelOpinion",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("requested_at", models.DateTimeField()),
                ("answered_at", models.DateTimeField(null=True)),
                ("model", models.CharField(max_length=200)),
                ("root_cause", models.CharField(blank=True, help_text="Empty if the model abstained.", max_length=40)),
                ("lines", models.JSONField(default=list)),
                ("why", models.TextField(blank=True)),
                ("votes", models.PositiveSmallIntegerField(default=0)),
                ("calls", models.PositiveSmallIntegerField(default=0)),
                ("errors", models.JSONField(default=list)),
                (
                    "diagnosis",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT, related_name="opinion", to="failures.diagnosis"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Notice",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("wanted", models.CharField(help_text="Hash of the message to send.", max_length=64)),
                ("sent", models.CharField(blank=True, help_text="Hash of the last message sent.", max_length=64)),
                ("update", models.PositiveIntegerField(default=0, help_text="Number of messages sent.")),
                ("due_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "tries",
                    models.PositiveIntegerField(
                        default=0, help_text="Number of tries, counted before each one. Also the fencing token."
                    ),
                ),
                ("failures", models.PositiveSmallIntegerField(default=0, help_text="Number of consecutive failures.")),
                ("sent_at", models.DateTimeField(null=True)),
                ("given_up_at", models.DateTimeField(null=True)),
                ("last_error", models.TextField(blank=True)),
                (
                    "channel",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="notices", to="failures.channel"
                    ),
                ),
                (
                    "incident",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="notices", to="failures.incident"
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(
                            ("given_up_at__isnull", True), models.Q(("wanted", models.F("sent")), _negated=True)
                        ),
                        fields=["due_at"],
                        name="notice_due",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("channel", "incident"), name="one_notice_per_channel_and_incident")
                ],
            },
        ),
        migrations.CreateModel(
            name="PastFailure",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("vector", failures.models.past_failure.VectorField()),
                ("version", models.CharField(max_length=40)),
                ("made_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "learned_at",
                    models.DateTimeField(help_text="When the failure was last used for learning rules.", null=True),
                ),
                (
                    "diagnosis",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="past_failure",
                        to="failures.diagnosis",
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
            },
        ),
        migrations.CreateModel(
            name="RecoveryStep",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("drained", "Drained"),
                            ("tested", "Tested"),
                            ("resumed", "Resumed"),
                            ("restarted", "Restarted"),
                            ("ended", "Ended"),
                            ("undone", "Undone"),
                        ],
                        max_length=10,
                    ),
                ),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("text", models.TextField(blank=True)),
                (
                    "decision",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="steps", to="failures.decision"
                    ),
                ),
                (
                    "node",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="jobs.node"
                    ),
                ),
            ],
            options={
                "ordering": ["id"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("decision", "kind", "node"), name="each_step_once", nulls_distinct=False
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="RuleHit",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "diagnosis",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="rule_hits", to="failures.diagnosis"
                    ),
                ),
                (
                    "rule",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="hits", to="failures.learnedrule"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("rule", "diagnosis"), name="one_hit_per_rule_and_diagnosis")
                ],
            },
        ),
        migrations.CreateModel(
            name="StackDump",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("requested_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("until", models.DateTimeField(help_text="Recovery waits for the stacks until this time.")),
                (
                    "log_from",
                    models.PositiveBigIntegerField(default=0, help_text="Size of the log at the time of the request."),
                ),
                ("log_size", models.PositiveBigIntegerField(default=0, help_text="Size of the log at the last check.")),
                ("closed_at", models.DateTimeField(null=True)),
                (
                    "ranks",
                    models.PositiveIntegerField(default=0, help_text="Number of ranks whose stacks have arrived."),
                ),
                ("summary", models.JSONField(default=list, help_text="Summary of the stacks.")),
                ("packed", models.BinaryField(help_text="Compressed text of the stacks.", null=True)),
                (
                    "size",
                    models.PositiveIntegerField(default=0, help_text="Size of the stacks in bytes, before truncation."),
                ),
                (
                    "attempt",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="stack_dumps", to="jobs.attempt"
                    ),
                ),
                (
                    "incident",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="stack_dumps", to="failures.incident"
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [
                    models.Index(condition=models.Q(("closed_at__isnull", True)), fields=["until"], name="stacks_open")
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("closed_at__isnull", True)),
                        fields=("attempt",),
                        name="one_open_dump_per_attempt",
                    )
                ],
            },
        ),
        migrations.AddField(
            model_name="diagnosis",
            name="incident",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="diagnoses", to="failures.incident"
            ),
        ),
        migrations.AddIndex(
            model_name="diagnosis",
            index=models.Index(
                condition=models.Q(("bundle_stored_at__isnull", True)), fields=["due_at"], name="diagnosis_due"
            ),
        ),
        migrations.AddIndex(
            model_name="diagnosis",
            index=models.Index(fields=["failed_at"], name="diagnosis_by_time"),
        ),
        migrations.AddIndex(
            model_name="diagnosis",
            index=models.Index(fields=["root_cause", "-failed_at"], name="diagnosis_by_cause"),
        ),
    ]
