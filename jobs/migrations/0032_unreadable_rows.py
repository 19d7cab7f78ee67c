from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0031_clusters_start_in_observe"),
    ]

    operations = [
        migrations.AddField(
            model_name="cluster",
            name="unreadable_count",
            field=models.PositiveIntegerField(
                db_default=0, default=0, editable=False, help_text="Rows of its last answer that could not be read."
            ),
        ),
        migrations.AddField(
            model_name="cluster",
            name="unreadable_rows",
            field=models.TextField(
                blank=True, db_default="", default="", editable=False, help_text="Which rows these are, and why."
            ),
        ),
    ]
