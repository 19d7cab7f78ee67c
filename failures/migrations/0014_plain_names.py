"""Renames models, fields and constraints, and the keys of stored decisions."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

# The stored inputs and changes of decisions are parsed again for replays, so their keys follow the code
RENAME_KEYS = """
UPDATE failures_decision SET
    facts = CASE WHEN facts ? '{fact}' THEN facts - '{fact}' || jsonb_build_object('{new_fact}', facts -> '{fact}')
            ELSE facts END,
    history = CASE WHEN history ? '{past}' THEN history - '{past}' || jsonb_build_object('{new_past}', history -> '{past}')
              ELSE history END,
    change = COALESCE((
        SELECT jsonb_agg(one - '{part}' || jsonb_build_object('{new_part}', one -> '{part}'))
        FROM jsonb_array_elements(change) AS one), '[]'::jsonb)
"""
FORWARD = RENAME_KEYS.format(
    fact="sign", new_fact="anomaly", past="orders", new_past="overrides", part="what", new_part="field"
)
BACKWARD = RENAME_KEYS.format(
    fact="anomaly", new_fact="sign", past="overrides", new_past="orders", part="field", new_part="what"
)


class Migration(migrations.Migration):
    dependencies = [
        ("failures", "0013_stored_reasons"),
        ("jobs", "0039_plain_names"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        # Constraints go first: their conditions name the old columns
        migrations.RemoveConstraint(
            model_name="sign",
            name="one_lasting_sign_per_attempt",
        ),
        migrations.RemoveConstraint(
            model_name="sign",
            name="one_lasting_sign_per_node",
        ),
        migrations.RemoveConstraint(
            model_name="sign",
            name="sign_is_of_somebody",
        ),
        migrations.RemoveConstraint(
            model_name="decision",
            name="decision_has_one_ground",
        ),
        migrations.RemoveConstraint(
            model_name="decision",
            name="one_standing_decision_per_diagnosis",
        ),
        migrations.RemoveConstraint(
            model_name="decision",
            name="decision_course_known",
        ),
        migrations.RemoveConstraint(
            model_name="order",
            name="order_has_one_subject",
        ),
        migrations.RemoveIndex(
            model_name="decision",
            name="decision_open",
        ),
        migrations.RemoveIndex(
            model_name="diagnosis",
            name="diagnosis_due",
        ),
        migrations.RenameModel("Step", "RecoveryStep"),
        migrations.RenameModel("Sign", "Anomaly"),
        migrations.RenameModel("Order", "ManualOverride"),
        migrations.RenameModel("Case", "PastFailure"),
        migrations.RenameField("channel", "is_on", "is_enabled"),
        migrations.RenameField("channel", "least_gpu_hours", "min_gpu_hours"),
        migrations.RenameField("decision", "said_by", "answered_by"),
        migrations.RenameField("decision", "said_at", "answered_at"),
        migrations.RenameField("decision", "said_why", "answer_reason"),
        migrations.RenameField("decision", "course", "state"),
        migrations.RenameField("decision", "sign", "anomaly"),
        migrations.RenameField("diagnosis", "kept_at", "bundle_stored_at"),
        migrations.RenameField("diagnosis", "said", "engine_root_cause"),
        migrations.RenameField("diagnosis", "noted_at", "recorded_at"),
        migrations.RenameField("following", "taken_until", "claimed_until"),
        migrations.RenameField("modelopinion", "asked_at", "requested_at"),
        migrations.RenameField("stackdump", "asked_at", "requested_at"),
        migrations.RenameField("stackdump", "sentences", "summary"),
        migrations.RunSQL(FORWARD, BACKWARD),
        migrations.RenameIndex(
            model_name="anomaly",
            new_name="anomaly_ongoing",
            old_name="sign_lasting",
        ),
        migrations.RenameIndex(
            model_name="manualoverride",
            new_name="override_active",
            old_name="order_standing",
        ),
        migrations.AlterField(
            model_name="anomaly",
            name="attempt",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.CASCADE, related_name="anomalies", to="jobs.attempt"
            ),
        ),
        migrations.AlterField(
            model_name="anomaly",
            name="cluster",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="anomalies", to="jobs.cluster"
            ),
        ),
        migrations.AlterField(
            model_name="anomaly",
            name="incident",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="anomalies", to="failures.incident"
            ),
        ),
        migrations.AlterField(
            model_name="anomaly",
            name="node",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.CASCADE, related_name="anomalies", to="jobs.node"
            ),
        ),
        migrations.AlterField(
            model_name="manualoverride",
            name="cluster",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="overrides", to="jobs.cluster"
            ),
        ),
        migrations.AlterField(
            model_name="manualoverride",
            name="job",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="overrides", to="jobs.job"
            ),
        ),
        migrations.AlterField(
            model_name="manualoverride",
            name="node",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="overrides", to="jobs.node"
            ),
        ),
        migrations.AlterField(
            model_name="pastfailure",
            name="diagnosis",
            field=models.OneToOneField(
                on_delete=django.db.models.deletion.PROTECT, related_name="past_failure", to="failures.diagnosis"
            ),
        ),
        migrations.AlterField(
            model_name="pastfailure",
            name="learned_at",
            field=models.DateTimeField(help_text="When the failure was last used for learning rules.", null=True),
        ),
        migrations.AddIndex(
            model_name="decision",
            index=models.Index(
                condition=models.Q(("state__in", ("proposed", "approved", "acting"))),
                fields=["due_at"],
                name="decision_open",
            ),
        ),
        migrations.AddIndex(
            model_name="diagnosis",
            index=models.Index(
                condition=models.Q(("bundle_stored_at__isnull", True)), fields=["due_at"], name="diagnosis_due"
            ),
        ),
        migrations.AddConstraint(
            model_name="anomaly",
            constraint=models.UniqueConstraint(
                condition=models.Q(("attempt__isnull", False), ("ended_at__isnull", True)),
                fields=("attempt", "symptom"),
                name="one_ongoing_anomaly_per_attempt",
            ),
        ),
        migrations.AddConstraint(
            model_name="anomaly",
            constraint=models.UniqueConstraint(
                condition=models.Q(("attempt__isnull", True), ("ended_at__isnull", True)),
                fields=("node", "symptom"),
                name="one_ongoing_anomaly_per_node",
            ),
        ),
        migrations.AddConstraint(
            model_name="anomaly",
            constraint=models.CheckConstraint(
                condition=models.Q(("attempt__isnull", False), ("node__isnull", False), _connector="OR"),
                name="anomaly_has_a_subject",
            ),
        ),
        migrations.AddConstraint(
            model_name="decision",
            constraint=models.UniqueConstraint(
                condition=models.Q(("state", "withdrawn"), _negated=True),
                fields=("diagnosis",),
                name="one_standing_decision_per_diagnosis",
            ),
        ),
        migrations.AddConstraint(
            model_name="decision",
            constraint=models.CheckConstraint(
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
        ),
        migrations.AddConstraint(
            model_name="decision",
            constraint=models.CheckConstraint(
                condition=models.Q(("diagnosis__isnull", False), ("anomaly__isnull", False), _connector="XOR"),
                name="decision_has_one_ground",
            ),
        ),
        migrations.AddConstraint(
            model_name="manualoverride",
            constraint=models.CheckConstraint(
                condition=models.Q(("job__isnull", False), ("node__isnull", False), _connector="XOR"),
                name="override_has_one_subject",
            ),
        ),
    ]
