from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("failures", "0010_cadence")]

    operations = [
        migrations.AddField(
            model_name="decision",
            name="change",
            field=models.JSONField(blank=True, default=list, help_text="What the job asks for instead."),
        ),
    ]
