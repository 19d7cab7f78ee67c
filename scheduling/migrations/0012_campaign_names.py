from django.db import migrations, models


class Migration(migrations.Migration):
    """A database default, so that workers of the version before can still create campaigns."""

    dependencies = [("scheduling", "0011_plain_names")]

    operations = [
        migrations.AddField(
            model_name="campaign",
            name="name",
            field=models.CharField(
                db_default="", help_text="Not unique. Default: the run, its steps and the suite.", max_length=120
            ),
        ),
    ]
