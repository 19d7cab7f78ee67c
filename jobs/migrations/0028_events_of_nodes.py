from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


def _forgotten(name: str) -> migrations.RunSQL:
    """An attempt that was interrupted leaves an index of that name that is used for nothing."""
    return migrations.RunSQL(f"DROP INDEX CONCURRENTLY IF EXISTS {name}", migrations.RunSQL.noop)


class Migration(migrations.Migration):
    """While the events of a large site are read, others go on being written: no lock is held for those minutes."""

    atomic = False
    dependencies = [
        ("jobs", "0027_progress_read_from_logs"),
    ]

    operations = [
        _forgotten("event_node_moved"),
        AddIndexConcurrently(
            model_name="event",
            index=models.Index(
                fields=["node", "-at", "-id"], name="event_node_moved", condition=models.Q(("what", "node.moved"))
            ),
        ),
        _forgotten("event_node_asked"),
        AddIndexConcurrently(
            model_name="event",
            index=models.Index(
                fields=["node", "-at", "-id"],
                name="event_node_asked",
                condition=models.Q(("what__in", ("node.drained", "node.resumed"))),
            ),
        ),
    ]
