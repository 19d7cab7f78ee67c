from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models.expressions import CombinedExpression


class Migration(migrations.Migration):
    """Jobs are written while the index is built, and an interrupted run can be repeated."""

    atomic = False
    dependencies = [("jobs", "0044_attempt_by_cause")]

    operations = [
        # A build that was interrupted leaves an invalid index of that name
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS job_by_gpus", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                CombinedExpression(models.F("nodes"), "*", models.F("gpus_per_node")),
                models.F("id"),
                name="job_by_gpus",
            ),
        ),
    ]
