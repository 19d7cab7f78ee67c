"""Renames models, fields and constraints."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduling", "0010_plain_help_texts"),
        ("failures", "0014_plain_names"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        # Constraints go first: their conditions name the old columns
        migrations.RemoveConstraint(
            model_name="testworld",
            name="one_world_of_a_round",
        ),
        migrations.RemoveIndex(
            model_name="evaluationrule",
            name="evaluation_rule_on",
        ),
        migrations.RenameModel("TestWorld", "PairTestJob"),
        migrations.RenameModel("RuleSighting", "ProcessedCheckpoint"),
        migrations.RenameField("evaluationrule", "is_on", "is_enabled"),
        migrations.RenameField("simulation", "heard_at", "heartbeat_at"),
        migrations.RenameField("campaign", "weights_gb", "checkpoint_gb"),
        migrations.RenameField("evaluationrule", "weights_gb", "checkpoint_gb"),
        migrations.RenameField("trial", "heard_at", "log_read_at"),
        migrations.RenameField("uploadedtrace", "quoted", "skipped_examples"),
        migrations.RenameField("uploadedtrace", "bad", "skipped_rows"),
        migrations.AlterField(
            model_name="pairtestjob",
            name="test",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="pair_tests", to="scheduling.nodetest"
            ),
        ),
        migrations.AlterField(
            model_name="pairtestjob",
            name="wave",
            field=models.PositiveSmallIntegerField(
                default=0, help_text="Of round two: no node is in two jobs of a wave."
            ),
        ),
        migrations.AlterField(
            model_name="processedcheckpoint",
            name="campaign",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="processed_checkpoints",
                to="scheduling.campaign",
            ),
        ),
        migrations.AlterField(
            model_name="processedcheckpoint",
            name="rule",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="processed_checkpoints",
                to="scheduling.evaluationrule",
            ),
        ),
        migrations.AddIndex(
            model_name="evaluationrule",
            index=models.Index(
                condition=models.Q(("is_enabled", True)), fields=["looked_at"], name="evaluation_rule_on"
            ),
        ),
        migrations.AddConstraint(
            model_name="pairtestjob",
            constraint=models.UniqueConstraint(fields=("test", "round", "nodes"), name="one_pair_test_per_round"),
        ),
    ]
