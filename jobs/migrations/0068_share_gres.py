from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0067_power_waits"),
    ]

    operations = [
        migrations.AddField(
            model_name="job",
            name="share_gres",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                editable=False,
                help_text="What Slurm must call the parts of the GPU, shard or mps; empty: any of them.",
                max_length=8,
                verbose_name="name of the share in Slurm",
            ),
        ),
    ]
