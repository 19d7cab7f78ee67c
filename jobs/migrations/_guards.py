"""SQL that models do not express: a sequence for ids, one live holder per GPU and share, Events that nobody edits.

The first migration uses it, so it stays as it is: a change is a new migration.
"""

from django.db import migrations

_SEQUENCE = "CREATE SEQUENCE jobs_public_id"

# Retention may delete old Events, but only where it says so for its own transaction.
_APPEND_ONLY = """
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

# Whole GPUs are guarded by a btree, which costs a tenth of GiST. A shared GPU is in it too: the share that has its first
# thousandth stands for it there. Triggers, which run for shares only, keep one share in that place. Shares must not
# overlap either. The thousandths of all GPUs are numbered for that: a node has room for 32768 GPUs of 1000. All
# constraints are checked at the end of each statement, so one UPDATE may swap GPUs. NOT VALID saved
# the check of rows that existed.
SHARE_CONSTRAINTS = """
    ADD CONSTRAINT share_within_gpu CHECK (share_begin >= 0 AND share > 0 AND share_begin + share <= 1000) NOT VALID,
    ADD CONSTRAINT one_live_holder_per_gpu
    EXCLUDE USING btree (node_id WITH =, gpu WITH =) WHERE (released_at IS NULL AND share_begin = 0)
    DEFERRABLE INITIALLY IMMEDIATE,
    ADD CONSTRAINT one_live_holder_per_thousandth
    EXCLUDE USING gist (
        int8range((node_id * 32768 + gpu) * 1000 + share_begin, (node_id * 32768 + gpu) * 1000 + share_begin + share)
        WITH &&
    ) WHERE (released_at IS NULL AND gpu IS NOT NULL AND share < 1000) DEFERRABLE INITIALLY IMMEDIATE
"""

# The first share has left the GPU: the next one moves to its place. Another transaction may have released that one and
# commit while this one waits for its row; then the one after it is tried. Run again, it changes nothing.
# A share in another place locks the first one, so that it is not released by a transaction that does not see this share.
_FIRST_SHARE = """
CREATE FUNCTION jobs_move_first_share() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    LOOP
        UPDATE jobs_allocation SET share_begin = 0 WHERE released_at IS NULL AND id = (
            SELECT id FROM jobs_allocation
            WHERE node_id = OLD.node_id AND gpu = OLD.gpu AND released_at IS NULL AND share < 1000
            ORDER BY share_begin LIMIT 1
        );
        EXIT WHEN FOUND OR NOT EXISTS (
            SELECT FROM jobs_allocation
            WHERE node_id = OLD.node_id AND gpu = OLD.gpu AND released_at IS NULL AND share < 1000
        );
    END LOOP;
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_first_share_moves AFTER UPDATE ON jobs_allocation FOR EACH ROW
WHEN (OLD.share < 1000 AND OLD.share_begin = 0 AND OLD.released_at IS NULL AND (
    NEW.released_at IS NOT NULL OR NEW.share_begin <> 0 OR (NEW.node_id, NEW.gpu) IS DISTINCT FROM (OLD.node_id, OLD.gpu)
))
EXECUTE FUNCTION jobs_move_first_share();
CREATE TRIGGER jobs_first_share_is_deleted AFTER DELETE ON jobs_allocation FOR EACH ROW
WHEN (OLD.share < 1000 AND OLD.share_begin = 0 AND OLD.released_at IS NULL)
EXECUTE FUNCTION jobs_move_first_share();

CREATE FUNCTION jobs_require_first_share() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM jobs_allocation
    WHERE node_id = NEW.node_id AND gpu = NEW.gpu AND released_at IS NULL AND share < 1000 AND share_begin = 0 FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'one_live_holder_per_gpu: GPU % of node % has no share in the first place', NEW.gpu, NEW.node_id
            USING ERRCODE = 'exclusion_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER jobs_shared_gpu_has_first_share
AFTER INSERT OR UPDATE OF node_id, gpu, share_begin, released_at ON jobs_allocation
DEFERRABLE INITIALLY IMMEDIATE FOR EACH ROW
WHEN (NEW.share < 1000 AND NEW.share_begin > 0 AND NEW.released_at IS NULL)
EXECUTE FUNCTION jobs_require_first_share();
"""
_NO_FIRST_SHARE = """
DROP TRIGGER jobs_shared_gpu_has_first_share ON jobs_allocation;
DROP TRIGGER jobs_first_share_is_deleted ON jobs_allocation;
DROP TRIGGER jobs_first_share_moves ON jobs_allocation;
DROP FUNCTION jobs_require_first_share();
DROP FUNCTION jobs_move_first_share();
"""

CREATE_SEQUENCE = migrations.RunSQL(_SEQUENCE, "DROP SEQUENCE jobs_public_id")
MAKE_EVENTS_APPEND_ONLY = migrations.RunSQL(
    _APPEND_ONLY, "DROP TRIGGER jobs_event_append_only ON jobs_event; DROP FUNCTION jobs_event_is_append_only"
)
KEEP_FIRST_SHARES = migrations.RunSQL(_FIRST_SHARE, _NO_FIRST_SHARE)
