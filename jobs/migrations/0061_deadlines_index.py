from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models

from jobs.migrations._concurrent_indexes import drop_invalid


class Migration(migrations.Migration):
    """Jobs start and end while the index is built, and an interrupted run can be repeated."""

    atomic = False
    dependencies = [("jobs", "0060_deadlines")]

    operations = [
        drop_invalid("job_open_deadline"),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                condition=models.Q(("deadline_at__isnull", False), ("state__in", ["PENDING", "RUNNING", "SUSPENDED"])),
                fields=["cluster", "deadline_at"],
                name="job_open_deadline",
            ),
        ),
    ]
