"""Gives campaigns a name. Existing ones get the name that they would have got when they were created."""

from django.db import migrations, models

from scheduling.evaluation.checkpoint_paths import default_campaign_name

ROWS = 500


def name_campaigns(apps, schema_editor):
    model = apps.get_model("scheduling", "Campaign")
    rows = []
    for row in (
        model.objects.filter(name="").select_related("suite").only("checkpoints", "suite__name", "suite__version")
    ):
        row.name = default_campaign_name(row.checkpoints or [""], f"{row.suite.name} v{row.suite.version}")
        rows.append(row)
    model.objects.bulk_update(rows, ["name"], batch_size=ROWS)


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0011_plain_names")]

    operations = [
        migrations.AddField(
            model_name="campaign",
            name="name",
            field=models.CharField(
                default="", help_text="Not unique. Default: the run, its steps and the suite.", max_length=120
            ),
            preserve_default=False,
        ),
        migrations.RunPython(name_campaigns, migrations.RunPython.noop),
    ]
