from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0039_plain_names"),
    ]

    operations = [
        migrations.AlterField(
            model_name="attempt",
            name="backend_id",
            field=models.CharField(blank=True, help_text="The cluster's own id of the job.", max_length=320),
        ),
        migrations.AlterField(
            model_name="job",
            name="foreign_id",
            field=models.CharField(
                blank=True,
                editable=False,
                help_text="Id and submission time on the cluster, for jobs submitted outside Acme.",
                max_length=340,
            ),
        ),
    ]
