"""Triggers that record which hours of the ledger a change of a row concerns, in the transaction of the change.

The migrations of old and of new databases use them, so they stay as they are: a change is a new migration.
"""

from django.db import migrations

# Every trigger calls this. What changed at or after the start of the current hour needs no record, because that hour is
# not stored yet: it is only stored once the transactions that began in it have ended. A trigger must never raise an
# error, because that would reject the change itself.
RECORD_CHANGE = """
CREATE OR REPLACE FUNCTION scheduling_ledger_changed(cluster bigint, since timestamptz, until timestamptz) RETURNS void
LANGUAGE sql AS $$
  INSERT INTO scheduling_ledgerchange (cluster_id, since, until)
  SELECT cluster, since, CASE WHEN until IS NOT NULL THEN greatest(since, until) END
  WHERE since <= date_trunc('hour', clock_timestamp(), 'UTC')
$$;
CREATE OR REPLACE FUNCTION scheduling_ledger_hour() RETURNS timestamptz LANGUAGE sql AS $$
  SELECT date_trunc('hour', clock_timestamp(), 'UTC')
$$;
"""
DROP_RECORD_CHANGE = """
DROP FUNCTION scheduling_ledger_changed(bigint, timestamptz, timestamptz); DROP FUNCTION scheduling_ledger_hour();
"""

# A job counts as waiting if the ledger reads its wait from its state: see `ledger.reads.facts._waits`
WAITS = """({row}.state = 'PENDING' AND {row}.hold = '' AND NOT 'REQUEUE_HOLD' = ANY({row}.flags)
  AND {row}.reason NOT IN ('Dependency', 'BeginTime', 'JobHeldUser', 'JobHeldAdmin'))"""
OLD_WAITS, NEW_WAITS = WAITS.format(row="OLD"), WAITS.format(row="NEW")
REQUEST_CHANGED = """(OLD.team_id, OLD.kind, OLD.nodes, OLD.gpus_per_node, OLD.gpu_model, OLD.submitted_at, OLD.begin_at)
  IS DISTINCT FROM (NEW.team_id, NEW.kind, NEW.nodes, NEW.gpus_per_node, NEW.gpu_model, NEW.submitted_at, NEW.begin_at)"""
WAIT_CHANGED = f"""(NEW.gpus_per_node > 0 AND {OLD_WAITS} <> {NEW_WAITS} AND NOT ({OLD_WAITS} AND NEW.state = 'RUNNING')
  OR NEW.gpus_per_node > 0 AND OLD.state = 'PENDING' AND NEW.state = 'RUNNING' AND NOT {OLD_WAITS})"""
JOBS = f"""
CREATE OR REPLACE FUNCTION scheduling_ledger_job() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE since timestamptz;
BEGIN
  IF {REQUEST_CHANGED} THEN
    since := least(OLD.submitted_at, NEW.submitted_at);
  END IF;
  IF OLD.ended_at IS DISTINCT FROM NEW.ended_at THEN
    since := least(since, OLD.ended_at, NEW.ended_at);
  END IF;
  IF {WAIT_CHANGED} THEN
    since := least(since, coalesce((SELECT max(ended_at) FROM jobs_attempt WHERE job_id = NEW.id),
      greatest(NEW.submitted_at, NEW.begin_at)));
  END IF;
  PERFORM scheduling_ledger_changed(NEW.cluster_id, since, NULL);
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER scheduling_ledger_job AFTER UPDATE ON jobs_job FOR EACH ROW
WHEN (least(OLD.submitted_at, NEW.submitted_at) <= scheduling_ledger_hour() AND (
  {REQUEST_CHANGED} OR OLD.ended_at IS DISTINCT FROM NEW.ended_at OR {WAIT_CHANGED}))
EXECUTE FUNCTION scheduling_ledger_job();

CREATE OR REPLACE FUNCTION scheduling_ledger_new_jobs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM scheduling_ledger_changed(cluster_id, min(submitted_at), max(coalesce(ended_at, clock_timestamp())))
  FROM new_rows
  WHERE submitted_at <= date_trunc('hour', clock_timestamp(), 'UTC') GROUP BY cluster_id;
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER scheduling_ledger_new_jobs AFTER INSERT ON jobs_job REFERENCING NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION scheduling_ledger_new_jobs();
"""  # noqa: S608 - constant conditions

# An end that keeps the work changes nothing before it. Any other end loses the work since the newest checkpoint, and
# its cause also counts the start-up of the next attempt
ATTEMPTS = """
CREATE OR REPLACE FUNCTION scheduling_ledger_attempt() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE since timestamptz; until timestamptz; following jobs_attempt; first_step timestamptz;
BEGIN
  IF OLD.promised_at IS DISTINCT FROM NEW.promised_at THEN
    since := least(OLD.promised_at, NEW.promised_at);
  END IF;
  IF OLD.confirmed_at IS DISTINCT FROM NEW.confirmed_at THEN
    since := least(since, OLD.confirmed_at, NEW.confirmed_at);
  END IF;
  IF OLD.ended_at IS NULL AND NEW.state IN ('COMPLETED', 'CANCELLED') AND NEW.cause <> 'Hang' THEN
    since := least(since, NEW.ended_at);
  ELSIF (OLD.ended_at, OLD.state, OLD.cause) IS DISTINCT FROM (NEW.ended_at, NEW.state, NEW.cause)
      AND coalesce(OLD.ended_at, NEW.ended_at) IS NOT NULL THEN
    since := least(since, OLD.ended_at, NEW.ended_at, (SELECT at FROM jobs_latestprogress WHERE attempt_id = NEW.id),
      coalesce((SELECT max(saved_at) FROM jobs_checkpoint
        WHERE attempt_id = NEW.id AND durable_at IS NOT NULL AND verdict <> 'bad'), NEW.promised_at));
    IF OLD.ended_at = NEW.ended_at THEN
      until := NEW.ended_at;
      SELECT * INTO following FROM jobs_attempt WHERE job_id = NEW.job_id AND number > NEW.number ORDER BY number LIMIT 1;
      IF FOUND THEN
        SELECT min(p.at) INTO first_step FROM jobs_progress p WHERE p.attempt_id = following.id AND p.step IS NOT NULL;
        until := CASE WHEN first_step IS NULL THEN coalesce(following.ended_at, clock_timestamp())
          ELSE greatest(until, following.confirmed_at, first_step) END;
      END IF;
    END IF;
  END IF;
  PERFORM scheduling_ledger_changed((SELECT cluster_id FROM jobs_job WHERE id = NEW.job_id), since, until);
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER scheduling_ledger_attempt AFTER UPDATE ON jobs_attempt FOR EACH ROW
WHEN (least(OLD.promised_at, NEW.promised_at) <= scheduling_ledger_hour()
  AND (OLD.promised_at, OLD.confirmed_at, OLD.ended_at, OLD.state, OLD.cause)
  IS DISTINCT FROM (NEW.promised_at, NEW.confirmed_at, NEW.ended_at, NEW.state, NEW.cause))
EXECUTE FUNCTION scheduling_ledger_attempt();

CREATE OR REPLACE FUNCTION scheduling_ledger_new_attempts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM scheduling_ledger_changed(j.cluster_id, min(n.promised_at), max(coalesce(n.ended_at, clock_timestamp())))
  FROM new_rows n JOIN jobs_job j ON j.id = n.job_id
  WHERE n.promised_at <= date_trunc('hour', clock_timestamp(), 'UTC') GROUP BY j.cluster_id;
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER scheduling_ledger_new_attempts AFTER INSERT ON jobs_attempt REFERENCING NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION scheduling_ledger_new_attempts();
"""

ALLOCATIONS = """
CREATE OR REPLACE FUNCTION scheduling_ledger_allocation() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE since timestamptz := least(OLD.released_at, NEW.released_at);
BEGIN
  IF (OLD.attempt_id, OLD.node_id, OLD.gpu, OLD.held_at) IS DISTINCT FROM
     (NEW.attempt_id, NEW.node_id, NEW.gpu, NEW.held_at) THEN
    since := least(OLD.held_at, NEW.held_at);
  END IF;
  PERFORM scheduling_ledger_changed((SELECT cluster_id FROM jobs_node WHERE id = NEW.node_id), since,
    coalesce(greatest(OLD.released_at, NEW.released_at), clock_timestamp()));
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER scheduling_ledger_allocation AFTER UPDATE ON jobs_allocation FOR EACH ROW
WHEN (least(OLD.held_at, NEW.held_at) <= scheduling_ledger_hour()
  AND ((OLD.attempt_id, OLD.node_id, OLD.gpu, OLD.held_at) IS DISTINCT FROM
    (NEW.attempt_id, NEW.node_id, NEW.gpu, NEW.held_at)
  OR OLD.released_at IS DISTINCT FROM NEW.released_at AND least(OLD.released_at, NEW.released_at) <=
    scheduling_ledger_hour()))
EXECUTE FUNCTION scheduling_ledger_allocation();

CREATE OR REPLACE FUNCTION scheduling_ledger_new_allocations() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM scheduling_ledger_changed(j.cluster_id, min(n.held_at), max(coalesce(n.released_at, clock_timestamp())))
  FROM new_rows n JOIN jobs_node j ON j.id = n.node_id
  WHERE n.held_at <= date_trunc('hour', clock_timestamp(), 'UTC') GROUP BY j.cluster_id;
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER scheduling_ledger_new_allocations AFTER INSERT ON jobs_allocation REFERENCING NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION scheduling_ledger_new_allocations();
"""

# Lost work begins at the newest checkpoint that can be used, so only the time after the others can change
CHECKPOINTS = """
CREATE OR REPLACE FUNCTION scheduling_ledger_checkpoint_of(changed jobs_checkpoint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE owner jobs_attempt; cluster bigint;
BEGIN
  SELECT * INTO owner FROM jobs_attempt WHERE id = changed.attempt_id;
  SELECT cluster_id INTO cluster FROM jobs_job WHERE id = owner.job_id;
  IF owner.ended_at IS NOT NULL THEN
    PERFORM scheduling_ledger_changed(cluster, coalesce((SELECT max(saved_at) FROM jobs_checkpoint
      WHERE attempt_id = owner.id AND id <> changed.id AND durable_at IS NOT NULL AND verdict <> 'bad'),
      owner.promised_at), owner.ended_at);
  END IF;
  IF changed.stall_s > 0 THEN
    PERFORM scheduling_ledger_changed(cluster, changed.saved_at - least(changed.stall_s, 1e7) * interval '1 second',
      changed.saved_at);
  END IF;
END $$;
CREATE OR REPLACE FUNCTION scheduling_ledger_checkpoint() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP <> 'INSERT' THEN PERFORM scheduling_ledger_checkpoint_of(OLD); END IF;
  IF TG_OP <> 'DELETE' THEN PERFORM scheduling_ledger_checkpoint_of(NEW); END IF;
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER scheduling_ledger_checkpoint AFTER UPDATE ON jobs_checkpoint FOR EACH ROW
WHEN ((OLD.attempt_id, OLD.saved_at, OLD.durable_at, OLD.verdict, OLD.stall_s)
  IS DISTINCT FROM (NEW.attempt_id, NEW.saved_at, NEW.durable_at, NEW.verdict, NEW.stall_s))
EXECUTE FUNCTION scheduling_ledger_checkpoint();
CREATE OR REPLACE TRIGGER scheduling_ledger_new_checkpoint AFTER INSERT OR DELETE ON jobs_checkpoint FOR EACH ROW
EXECUTE FUNCTION scheduling_ledger_checkpoint();
"""

# Only the first step of an attempt counts: start-up ends there
PROGRESS = """
CREATE OR REPLACE FUNCTION scheduling_ledger_progress() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE following timestamptz; owner jobs_attempt;
BEGIN
  IF EXISTS (SELECT FROM jobs_progress WHERE attempt_id = NEW.attempt_id AND step IS NOT NULL AND at < NEW.at) THEN
    RETURN NULL;
  END IF;
  SELECT * INTO owner FROM jobs_attempt WHERE id = NEW.attempt_id;
  SELECT min(at) INTO following FROM jobs_progress WHERE attempt_id = NEW.attempt_id AND step IS NOT NULL AND at > NEW.at;
  PERFORM scheduling_ledger_changed((SELECT cluster_id FROM jobs_job WHERE id = owner.job_id),
    least(NEW.at, owner.confirmed_at), coalesce(following, owner.ended_at));
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER scheduling_ledger_progress AFTER INSERT ON jobs_progress FOR EACH ROW
WHEN (NEW.step IS NOT NULL AND NEW.at <= scheduling_ledger_hour())
EXECUTE FUNCTION scheduling_ledger_progress();
"""

# The excess time of a slow period is placed at its end
ANOMALIES = """
CREATE OR REPLACE FUNCTION scheduling_ledger_slow_since(slow failures_anomaly) RETURNS timestamptz LANGUAGE sql AS $$
  SELECT over - CASE WHEN slow.observed > slow.expected AND slow.expected > 0
    THEN greatest(over - slow.since, interval '0') * (1 - slow.expected / slow.observed) ELSE interval '0' END
  FROM (SELECT coalesce(slow.ended_at, slow.seen_at) AS over) AS one
$$;
CREATE OR REPLACE FUNCTION scheduling_ledger_anomaly() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE since timestamptz; until timestamptz;
BEGIN
  IF TG_OP <> 'INSERT' THEN
    since := scheduling_ledger_slow_since(OLD); until := coalesce(OLD.ended_at, OLD.seen_at);
  END IF;
  IF TG_OP <> 'DELETE' THEN
    since := least(since, scheduling_ledger_slow_since(NEW));
    until := greatest(until, NEW.ended_at, CASE WHEN NEW.ended_at IS NULL THEN NEW.seen_at END);
  END IF;
  PERFORM scheduling_ledger_changed(CASE WHEN TG_OP = 'DELETE' THEN OLD.cluster_id ELSE NEW.cluster_id END, since, until);
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER scheduling_ledger_anomaly AFTER UPDATE ON failures_anomaly FOR EACH ROW
WHEN (NEW.symptom = 'slow' AND (OLD.since, OLD.seen_at, OLD.ended_at, OLD.observed, OLD.expected)
  IS DISTINCT FROM (NEW.since, NEW.seen_at, NEW.ended_at, NEW.observed, NEW.expected))
EXECUTE FUNCTION scheduling_ledger_anomaly();
CREATE OR REPLACE TRIGGER scheduling_ledger_new_anomaly AFTER INSERT ON failures_anomaly FOR EACH ROW
WHEN (NEW.symptom = 'slow') EXECUTE FUNCTION scheduling_ledger_anomaly();
CREATE OR REPLACE TRIGGER scheduling_ledger_no_anomaly AFTER DELETE ON failures_anomaly FOR EACH ROW
WHEN (OLD.symptom = 'slow') EXECUTE FUNCTION scheduling_ledger_anomaly();
"""

# Counted as hardware failures of nodes, at the moment of the failure
DIAGNOSES = """
CREATE OR REPLACE FUNCTION scheduling_ledger_diagnosis() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM scheduling_ledger_changed(OLD.cluster_id, OLD.failed_at, OLD.failed_at);
  PERFORM scheduling_ledger_changed(NEW.cluster_id, NEW.failed_at, NEW.failed_at);
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER scheduling_ledger_diagnosis AFTER UPDATE ON failures_diagnosis FOR EACH ROW
WHEN ((OLD.root_cause, OLD.failed_at, OLD.incident_id)
  IS DISTINCT FROM (NEW.root_cause, NEW.failed_at, NEW.incident_id))
EXECUTE FUNCTION scheduling_ledger_diagnosis();

CREATE OR REPLACE FUNCTION scheduling_ledger_diagnosis_node() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM scheduling_ledger_changed(cluster_id, failed_at, failed_at) FROM failures_diagnosis
  WHERE id = CASE WHEN TG_OP = 'DELETE' THEN OLD.diagnosis_id ELSE NEW.diagnosis_id END;
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER scheduling_ledger_diagnosis_node AFTER INSERT OR UPDATE OR DELETE ON failures_diagnosis_nodes FOR EACH ROW
EXECUTE FUNCTION scheduling_ledger_diagnosis_node();
"""

# Events of nodes are recorded as they happen, except when a history is imported
EVENTS = """
CREATE OR REPLACE FUNCTION scheduling_ledger_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM scheduling_ledger_changed(cluster_id, NEW.at, NULL) FROM jobs_node WHERE id = NEW.node_id;
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER scheduling_ledger_event AFTER INSERT ON jobs_event FOR EACH ROW
WHEN (NEW.node_id IS NOT NULL AND NEW.type LIKE 'node.%' AND NEW.at <= scheduling_ledger_hour())
EXECUTE FUNCTION scheduling_ledger_event();
"""


def _drop_triggers(*names):
    """Return the SQL that drops these trigger functions with their triggers."""
    return "; ".join(f"DROP FUNCTION {name} CASCADE" for name in names)


CREATE_TRIGGERS = [
    migrations.RunSQL(RECORD_CHANGE, DROP_RECORD_CHANGE),
    migrations.RunSQL(JOBS, _drop_triggers("scheduling_ledger_job()", "scheduling_ledger_new_jobs()")),
    migrations.RunSQL(ATTEMPTS, _drop_triggers("scheduling_ledger_attempt()", "scheduling_ledger_new_attempts()")),
    migrations.RunSQL(
        ALLOCATIONS, _drop_triggers("scheduling_ledger_allocation()", "scheduling_ledger_new_allocations()")
    ),
    migrations.RunSQL(
        CHECKPOINTS,
        _drop_triggers("scheduling_ledger_checkpoint()", "scheduling_ledger_checkpoint_of(jobs_checkpoint)"),
    ),
    migrations.RunSQL(PROGRESS, _drop_triggers("scheduling_ledger_progress()")),
    migrations.RunSQL(
        ANOMALIES, _drop_triggers("scheduling_ledger_anomaly()", "scheduling_ledger_slow_since(failures_anomaly)")
    ),
    migrations.RunSQL(DIAGNOSES, _drop_triggers("scheduling_ledger_diagnosis()", "scheduling_ledger_diagnosis_node()")),
    migrations.RunSQL(EVENTS, _drop_triggers("scheduling_ledger_event()")),
]
