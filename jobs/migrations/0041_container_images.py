from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0040_wide_backend_ids"),
    ]

    operations = [
        migrations.AddField(
            model_name="cluster",
            name="runs_images",
            field=models.BooleanField(
                db_default=False, default=False, editable=False, help_text="Whether jobs may run in a container image."
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="image",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="Reference of the container image that the job runs in. Empty: none.",
                max_length=500,
                verbose_name="container image",
            ),
        ),
    ]
