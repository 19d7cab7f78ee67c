from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0027_progress_read_from_logs"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="event",
            index=models.Index(
                fields=["node", "-at", "-id"], name="event_node_moved", condition=models.Q(("what", "node.moved"))
            ),
        ),
        migrations.AddIndex(
            model_name="event",
            index=models.Index(
                fields=["node", "-at", "-id"],
                name="event_node_asked",
                condition=models.Q(("what__in", ("node.drained", "node.resumed"))),
            ),
        ),
    ]
