from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models

from jobs.migrations._concurrent_indexes import drop_invalid


class Migration(migrations.Migration):
    """Attempts end while the index is built, and an interrupted run can be repeated."""

    atomic = False
    dependencies = [("jobs", "0049_trees_predicted_s")]

    operations = [
        drop_invalid("attempt_end_not_counted"),
        AddIndexConcurrently(
            model_name="attempt",
            index=models.Index(
                condition=models.Q(("usage_counted", False)), fields=["ended_at"], name="attempt_end_not_counted"
            ),
        ),
        RemoveIndexConcurrently(model_name="attempt", name="attempt_not_counted"),
    ]
