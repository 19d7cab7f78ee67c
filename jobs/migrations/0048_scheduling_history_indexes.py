from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models

from jobs.migrations._concurrent_indexes import drop_invalid


class Migration(migrations.Migration):
    """Jobs end while these indexes are built, and an interrupted run can be repeated."""

    atomic = False
    dependencies = [("jobs", "0047_scheduling_history")]

    operations = [
        drop_invalid("attempt_not_counted"),
        AddIndexConcurrently(
            model_name="attempt",
            index=models.Index(
                condition=models.Q(("usage_counted", False)), fields=["job"], name="attempt_not_counted"
            ),
        ),
        drop_invalid("job_run_time_not_learned"),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                condition=models.Q(
                    ("ended_at__isnull", False),
                    ("foreign_id", ""),
                    ("run_time_learned", False),
                    ("started_at__isnull", False),
                ),
                fields=["cluster", "ended_at"],
                name="job_run_time_not_learned",
            ),
        ),
    ]
