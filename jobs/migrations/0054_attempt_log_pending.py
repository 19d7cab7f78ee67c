from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0053_pod_template")]

    operations = [
        migrations.AddField(
            model_name="attempt",
            name="log_pending",
            field=models.BooleanField(
                db_default=False,
                default=False,
                editable=False,
                help_text="Whether Acme still has to copy output to its log.",
            ),
        ),
        migrations.AlterField(
            model_name="cluster",
            name="log_root",
            field=models.CharField(
                blank=True,
                help_text="Shared directory that job logs are written to. Kubernetes: Acme copies them there; empty: to its own directory.",
                max_length=300,
            ),
        ),
    ]
