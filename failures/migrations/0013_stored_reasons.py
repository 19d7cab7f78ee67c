"""Rewrites two reasons that code compares with stored text, so that rows of earlier versions still match."""

import re

from django.db import migrations

ROLLBACK = re.compile(r"Recovery went back behind it, to step (\d+): incident (\w+)\.")
LEMON = re.compile(r"It fails again and again: a lemon score of ([\d.]+) from the last 30 days\.?")


def rewrite_reasons(apps, schema_editor):
    checkpoints = apps.get_model("jobs", "Checkpoint").objects
    for checkpoint in checkpoints.filter(verdict_why__startswith="Recovery went back behind it").iterator():
        reason = ROLLBACK.sub(r"Recovery rolled back to step \1 (incident \2).", checkpoint.verdict_why)
        checkpoints.filter(pk=checkpoint.pk).update(verdict_why=reason)
    signs = apps.get_model("failures", "Sign").objects
    for sign in signs.filter(why__startswith="It fails again and again", ended_at=None).iterator():
        reason = LEMON.sub(r"Repeated failures: lemon score \1 over the last 30 days.", sign.why)
        signs.filter(pk=sign.pk).update(why=reason)


class Migration(migrations.Migration):
    dependencies = [
        ("failures", "0012_plain_help_texts"),
        ("jobs", "0038_plain_help_texts"),
    ]

    operations = [migrations.RunPython(rewrite_reasons, migrations.RunPython.noop)]
