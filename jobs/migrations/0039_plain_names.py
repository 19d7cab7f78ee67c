"""Renames models, fields, constraints and the types of stored Events.

Writes to Events wait while their types are rewritten.
"""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

EVENT_TYPES = {
    "campaign.asked": "campaign.created",
    "campaign.moved": "campaign.state_changed",
    "decision.made": "decision.created",
    "diagnosis.made": "diagnosis.created",
    "job.cancel_asked": "job.cancel_requested",
    "job.evict_asked": "job.evict_requested",
    "job.evict_called_off": "job.evict_cancelled",
    "job.limit_asked": "job.limit_requested",
    "job.moved": "job.state_changed",
    "job.outcome_known": "job.outcome_found",
    "job.preempt_asked": "job.preempt_requested",
    "job.reprioritised": "job.priority_changed",
    "job.requeue_asked": "job.requeue_requested",
    "job.seen": "job.discovered",
    "job.stacks_asked": "job.stacks_requested",
    "job.take_back_asked": "job.take_back_requested",
    "maintenance.began": "maintenance.started",
    "maintenance.declared": "maintenance.created",
    "maintenance.end_moved": "maintenance.end_changed",
    "node.burn_in_began": "node.burn_in_started",
    "node.moved": "node.state_changed",
    "node.repair_asked": "node.repair_requested",
    "node.test_asked": "node.test_requested",
    "order.lifted": "override.lifted",
    "recovery.mode": "recovery.mode_changed",
    "sign.blamed": "anomaly.located",
    "sign.passed": "anomaly.ended",
    "sign.seen": "anomaly.detected",
    "simulation.asked": "simulation.created",
    "simulation.moved": "simulation.state_changed",
    "staging.moved": "staging.state_changed",
    "suite.defined": "suite.created",
    "team.made": "team.created",
    "team.retitled": "team.title_changed",
    "team.role": "team.role_changed",
    "token.made": "token.created",
}


def rename_types_sql(names: dict[str, str]) -> str:
    """Events are append-only, so the trigger is off for this one statement."""
    pairs = ", ".join(f"('{old}', '{new}')" for old, new in names.items())
    return f"""
    ALTER TABLE jobs_event DISABLE TRIGGER jobs_event_append_only;
    UPDATE jobs_event e SET type = v.new FROM (VALUES {pairs}) AS v (old, new) WHERE e.type = v.old;
    ALTER TABLE jobs_event ENABLE TRIGGER jobs_event_append_only;
    """  # noqa: S608 - constant names


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0038_plain_help_texts"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        # Constraints go first: their conditions name the old columns
        migrations.RemoveConstraint(
            model_name="deed",
            name="one_open_deed_per_attempt",
        ),
        migrations.RemoveConstraint(
            model_name="deed",
            name="one_open_deed_per_node",
        ),
        migrations.RemoveIndex(
            model_name="event",
            name="event_of_policy",
        ),
        migrations.RemoveIndex(
            model_name="event",
            name="event_node_moved",
        ),
        migrations.RemoveIndex(
            model_name="event",
            name="event_node_asked",
        ),
        migrations.RenameModel("Deed", "ClusterCommand"),
        migrations.RenameModel("Pulse", "LatestProgress"),
        migrations.RenameModel("Minute", "ClusterMinute"),
        migrations.RenameField("clustercommand", "in_hand", "is_being_sent"),
        migrations.RenameField("latestprogress", "heard_at", "updated_at"),
        migrations.RenameField("clusterminute", "held", "allocated"),
        migrations.RenameField("clusterminute", "busy", "utilization"),
        migrations.RenameField("clusterminute", "wanted", "requested"),
        migrations.RenameField("event", "what", "type"),
        migrations.RenameField("attempt", "stop_as", "stop_state"),
        migrations.RenameField("attempt", "stop_why", "stop_reason"),
        migrations.RenameField("cluster", "heard_at", "last_contact_at"),
        migrations.RenameField("cluster", "trouble_since", "error_since"),
        migrations.RenameField("cluster", "wanted_at", "turn_requested_at"),
        migrations.RenameField("job", "on_node", "required_node"),
        migrations.RenameField("maintenance", "lead", "lead_time"),
        migrations.RenameField("node", "care", "repair_stage"),
        migrations.RenameField("node", "care_until", "burn_in_until"),
        migrations.RenameField("node", "drain_asked", "drain_requested"),
        migrations.RunSQL(
            rename_types_sql(EVENT_TYPES), rename_types_sql({new: old for old, new in EVENT_TYPES.items()})
        ),
        migrations.RenameIndex(
            model_name="clustercommand",
            new_name="command_due",
            old_name="deed_due",
        ),
        migrations.AlterField(
            model_name="clustercommand",
            name="attempt",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="commands", to="jobs.attempt"
            ),
        ),
        migrations.AlterField(
            model_name="clustercommand",
            name="cluster",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="commands", to="jobs.cluster"
            ),
        ),
        migrations.AlterField(
            model_name="clustercommand",
            name="node",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="commands", to="jobs.node"
            ),
        ),
        migrations.AlterField(
            model_name="event",
            name="type",
            field=models.CharField(help_text="job.submitted, job.state_changed, node.drained …", max_length=40),
        ),
        migrations.AlterField(
            model_name="latestprogress",
            name="attempt",
            field=models.OneToOneField(
                on_delete=django.db.models.deletion.CASCADE,
                primary_key=True,
                related_name="latest_progress",
                serialize=False,
                to="jobs.attempt",
            ),
        ),
        migrations.AddIndex(
            model_name="event",
            index=models.Index(
                condition=models.Q(("type", "node.state_changed")),
                fields=["node", "-at", "-id"],
                name="event_node_state_changed",
            ),
        ),
        migrations.AddIndex(
            model_name="event",
            index=models.Index(
                condition=models.Q(("type__in", ("node.drained", "node.resumed"))),
                fields=["node", "-at", "-id"],
                name="event_node_drain_requested",
            ),
        ),
        migrations.AddIndex(
            model_name="event",
            index=models.Index(
                condition=models.Q(("type", "policy.changed")), fields=["cluster", "id"], name="event_of_policy"
            ),
        ),
        migrations.AddConstraint(
            model_name="clustercommand",
            constraint=models.UniqueConstraint(
                condition=models.Q(("done_at__isnull", True)),
                fields=("attempt", "kind"),
                name="one_open_command_per_attempt",
            ),
        ),
        migrations.AddConstraint(
            model_name="clustercommand",
            constraint=models.UniqueConstraint(
                condition=models.Q(("attempt__isnull", True), ("done_at__isnull", True)),
                fields=("node", "kind"),
                name="one_open_command_per_node",
            ),
        ),
    ]
