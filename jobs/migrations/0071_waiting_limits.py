from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models

from jobs.migrations._concurrent_indexes import drop_invalid


class Migration(migrations.Migration):
    """Jobs are submitted while the indexes are built, and an interrupted run can be repeated."""

    atomic = False
    dependencies = [("jobs", "0070_bulk_actions")]

    operations = [
        drop_invalid("job_waiting_of_user"),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(condition=models.Q(("state", "PENDING")), fields=["user"], name="job_waiting_of_user"),
        ),
        drop_invalid("job_waiting_of_team"),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(condition=models.Q(("state", "PENDING")), fields=["team"], name="job_waiting_of_team"),
        ),
    ]
