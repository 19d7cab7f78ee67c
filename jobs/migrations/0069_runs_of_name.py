from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models

from jobs.migrations._concurrent_indexes import drop_invalid


class Migration(migrations.Migration):
    """Jobs start and end while the index is built, and an interrupted run can be repeated."""

    atomic = False
    dependencies = [("jobs", "0068_share_gres")]

    operations = [
        drop_invalid("job_runs_of_name"),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                condition=models.Q(("started_at__isnull", False)),
                fields=["user", "name", "-submitted_at"],
                name="job_runs_of_name",
            ),
        ),
    ]
