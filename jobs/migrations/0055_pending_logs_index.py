from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models

from jobs.migrations._concurrent_indexes import drop_invalid


class Migration(migrations.Migration):
    """Attempts start and end while the index is built, and an interrupted run can be repeated."""

    atomic = False
    dependencies = [("jobs", "0054_attempt_log_pending")]

    operations = [
        drop_invalid("attempt_log_pending"),
        AddIndexConcurrently(
            model_name="attempt",
            index=models.Index(condition=models.Q(("log_pending", True)), fields=["id"], name="attempt_log_pending"),
        ),
    ]
