"""Renames the errors of diagnoses, notices and model calls, and the keys of stored request changes."""

from django.db import migrations

# Changes of decisions are parsed again for replays, so their keys follow the code
RENAME_KEYS = """
UPDATE failures_decision SET change = (
    SELECT jsonb_agg(
        one - '{old_before}' - '{old_after}'
        || jsonb_build_object('{before}', one -> '{old_before}', '{after}', one -> '{old_after}')
    )
    FROM jsonb_array_elements(change) AS one
)
WHERE jsonb_array_length(change) > 0
"""
FORWARD = RENAME_KEYS.format(old_before="was", old_after="becomes", before="before", after="after")
BACKWARD = RENAME_KEYS.format(old_before="before", old_after="after", before="was", after="becomes")


class Migration(migrations.Migration):
    dependencies = [("failures", "0015_log_read_state")]

    operations = [
        migrations.RenameField(model_name="diagnosis", old_name="trouble", new_name="last_error"),
        migrations.RenameField(model_name="modelopinion", old_name="asked", new_name="calls"),
        migrations.RenameField(model_name="modelopinion", old_name="troubles", new_name="errors"),
        migrations.RenameField(model_name="notice", old_name="trouble", new_name="last_error"),
        migrations.RunSQL(FORWARD, BACKWARD),
    ]
