"""A longer column for several GPU models. It changes the catalog only: PostgreSQL rewrites neither the table nor an
index.

PostgreSQL refuses to alter a column that a trigger's condition names. A database that got the triggers of the ledger
first (scheduling 0017) has such a trigger, so triggers that name the column are dropped and created again.
"""

from django.db import migrations, models


def _change_length(length: int) -> str:
    return f"""
DO $$
DECLARE definitions text[]; trigger record; definition text;
BEGIN
    FOR trigger IN
        SELECT tgname, pg_get_triggerdef(oid) AS definition FROM pg_trigger
        WHERE tgrelid = 'jobs_job'::regclass AND NOT tgisinternal AND pg_get_triggerdef(oid) LIKE '%gpu_model%'
    LOOP
        definitions := definitions || trigger.definition;
        EXECUTE format('DROP TRIGGER %I ON jobs_job', trigger.tgname);
    END LOOP;
    ALTER TABLE jobs_job ALTER COLUMN gpu_model TYPE varchar({length});
    FOREACH definition IN ARRAY coalesce(definitions, '{{}}') LOOP
        EXECUTE definition;
    END LOOP;
END $$
"""  # noqa: S608 - a number of this file


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0057_gpu_pods"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL(_change_length(200), _change_length(40))],
            state_operations=[
                migrations.AlterField(
                    model_name="job",
                    name="gpu_model",
                    field=models.CharField(blank=True, max_length=200, verbose_name="GPU model"),
                ),
            ],
        ),
    ]
