from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models.expressions import CombinedExpression

from jobs.migrations._concurrent_indexes import drop_invalid


class Migration(migrations.Migration):
    """Jobs and events are written while these indexes are built, and an interrupted run can be repeated."""

    atomic = False
    dependencies = [("jobs", "0044_attempt_by_cause")]

    operations = [
        drop_invalid("job_by_gpus"),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                CombinedExpression(models.F("nodes"), "*", models.F("gpus_per_node")),
                models.F("id"),
                name="job_by_gpus",
            ),
        ),
        drop_invalid("event_node_tested"),
        AddIndexConcurrently(
            model_name="event",
            index=models.Index(
                condition=models.Q(("type", "node.tested")), fields=["node", "-at", "-id"], name="event_node_tested"
            ),
        ),
    ]
