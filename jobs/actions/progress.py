"""Progress reports of running attempts: their tokens, and the only code that writes their rows.

A token is derived from the key of the attempt, so none is stored and none can be stolen from the database. It is valid
only for that attempt and only while the attempt is live; the statement that writes checks this.

The rules are parts of the SQL, because each hot path is one statement for many attempts:

| rule | where |
| --- | --- |
| Only live attempts may report. | `INSERT_HEARTBEATS_SQL`: live |
| A time in the future, or none, is replaced by the present. | `NOT_IN_FUTURE` |
| The same row is stored once. | `ON CONFLICT DO NOTHING` |
| Only a newer heartbeat changes the latest progress. | `INSERT_HEARTBEATS_SQL`: beat |
| Values that a report omits keep their last value. | `KEEP_OMITTED_VALUES` |
| Steps that the job reports replace all values from its log. | `LOCK_LOG_PROGRESS_SQL`, `DELETE_LOG_PROGRESS_SQL` |
| A log is used only while the job reports no steps itself. | `_log_may_write` |
| The first source from a log stays. | `KEEP_FIRST_SOURCE` |
| A total below the step is wrong and dropped. | `TOTAL_FROM_STEP_ON` |
| A path written again with another step or attempt is a new checkpoint. | `IS_SAME_CHECKPOINT`, `_unless_new` |
| Rows are locked in the order of their attempts. | `ORDER BY attempt_id` |
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection, transaction
from django.utils.crypto import salted_hmac

from acmeweb.common import live
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.models import Attempt, Event, LatestProgress, ProgressSource, RankTimes, clock

RUN_TOKEN_PREFIX = "acme_run_"  # noqa: S105 - a prefix
HEARTBEAT_COLUMNS = {
    "at": "timestamptz",
    "step": "bigint",
    "tokens": "bigint",
    "sum_sq": "float8",
    "loss": "float8",
    "grad_norm": "float8",
    "step_time_s": "float8",
    "learning_rate": "float8",
    "mfu": "float8",
}


def run_token(key: str) -> str:
    """Return the token with which an attempt reports its progress."""
    return f"{RUN_TOKEN_PREFIX}{key}.{_run_token_signature(key)}"


def run_token_key(token: str) -> str | None:
    """Return the key of the attempt for which this token was created, or None if the token is invalid."""
    if not token.startswith(RUN_TOKEN_PREFIX):
        return None
    key, _, signature = token.removeprefix(RUN_TOKEN_PREFIX).rpartition(".")
    # Constant-time comparison: the time must not reveal how much of a guessed signature is correct
    return key if hmac.compare_digest(signature.encode(), _run_token_signature(key).encode()) else None


def _run_token_signature(key: str) -> str:
    return salted_hmac("acme.progress", key, algorithm="sha256").hexdigest()[:40]


HeartbeatRows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class HeartbeatResult:
    """The result of a report: the attempt, its requested stop, and how many rows were new."""

    attempt_id: int
    job_id: int
    stop_state: str
    rows: int

    def as_dict(self, checkpoints: int = 0) -> dict[str, Any]:
        return {"heartbeats": self.rows, "checkpoints": checkpoints, "stop_state": self.stop_state}


_column_names = ", ".join(HEARTBEAT_COLUMNS)
_value_columns = [name for name in HEARTBEAT_COLUMNS if name != "at"]
NOT_IN_FUTURE = "LEAST(COALESCE(v.at, clock_timestamp()), clock_timestamp())"
KEEP_OMITTED_VALUES = ", ".join(
    f"{name} = COALESCE(EXCLUDED.{name}, jobs_latestprogress.{name})" for name in _value_columns
)
# One statement for many attempts: checks which are live, inserts their rows, and updates their newest values. Rows are
# locked in a fixed order, so concurrent statements cannot deadlock. Attempts that report steps for the first time after
# their log was read are skipped here and returned as `begun`.
INSERT_HEARTBEATS_SQL = f"""
WITH live AS (
    SELECT key, id, job_id, stop_state, key = ANY(%s)
        AND (SELECT source FROM jobs_latestprogress p WHERE p.attempt_id = jobs_attempt.id) <> '' IS TRUE AS begun
    FROM jobs_attempt WHERE key = ANY(%s) AND ended_at IS NULL),
reported AS MATERIALIZED (
    SELECT live.id AS attempt_id, {NOT_IN_FUTURE} AS at,
           {", ".join(f"v.{name}" for name in _value_columns)}
    FROM unnest(%s::text[], {", ".join(f"%s::{kind}[]" for kind in HEARTBEAT_COLUMNS.values())})
        AS v (key, {_column_names})
    JOIN live USING (key) WHERE NOT begun),
inserted AS (
    INSERT INTO jobs_progress (attempt_id, {_column_names})
    SELECT attempt_id, {_column_names} FROM reported ORDER BY attempt_id, at
    ON CONFLICT DO NOTHING RETURNING attempt_id),
beat AS (
    INSERT INTO jobs_latestprogress (attempt_id, {_column_names})
    SELECT DISTINCT ON (attempt_id) attempt_id, {_column_names} FROM reported ORDER BY attempt_id, at DESC
    ON CONFLICT (attempt_id) DO UPDATE SET updated_at = clock_timestamp(), at = EXCLUDED.at,
        {KEEP_OMITTED_VALUES}
    WHERE EXCLUDED.at >= jobs_latestprogress.at)
SELECT key, id, job_id, stop_state, COALESCE(news.count, 0), begun FROM live
LEFT JOIN (SELECT attempt_id, count(*) FROM inserted GROUP BY attempt_id) AS news ON news.attempt_id = live.id
"""  # noqa: S608 - constant names
# When an attempt starts to report steps, all values from its log are deleted, because detectors would compare the two
# sources. Ended attempts are excluded: their report is rejected, and the values from the log are the only ones. Locks
# are taken in the same order as in INSERT_HEARTBEATS_SQL. Two statements, because the first may wait for the commit of
# the log reader, and only a statement that starts after that commit sees its row.
LOCK_LOG_PROGRESS_SQL = """
SELECT p.attempt_id FROM jobs_latestprogress p JOIN jobs_attempt a ON a.id = p.attempt_id
WHERE a.key = ANY(%s) AND a.ended_at IS NULL AND p.source <> ''
ORDER BY p.attempt_id FOR UPDATE OF p FOR SHARE OF a
"""
DELETE_LOG_PROGRESS_SQL = """
WITH rows AS (DELETE FROM jobs_progress WHERE attempt_id = ANY(%(begun)s))
DELETE FROM jobs_latestprogress WHERE attempt_id = ANY(%(begun)s)
"""


def record_heartbeats(reports: Mapping[str, HeartbeatRows]) -> dict[str, HeartbeatResult]:
    """Store reports by attempt key and return their results. Attempts that are not live are left out. Duplicate reports
    are stored once.

    Nearly all attempts need one statement. When an attempt starts to report steps after its log has been read, three
    more statements delete the values from the log, once per attempt. Failure story: If the process dies before that
    commit, the latest progress still shows the log, the reporter gets no response, and its next report repeats the
    deletion. If the attempt ends before, its report is left out. If two reports arrive at the same time, the second
    waits for the first, finds nothing to delete, and is stored too.
    """
    results, takeovers = _insert_heartbeats(reports)
    if takeovers:
        takeover_reports = {key: reports[key] for key in takeovers}
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(LOCK_LOG_PROGRESS_SQL, [takeovers])
                cursor.execute(DELETE_LOG_PROGRESS_SQL, {"begun": [row[0] for row in cursor.fetchall()]})
            results |= _insert_heartbeats(takeover_reports)[0]
    return results


def _insert_heartbeats(reports: Mapping[str, HeartbeatRows]) -> tuple[dict[str, HeartbeatResult], list[str]]:
    """Return the stored results, and the keys of attempts whose values from the log must be deleted first."""
    steps = [key for key, beats in reports.items() if any(beat.get("step") is not None for beat in beats)]
    # unnest() takes parallel arrays: one key and one value of each column per heartbeat
    keys = [key for key, beats in reports.items() for _ in beats]
    columns = [[beat.get(name) for beats in reports.values() for beat in beats] for name in HEARTBEAT_COLUMNS]
    with connection.cursor() as cursor:
        cursor.execute(INSERT_HEARTBEATS_SQL, [steps, list(reports), keys, *columns])
        rows = cursor.fetchall()
    results = {
        key: HeartbeatResult(attempt_id=id, job_id=job, stop_state=stop_state, rows=count)
        for key, id, job, stop_state, count, is_takeover in rows
        if not is_takeover
    }
    return results, sorted(row[0] for row in rows if row[-1])


def record_attempt_heartbeats(key: str, beats: HeartbeatRows) -> HeartbeatResult | None:
    return record_heartbeats({key: beats}).get(key)


def _log_may_write(latest: str) -> str:
    """Return the condition that the attempt reports no steps itself. `latest` names its row of the latest progress."""
    return f"{latest}.step IS NULL OR {latest}.source <> ''"


KEEP_FIRST_SOURCE = "CASE WHEN jobs_latestprogress.source = '' THEN EXCLUDED.source ELSE jobs_latestprogress.source END"
TOTAL_FROM_STEP_ON = """(
    SELECT total FROM (VALUES (COALESCE(EXCLUDED.steps_total, jobs_latestprogress.steps_total))) AS v (total)
    WHERE total >= EXCLUDED.step)"""
# Stores a step from the log of one attempt. The ON CONFLICT clause checks again whether the log may write, because the
# first report may arrive concurrently. Logs of ended attempts are read to their end.
_log_step_values = ", ".join(f"%({name})s::{kind}" for name, kind in HEARTBEAT_COLUMNS.items())
INSERT_LOG_STEP_SQL = f"""
WITH live AS (SELECT a.id FROM jobs_attempt a LEFT JOIN jobs_latestprogress p ON p.attempt_id = a.id
    WHERE a.id = %(attempt)s AND ({_log_may_write("p")})),
beat AS (
    INSERT INTO jobs_latestprogress (attempt_id, {_column_names}, source, steps_total)
    SELECT id, {_log_step_values}, %(source)s::text, %(total)s::bigint FROM live
    ON CONFLICT (attempt_id) DO UPDATE SET updated_at = clock_timestamp(), at = EXCLUDED.at,
        source = {KEEP_FIRST_SOURCE}, steps_total = {TOTAL_FROM_STEP_ON}, {KEEP_OMITTED_VALUES}
        WHERE {_log_may_write("jobs_latestprogress")}
    RETURNING attempt_id)
INSERT INTO jobs_progress (attempt_id, {_column_names}) SELECT attempt_id, {_log_step_values} FROM beat
ON CONFLICT DO NOTHING
"""  # noqa: S608 - constant names


def record_log_step(attempt_id: int, beat: Mapping[str, Any], *, total: int | None, is_late: bool) -> None:
    """Store a step from the log. Has no effect if the attempt reports steps itself."""
    values = {name: beat.get(name) for name in HEARTBEAT_COLUMNS}
    source = ProgressSource.LATE if is_late else ProgressSource.LOG
    with connection.cursor() as cursor:
        cursor.execute(INSERT_LOG_STEP_SQL, {**values, "attempt": attempt_id, "source": str(source), "total": total})


def record_log_checkpoint(attempt_id: int, *, step: int, path: str, saved_at: datetime) -> None:
    """Store the last checkpoint in the log, for display only. It is not a Checkpoint row, because it is not
    verified."""
    latest_progress_rows = LatestProgress.objects.filter(attempt=attempt_id).exclude(source=ProgressSource.REPORTS)
    # Rows of attempts that report themselves are excluded: their reports take precedence
    latest_progress_rows.update(saved_step=step, saved_path=path, saved_at=saved_at)


UPSERT_SECTION_SQL = """
INSERT INTO jobs_section AS s (attempt_id, name, began_at, ended_at)
SELECT %s, %s, LEAST(%s, clock_timestamp()), CASE WHEN v.over IS NOT NULL THEN LEAST(v.over, clock_timestamp()) END
FROM (VALUES (%s::timestamptz)) AS v (over)
ON CONFLICT (attempt_id, began_at, name) DO UPDATE SET ended_at = COALESCE(s.ended_at, EXCLUDED.ended_at)
"""


@dataclass(frozen=True, kw_only=True)
class SectionReport:
    """The start or the end of a period in which no step is due."""

    name: str
    began_at: datetime
    ended_at: datetime | None = None


def record_sections(heartbeat: HeartbeatResult, sections: Sequence[SectionReport]) -> None:
    """Store sections. A repeated report, or an end that arrives without its start, still results in one section."""
    with connection.cursor() as cursor:
        for section in sections:
            cursor.execute(UPSERT_SECTION_SQL, [heartbeat.attempt_id, section.name, section.began_at, section.ended_at])


MAX_RANK_TIMES = 16


@dataclass(frozen=True, kw_only=True)
class RankTimesReport:
    """How long each rank computed in one step. `nodes` and `groups` have the same positions as `seconds`."""

    seconds: Sequence[float]
    nodes: Sequence[str]
    groups: Sequence[str] = ()


def record_rank_times(heartbeat: HeartbeatResult, reports: Sequence[RankTimesReport]) -> None:
    """Store rank times and keep only the newest rows of the attempt."""
    rows = [
        RankTimes(attempt_id=heartbeat.attempt_id, seconds=report.seconds, nodes=report.nodes, groups=report.groups)
        for report in reports
    ]
    RankTimes.objects.bulk_create(rows)
    attempt_rows = RankTimes.objects.filter(attempt=heartbeat.attempt_id).order_by("-pk")
    # Keep the newest rows: delete all that are older than the last of them
    if newest := list(attempt_rows.values_list("pk", flat=True)[:MAX_RANK_TIMES]):
        attempt_rows.filter(pk__lt=newest[-1]).delete()


def set_stacks_signal(heartbeat: HeartbeatResult, signal: str | None) -> None:
    """Store the signal at which the processes write their stacks. None changes nothing; an empty string removes it."""
    if signal is not None:
        Attempt.objects.filter(pk=heartbeat.attempt_id).exclude(stacks_signal=signal).update(stacks_signal=signal)


# The same step and path, saved by another attempt, is a new checkpoint: the other attempt repeated the step
IS_SAME_CHECKPOINT = "(EXCLUDED.step, EXCLUDED.attempt_id) IS NOT DISTINCT FROM (c.step, c.attempt_id)"


def _unless_new(known: str, new: str) -> str:
    """Return `known` for a checkpoint that was reported before, `new` for a new one at the same path."""
    return f"CASE WHEN {IS_SAME_CHECKPOINT} THEN {known} ELSE {new} END"


UPSERT_CHECKPOINTS_SQL = f"""
INSERT INTO jobs_checkpoint AS c (job_id, attempt_id, step, path, saved_at, durable_at, stall_s, verdict, verdict_why)
VALUES (%s, %s, %s, %s, LEAST(COALESCE(%s, now()), now()), CASE WHEN %s THEN now() END, %s, '', '')
ON CONFLICT (job_id, path) DO UPDATE SET
    durable_at = {_unless_new("COALESCE(c.durable_at, EXCLUDED.durable_at)", "EXCLUDED.durable_at")},
    saved_at = {_unless_new("c.saved_at", "EXCLUDED.saved_at")},
    stall_s = {_unless_new("COALESCE(c.stall_s, EXCLUDED.stall_s)", "EXCLUDED.stall_s")},
    verdict = {_unless_new("c.verdict", "''")},
    verdict_why = {_unless_new("c.verdict_why", "''")},
    step = EXCLUDED.step, attempt_id = EXCLUDED.attempt_id
WHERE NOT ({IS_SAME_CHECKPOINT}) OR (c.durable_at IS NULL AND EXCLUDED.durable_at IS NOT NULL)
"""  # noqa: S608 - only constants


@dataclass(frozen=True, kw_only=True)
class CheckpointReport:
    """A saved checkpoint, as the job reports it."""

    path: str
    step: int
    saved_at: datetime | None = None
    durable: bool = False
    stall_s: float | None = None


def record_checkpoints(heartbeat: HeartbeatResult, reports: Sequence[CheckpointReport], author: Author) -> int:
    """Store checkpoints and return how many were new.

    A path that is written again with another step, or by another attempt, is a new checkpoint: not durable and not
    verified yet.
    """
    attempt = Attempt.objects.select_related("job").get(pk=heartbeat.attempt_id)
    new_reports = []
    with connection.cursor() as cursor:
        for report in reports:
            where = heartbeat.job_id, heartbeat.attempt_id, report.step, report.path
            cursor.execute(UPSERT_CHECKPOINTS_SQL, [*where, report.saved_at, report.durable, report.stall_s])
            # rowcount is 0 if the checkpoint was already known, because of the WHERE clause of the upsert
            if cursor.rowcount:
                new_reports.append(report)
    # Eviction and recovery read this copy on the attempt, without a query of its checkpoints
    if durable := [report.step for report in new_reports if report.durable]:
        Attempt.objects.filter(pk=attempt.pk).update(saved_at=clock.now(), saved_step=max(durable))
    Event.objects.bulk_create(
        journal.job_event(
            "checkpoint.durable" if report.durable else "checkpoint.saved",
            author,
            attempt.job,
            attempt=attempt,
            detail={"step": report.step, "path": report.path},
        )
        for report in new_reports
    )
    if new_reports:
        live.publish_on_commit(f"job:{attempt.job.public_id}")
    return len(new_reports)
