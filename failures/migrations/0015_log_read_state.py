"""Merges the two tables of read positions of running logs."""

import django.db.models.deletion
from django.db import migrations, models

# Attempts that are only followed for steps have no row in the first table
COPY_CADENCES = """
INSERT INTO failures_logreadstate AS s (
    attempt_id, due_at, tries, size, read, seam, steps_looked_at, steps_read_at, steps_read, cadence
)
SELECT attempt_id, now(), 0, 0, 0, '', looked_at, looked_at, read, jsonb_build_object(
    'furthest', COALESCE(
        (SELECT jsonb_agg(jsonb_build_array(key, value)) FROM jsonb_each(furthest)), '[]'::jsonb
    ),
    'moments', to_jsonb(moments), 'steps', to_jsonb(steps), 'sections', sections
)
FROM failures_cadence
ON CONFLICT (attempt_id) DO UPDATE SET
    steps_looked_at = EXCLUDED.steps_looked_at, steps_read_at = EXCLUDED.steps_read_at,
    steps_read = EXCLUDED.steps_read, cadence = EXCLUDED.cadence
"""


class Migration(migrations.Migration):
    dependencies = [("failures", "0014_plain_names"), ("jobs", "0041_container_images")]

    operations = [
        migrations.RenameModel(old_name="Following", new_name="LogReadState"),
        migrations.RenameIndex(model_name="logreadstate", old_name="following_due", new_name="log_read_state_due"),
        migrations.AlterField(
            model_name="logreadstate",
            name="attempt",
            field=models.OneToOneField(
                on_delete=django.db.models.deletion.CASCADE,
                primary_key=True,
                related_name="log_read_state",
                serialize=False,
                to="jobs.attempt",
            ),
        ),
        migrations.AddField(
            model_name="logreadstate",
            name="steps_looked_at",
            field=models.DateTimeField(help_text="Last attempt to read steps, successful or not.", null=True),
        ),
        migrations.AddField(
            model_name="logreadstate",
            name="steps_read_at",
            field=models.DateTimeField(help_text="Time at which the log was last read for steps.", null=True),
        ),
        migrations.AddField(
            model_name="logreadstate",
            name="steps_read",
            field=models.PositiveBigIntegerField(
                db_default=0, default=0, help_text="Bytes of the log that were read for steps."
            ),
        ),
        migrations.AddField(
            model_name="logreadstate",
            name="cadence",
            field=models.JSONField(help_text="Times and sections of the printed steps; null if not read.", null=True),
        ),
        migrations.RunSQL(COPY_CADENCES, migrations.RunSQL.noop),
        migrations.DeleteModel(name="Cadence"),
    ]
