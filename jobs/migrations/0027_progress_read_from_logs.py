from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0026_trainings_and_prices"),
    ]

    operations = [
        migrations.AddField(
            model_name="pulse",
            name="source",
            field=models.CharField(
                blank=True,
                choices=[
                    ("", "its reports"),
                    ("log", "its log"),
                    ("late", "its log, which nobody had read from the beginning"),
                ],
                db_default="",
                default="",
                help_text="Who tells its steps.",
                max_length=4,
            ),
        ),
        migrations.AddField(
            model_name="pulse",
            name="steps_total",
            field=models.PositiveBigIntegerField(help_text="Where it is to end, as its log says.", null=True),
        ),
        migrations.AddField(
            model_name="pulse",
            name="saved_step",
            field=models.PositiveBigIntegerField(
                help_text="The last checkpoint that its log says is saved.", null=True
            ),
        ),
        migrations.AddField(
            model_name="pulse",
            name="saved_at",
            field=models.DateTimeField(help_text="When that one was saved, at the earliest.", null=True),
        ),
        migrations.AddField(
            model_name="pulse",
            name="saved_path",
            field=models.CharField(blank=True, db_default="", default="", max_length=400),
        ),
    ]
