"""Progress that a running attempt reports: its credentials, and the only code that writes it.

The token is derived from the attempt's key, so nothing is stored and nothing can be stolen from the database. It is
good for that attempt alone, and only as long as the attempt lives: the statement that writes looks at that.
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
from jobs.models import Attempt, Event, ProgressSource, Pulse, RankTimes, clock

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
}


def run_token(key: str) -> str:
    return f"{RUN_TOKEN_PREFIX}{key}.{_run_token_signature(key)}"


def run_token_key(token: str) -> str | None:
    """The key of the attempt that this token was made for; None if we made no such token."""
    if not token.startswith(RUN_TOKEN_PREFIX):
        return None
    key, _, signature = token.removeprefix(RUN_TOKEN_PREFIX).rpartition(".")
    return key if hmac.compare_digest(signature.encode(), _run_token_signature(key).encode()) else None


def _run_token_signature(key: str) -> str:
    return salted_hmac("acme.progress", key, algorithm="sha256").hexdigest()[:40]


HeartbeatRows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class HeartbeatResult:
    attempt_id: int
    job_id: int
    stop_as: str
    rows: int

    def shown(self, checkpoints: int = 0) -> dict[str, Any]:
        return {"heartbeats": self.rows, "checkpoints": checkpoints, "stop_as": self.stop_as}


_column_names = ", ".join(HEARTBEAT_COLUMNS)
_value_columns = [name for name in HEARTBEAT_COLUMNS if name != "at"]
# One statement for many attempts: which of them live, their rows, their newest values. What a heartbeat leaves out
# stays as it was. Always in the same order, so that two of these that meet wait for each other and do not deadlock.
# Whose steps his log has told so far is passed over here where he tells some himself: `begun` says so.
INSERT_HEARTBEATS_SQL = f"""
WITH live AS (
    SELECT key, id, job_id, stop_as, key = ANY(%s)
        AND (SELECT source FROM jobs_pulse p WHERE p.attempt_id = jobs_attempt.id) <> '' IS TRUE AS begun
    FROM jobs_attempt WHERE key = ANY(%s) AND ended_at IS NULL),
said AS MATERIALIZED (
    SELECT live.id AS attempt_id, LEAST(COALESCE(v.at, clock_timestamp()), clock_timestamp()) AS at,
           {", ".join(f"v.{name}" for name in _value_columns)}
    FROM unnest(%s::text[], {", ".join(f"%s::{kind}[]" for kind in HEARTBEAT_COLUMNS.values())})
        AS v (key, {_column_names})
    JOIN live USING (key) WHERE NOT begun),
kept AS (
    INSERT INTO jobs_progress (attempt_id, {_column_names})
    SELECT attempt_id, {_column_names} FROM said ORDER BY attempt_id, at
    ON CONFLICT DO NOTHING RETURNING attempt_id),
beat AS (
    INSERT INTO jobs_pulse (attempt_id, {_column_names})
    SELECT DISTINCT ON (attempt_id) attempt_id, {_column_names} FROM said ORDER BY attempt_id, at DESC
    ON CONFLICT (attempt_id) DO UPDATE SET heard_at = clock_timestamp(), at = EXCLUDED.at,
        {", ".join(f"{name} = COALESCE(EXCLUDED.{name}, jobs_pulse.{name})" for name in _value_columns)}
    WHERE EXCLUDED.at >= jobs_pulse.at)
SELECT key, id, job_id, stop_as, COALESCE(news.count, 0), begun FROM live
LEFT JOIN (SELECT attempt_id, count(*) FROM kept GROUP BY attempt_id) AS news ON news.attempt_id = live.id
"""  # noqa: S608 - the names are ours
# Who begins to report steps himself owes nothing to what was read from his log, whatever his clock says: it goes, for
# detectors would compare the one with the other. Not of one that has ended meanwhile: his report is refused, and what
# the log told is all there is. In the order of NOTE. Two statements, for the first may wait until whoever reads the log
# has committed what he read: only a statement that begins after that sees his row.
LOCK_LOG_PULSES_SQL = """
SELECT p.attempt_id FROM jobs_pulse p JOIN jobs_attempt a ON a.id = p.attempt_id
WHERE a.key = ANY(%s) AND a.ended_at IS NULL AND p.source <> ''
ORDER BY p.attempt_id FOR UPDATE OF p FOR SHARE OF a
"""
DELETE_LOG_PROGRESS_SQL = """
WITH rows AS (DELETE FROM jobs_progress WHERE attempt_id = ANY(%(begun)s))
DELETE FROM jobs_pulse WHERE attempt_id = ANY(%(begun)s)
"""


def record_heartbeats(reports: Mapping[str, HeartbeatRows]) -> dict[str, HeartbeatResult]:
    """By the attempt's key; one that does not live any more is left out. The same heartbeats twice are kept once.

    Nearly all are one statement. Whoever takes over from what his log told is written by three more, once in his life:
    if the process dies before their commit, his pulse is the log's still, nobody was told that anything was kept, and
    his next report takes over. If he ends before it, his report is left out; if another report of his comes at the same
    time, the second waits for the first, finds nothing to forget, and is kept beside it.
    """
    noted, begun = _insert_heartbeats(reports)
    if begun:
        theirs = {key: reports[key] for key in begun}
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(LOCK_LOG_PULSES_SQL, [begun])
                cursor.execute(DELETE_LOG_PROGRESS_SQL, {"begun": [row[0] for row in cursor.fetchall()]})
            noted |= _insert_heartbeats(theirs)[0]
    return noted


def _insert_heartbeats(reports: Mapping[str, HeartbeatRows]) -> tuple[dict[str, HeartbeatResult], list[str]]:
    """What was noted, and whose log must be forgotten before anything can be."""
    steps = [key for key, beats in reports.items() if any(beat.get("step") is not None for beat in beats)]
    keys = [key for key, beats in reports.items() for _ in beats]
    columns = [[beat.get(name) for beats in reports.values() for beat in beats] for name in HEARTBEAT_COLUMNS]
    with connection.cursor() as cursor:
        cursor.execute(INSERT_HEARTBEATS_SQL, [steps, list(reports), keys, *columns])
        rows = cursor.fetchall()
    noted = {
        key: HeartbeatResult(attempt_id=id, job_id=job, stop_as=stop_as, rows=count)
        for key, id, job, stop_as, count, begun in rows
        if not begun
    }
    return noted, sorted(row[0] for row in rows if row[-1])


def record_attempt_heartbeats(key: str, beats: HeartbeatRows) -> HeartbeatResult | None:
    return record_heartbeats({key: beats}).get(key)


# The same for one attempt by its log: only while it reports no step itself, which is looked at again where the rows
# meet, since its first report may come meanwhile. One that has ended may be read to its end.
_log_step_values = ", ".join(f"%({name})s::{kind}" for name, kind in HEARTBEAT_COLUMNS.items())
INSERT_LOG_STEP_SQL = f"""
WITH live AS (SELECT a.id FROM jobs_attempt a LEFT JOIN jobs_pulse p ON p.attempt_id = a.id
    WHERE a.id = %(attempt)s AND (p.step IS NULL OR p.source <> '')),
beat AS (
    INSERT INTO jobs_pulse (attempt_id, {_column_names}, source, steps_total)
    SELECT id, {_log_step_values}, %(source)s::text, %(total)s::bigint FROM live
    ON CONFLICT (attempt_id) DO UPDATE SET heard_at = clock_timestamp(), at = EXCLUDED.at,
        source = CASE WHEN jobs_pulse.source = '' THEN EXCLUDED.source ELSE jobs_pulse.source END,
        steps_total = (SELECT total FROM (VALUES (COALESCE(EXCLUDED.steps_total, jobs_pulse.steps_total))) AS v (total)
            WHERE total >= EXCLUDED.step),
        {", ".join(f"{name} = COALESCE(EXCLUDED.{name}, jobs_pulse.{name})" for name in _value_columns)}
        WHERE jobs_pulse.step IS NULL OR jobs_pulse.source <> ''
    RETURNING attempt_id)
INSERT INTO jobs_progress (attempt_id, {_column_names}) SELECT attempt_id, {_log_step_values} FROM beat
ON CONFLICT DO NOTHING
"""  # noqa: S608 - the names are ours


def record_log_step(attempt_id: int, beat: Mapping[str, Any], *, total: int | None, is_late: bool) -> None:
    """What its log tells of a step. It is nothing where the attempt reports steps itself."""
    values = {name: beat.get(name) for name in HEARTBEAT_COLUMNS}
    source = ProgressSource.LATE if is_late else ProgressSource.LOG
    with connection.cursor() as cursor:
        cursor.execute(INSERT_LOG_STEP_SQL, {**values, "attempt": attempt_id, "source": str(source), "total": total})


def record_log_checkpoint(attempt_id: int, *, step: int, path: str, saved_at: datetime) -> None:
    """A checkpoint as its log tells of it: for people to see. It is no Checkpoint, for nobody has looked."""
    told = Pulse.objects.filter(attempt=attempt_id).exclude(source=ProgressSource.REPORTS)
    told.update(saved_step=step, saved_path=path, saved_at=saved_at)


UPSERT_SECTION_SQL = """
INSERT INTO jobs_section AS s (attempt_id, name, began_at, ended_at)
SELECT %s, %s, LEAST(%s, clock_timestamp()), CASE WHEN v.over IS NOT NULL THEN LEAST(v.over, clock_timestamp()) END
FROM (VALUES (%s::timestamptz)) AS v (over)
ON CONFLICT (attempt_id, began_at, name) DO UPDATE SET ended_at = COALESCE(s.ended_at, EXCLUDED.ended_at)
"""


@dataclass(frozen=True, kw_only=True)
class SectionReport:
    """A time in which no step is due: it has begun, or it is over."""

    name: str
    began_at: datetime
    ended_at: datetime | None = None


def record_sections(noted: HeartbeatResult, declared: Sequence[SectionReport]) -> None:
    """Said twice, or its end without its begin, it is one section all the same."""
    with connection.cursor() as cursor:
        for one in declared:
            cursor.execute(UPSERT_SECTION_SQL, [noted.attempt_id, one.name, one.began_at, one.ended_at])


MAX_RANK_TIMES = 16


@dataclass(frozen=True, kw_only=True)
class RankTimesReport:
    """How long each rank computed in one step; `nodes` and `groups` have the same positions."""

    seconds: Sequence[float]
    nodes: Sequence[str]
    groups: Sequence[str] = ()


def record_rank_times(noted: HeartbeatResult, told: Sequence[RankTimesReport]) -> None:
    """Only the newest ones are of use."""
    rows = [
        RankTimes(attempt_id=noted.attempt_id, seconds=one.seconds, nodes=one.nodes, groups=one.groups) for one in told
    ]
    RankTimes.objects.bulk_create(rows)
    mine = RankTimes.objects.filter(attempt=noted.attempt_id).order_by("-pk")
    if kept := list(mine.values_list("pk", flat=True)[:MAX_RANK_TIMES]):
        mine.filter(pk__lt=kept[-1]).delete()


def set_stacks_signal(noted: HeartbeatResult, signal: str | None) -> None:
    """What its processes answer with their stacks; nothing said changes nothing, an empty word takes it back."""
    if signal is not None:
        Attempt.objects.filter(pk=noted.attempt_id).exclude(stacks_signal=signal).update(stacks_signal=signal)


# The same step at the same place, saved by another attempt, is another checkpoint: that one went back and came again
SAME_CHECKPOINT_SQL = "(EXCLUDED.step, EXCLUDED.attempt_id) IS NOT DISTINCT FROM (c.step, c.attempt_id)"
UPSERT_CHECKPOINTS_SQL = f"""
INSERT INTO jobs_checkpoint AS c (job_id, attempt_id, step, path, saved_at, durable_at, stall_s, verdict, verdict_why)
VALUES (%s, %s, %s, %s, LEAST(COALESCE(%s, now()), now()), CASE WHEN %s THEN now() END, %s, '', '')
ON CONFLICT (job_id, path) DO UPDATE SET
    durable_at = CASE WHEN {SAME_CHECKPOINT_SQL} THEN COALESCE(c.durable_at, EXCLUDED.durable_at)
        ELSE EXCLUDED.durable_at END,
    saved_at = CASE WHEN {SAME_CHECKPOINT_SQL} THEN c.saved_at ELSE EXCLUDED.saved_at END,
    stall_s = CASE WHEN {SAME_CHECKPOINT_SQL} THEN COALESCE(c.stall_s, EXCLUDED.stall_s) ELSE EXCLUDED.stall_s END,
    verdict = CASE WHEN {SAME_CHECKPOINT_SQL} THEN c.verdict ELSE '' END,
    verdict_why = CASE WHEN {SAME_CHECKPOINT_SQL} THEN c.verdict_why ELSE '' END,
    step = EXCLUDED.step, attempt_id = EXCLUDED.attempt_id
WHERE NOT ({SAME_CHECKPOINT_SQL}) OR (c.durable_at IS NULL AND EXCLUDED.durable_at IS NOT NULL)
"""  # noqa: S608 - constants alone


@dataclass(frozen=True, kw_only=True)
class CheckpointReport:
    path: str
    step: int
    saved_at: datetime | None = None
    durable: bool = False
    stall_s: float | None = None


def record_checkpoints(noted: HeartbeatResult, saved: Sequence[CheckpointReport], author: Author) -> int:
    """How many were news. A path that is written again at another step, or by another attempt, is another checkpoint:
    not durable yet, not judged yet."""
    attempt = Attempt.objects.select_related("job").get(pk=noted.attempt_id)
    news = []
    with connection.cursor() as cursor:
        for one in saved:
            where = noted.job_id, noted.attempt_id, one.step, one.path
            cursor.execute(UPSERT_CHECKPOINTS_SQL, [*where, one.saved_at, one.durable, one.stall_s])
            if cursor.rowcount:
                news.append(one)
    if durable := [one.step for one in news if one.durable]:
        Attempt.objects.filter(pk=attempt.pk).update(saved_at=clock.now(), saved_step=max(durable))
    Event.objects.bulk_create(
        journal.job_event(
            "checkpoint.durable" if one.durable else "checkpoint.saved",
            author,
            attempt.job,
            attempt=attempt,
            detail={"step": one.step, "path": one.path},
        )
        for one in news
    )
    if news:
        live.publish_on_commit(f"job:{attempt.job.public_id}")
    return len(news)
