"""SQL that models do not express: a sequence for ids, one live holder per GPU, Events that nobody edits."""

from django.db import migrations

from ._guards import CREATE_SEQUENCE, MAKE_EVENTS_APPEND_ONLY

# A partial exclusion constraint instead of a partial unique index: it is checked at the end of each statement, so one
# UPDATE may swap GPUs between attempts.
ONE_HOLDER = """
ALTER TABLE jobs_allocation ADD CONSTRAINT one_live_holder_per_gpu
    EXCLUDE USING btree (node_id WITH =, gpu WITH =) WHERE (released_at IS NULL)
    DEFERRABLE INITIALLY IMMEDIATE
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0001_initial")]

    operations = [
        CREATE_SEQUENCE,
        migrations.RunSQL(ONE_HOLDER, "ALTER TABLE jobs_allocation DROP CONSTRAINT one_live_holder_per_gpu"),
        MAKE_EVENTS_APPEND_ONLY,
    ]
