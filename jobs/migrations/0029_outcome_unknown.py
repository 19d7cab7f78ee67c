import django.db.models.functions.datetime
from django.contrib.postgres.operations import AddConstraintNotValid
from django.db import migrations, models

import jobs.models.installation

STATES = (
    *("PENDING", "RUNNING", "SUSPENDED", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"),
    *("BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "UNKNOWN"),
)
KINDS = ("submit", "cancel", "cancel_id", "drain", "resume", "signal", "test", "stacks")


class Migration(migrations.Migration):
    """No step reads a large table; the next migration does, without a lock."""

    dependencies = [("jobs", "0028_events_of_nodes")]

    operations = [
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
                "constraints": [models.CheckConstraint(condition=models.Q(("only", True)), name="one_installation")]
            },
        ),
        migrations.AddField(
            model_name="deed",
            name="tries_without_effect",
            field=models.PositiveIntegerField(
                db_default=0,
                default=0,
                help_text="So many tries are known to have started nothing on the cluster.",
            ),
        ),
        migrations.AddField(
            model_name="attempt",
            name="seen_running_at",
            field=models.DateTimeField(help_text="When it was first seen running, by our clock.", null=True),
        ),
        migrations.AlterField(
            model_name="attempt",
            name="confirmed_at",
            field=models.DateTimeField(help_text="When the cluster began to run it, by its own clock.", null=True),
        ),
        migrations.AddField(
            model_name="job",
            name="foreign_key",
            field=models.CharField(
                blank=True,
                db_default="",
                editable=False,
                help_text="Installation and attempt key, where another Acme installation submitted it.",
                max_length=48,
            ),
        ),
        migrations.AlterField(
            model_name="attempt",
            name="state",
            field=models.CharField(choices=[(state, state) for state in STATES], default="RUNNING", max_length=14),
        ),
        migrations.AlterField(
            model_name="deed",
            name="kind",
            field=models.CharField(choices=[(kind, kind.replace("_", " ").title()) for kind in KINDS], max_length=10),
        ),
        migrations.RemoveConstraint(model_name="attempt", name="attempt_state_known"),
        AddConstraintNotValid(
            model_name="attempt",
            constraint=models.CheckConstraint(
                condition=models.Q(("state__in", list(STATES))), name="attempt_state_known"
            ),
        ),
    ]
