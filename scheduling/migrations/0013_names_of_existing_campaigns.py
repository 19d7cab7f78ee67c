"""Gives existing campaigns the name that they would have got when they were created, in batches."""

from django.db import migrations

from scheduling.evaluation.checkpoint_paths import default_campaign_name

ROWS = 500


def name_campaigns(apps, schema_editor):
    unnamed = apps.get_model("scheduling", "Campaign").objects.filter(name="").select_related("suite").order_by("pk")
    while rows := list(unnamed.only("checkpoints", "suite__name", "suite__version")[:ROWS]):
        for row in rows:
            row.name = default_campaign_name(row.checkpoints or [""], f"{row.suite.name} v{row.suite.version}")
        unnamed.model.objects.bulk_update(rows, ["name"])


class Migration(migrations.Migration):
    """An interrupted run can be repeated."""

    atomic = False
    dependencies = [("scheduling", "0012_campaign_names")]

    operations = [migrations.RunPython(name_campaigns, migrations.RunPython.noop)]
