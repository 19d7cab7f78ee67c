from django.contrib.postgres.operations import AddIndexConcurrently, ValidateConstraint
from django.db import migrations, models

from jobs.migrations._concurrent_indexes import drop_invalid


class Migration(migrations.Migration):
    """Jobs and attempts are written while these indexes are built, and an interrupted run can be repeated."""

    atomic = False
    dependencies = [("jobs", "0029_outcome_unknown")]

    operations = [
        ValidateConstraint(model_name="attempt", name="attempt_state_known"),
        drop_invalid("attempt_missing"),
        AddIndexConcurrently(
            model_name="attempt",
            index=models.Index(
                condition=models.Q(("ended_at__isnull", True), ("missing_since__isnull", False)),
                fields=["missing_since"],
                name="attempt_missing",
            ),
        ),
        drop_invalid("job_outcome_unknown"),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                condition=models.Q(("flags__contains", ["OUTCOME_UNKNOWN"]), ("state", "PENDING")),
                fields=["-id"],
                name="job_outcome_unknown",
            ),
        ),
    ]
