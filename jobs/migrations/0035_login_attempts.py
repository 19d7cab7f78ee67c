from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0034_clusters_submit_as"),
    ]

    operations = [
        migrations.CreateModel(
            name="LoginAttempts",
            fields=[
                (
                    "key",
                    models.CharField(
                        help_text="SHA-256 of what is counted.", max_length=64, primary_key=True, serialize=False
                    ),
                ),
                ("since", models.DateTimeField(help_text="When the window of this count began.")),
                ("count", models.PositiveIntegerField()),
            ],
            options={
                "verbose_name_plural": "login attempts",
                "indexes": [models.Index(fields=["since"], name="login_attempts_by_age")],
            },
        ),
    ]
