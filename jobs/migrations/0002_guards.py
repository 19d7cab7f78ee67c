"""What Django's models cannot say: a sequence for ids, one live holder per GPU, Events that nobody edits."""

from django.db import migrations

SEQUENCE = "CREATE SEQUENCE jobs_public_id"

# A partial exclusion constraint instead of a partial unique index: it is checked at the end of each statement, so one
# UPDATE may swap GPUs between attempts.
ONE_HOLDER = """
ALTER TABLE jobs_allocation ADD CONSTRAINT one_live_holder_per_gpu
    EXCLUDE USING btree (node_id WITH =, gpu WITH =) WHERE (released_at IS NULL)
    DEFERRABLE INITIALLY IMMEDIATE
"""

# Retention may delete old Events, but only where it says so for its own transaction.
APPEND_ONLY = """
CREATE FUNCTION jobs_event_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('acme.retention', true) = 'on' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'events are append-only: % of event % refused', lower(TG_OP), OLD.id
        USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER jobs_event_append_only BEFORE UPDATE OR DELETE ON jobs_event
    FOR EACH ROW EXECUTE FUNCTION jobs_event_is_append_only();
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0001_initial")]

    operations = [
        migrations.RunSQL(SEQUENCE, "DROP SEQUENCE jobs_public_id"),
        migrations.RunSQL(ONE_HOLDER, "ALTER TABLE jobs_allocation DROP CONSTRAINT one_live_holder_per_gpu"),
        migrations.RunSQL(
            APPEND_ONLY, "DROP TRIGGER jobs_event_append_only ON jobs_event; DROP FUNCTION jobs_event_is_append_only"
        ),
    ]
