"""Reads the data of a running instance for the judge: rows and Events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import psycopg

from jobs.core.lifecycle import FINAL_STATES
from tests.acceptance.instance import Instance
from tests.chaos.effects import Effect
from tests.chaos.judge import (
    EndedAttempt,
    Evidence,
    Gpu,
    Holding,
    JobEvent,
    JobRow,
    NodeEvent,
    Preemption,
    RecoveryStep,
)

# The transaction of a row is its xmin; changes of one transaction became visible at once
EVENTS = """
SELECT e.id, e.xmin::text, e.type, j.public_id, coalesce(a.key, ''), e.from_state, e.to_state, e.detail -> 'gpus', e.at
FROM jobs_event e JOIN jobs_job j ON j.id = e.job_id LEFT JOIN jobs_attempt a ON a.id = e.attempt_id ORDER BY e.id
"""
JOBS = """
SELECT j.public_id, j.state, count(a.id), count(a.id) FILTER (WHERE a.ended_at IS NULL)
FROM jobs_job j LEFT JOIN jobs_attempt a ON a.job_id = j.id WHERE j.foreign_id = '' GROUP BY j.id
"""
UNFINISHED = "SELECT count(*) FROM jobs_job WHERE name LIKE 'storm-%%' AND foreign_id = '' AND NOT state = ANY(%s)"
FINALS = "SELECT public_id, state FROM jobs_job WHERE state = ANY(%s) AND foreign_id = ''"
NODE_EVENTS = """
SELECT e.id, n.name, e.type, e.by FROM jobs_event e JOIN jobs_node n ON n.id = e.node_id
WHERE e.type IN ('node.drained', 'node.resumed') ORDER BY e.id
"""
# Jobs of another installation on the same cluster are foreign jobs in this database
NAMES = "SELECT name FROM jobs_job WHERE name LIKE 'storm-%' AND foreign_id = ''"
STEPS = """
SELECT s.decision_id, s.kind, coalesce(n.name, '')
FROM failures_recoverystep s LEFT JOIN jobs_node n ON n.id = s.node_id
"""
ENDED_ATTEMPTS = """
SELECT a.key, a.state, a.stop_state <> '' OR EXISTS (
    SELECT 1 FROM jobs_clustercommand d WHERE d.attempt_id = a.id AND d.kind = 'cancel'
) FROM jobs_attempt a JOIN jobs_job j ON j.id = a.job_id
WHERE a.ended_at IS NOT NULL AND j.name LIKE 'storm-%' AND j.foreign_id = ''
"""
# The times at which the database recorded the changes, by its own clock
HOLDINGS = """
SELECT j.public_id, a.key, n.name, h.gpu, e.at, coalesce(h.released_at, clock_timestamp())
FROM jobs_allocation h JOIN jobs_node n ON n.id = h.node_id JOIN jobs_attempt a ON a.id = h.attempt_id
JOIN jobs_job j ON j.id = a.job_id AND j.name LIKE 'storm-%' AND j.foreign_id = ''
JOIN jobs_event e ON e.attempt_id = a.id AND e.type = 'job.started' WHERE h.gpu IS NOT NULL
"""
COUNTED_NODES = """
SELECT n.name, n.gpus FROM jobs_node n JOIN jobs_cluster c ON c.id = n.cluster_id AND c.address LIKE 'kubernetes:%'
"""
# The newest preemption of each attempt. A withdrawn one has no command any more
PREEMPTIONS = """
SELECT DISTINCT ON (a.id) j.public_id, a.key, e.at, d.created_at, j.preemptible, j.preempt_exempt_time,
    j.preempt_at_checkpoint, j.preemptions_per_day,
    (SELECT min(s.at) FROM jobs_event s WHERE s.attempt_id = a.id AND s.type = 'job.started'),
    ARRAY(SELECT c.at FROM jobs_event c WHERE c.attempt_id = a.id AND c.type = 'checkpoint.durable'),
    ARRAY(SELECT p.ended_at FROM jobs_attempt p WHERE p.job_id = j.id AND p.number < a.number
        AND p.stop_state = 'PREEMPTED' AND p.state <> 'COMPLETED' AND p.ended_at IS NOT NULL)
FROM jobs_event e JOIN jobs_attempt a ON a.id = e.attempt_id JOIN jobs_job j ON j.id = a.job_id
JOIN jobs_clustercommand d ON d.attempt_id = a.id AND d.kind = 'cancel'
WHERE e.type = 'job.preempt_requested' ORDER BY a.id, e.id DESC
"""
# Everything that a turn may write about ended jobs. Wait reasons may change and are left out. Other loops write
# diagnoses after the end; their effects on jobs are included.
DIGEST = """
SELECT md5(string_agg(t, '|' ORDER BY t)) FROM (
    SELECT format('job %s %s %s', id, state, flags) t FROM jobs_job WHERE name LIKE 'storm-%' AND foreign_id = ''
    UNION ALL SELECT format('attempt %s %s %s %s', a.id, a.state, a.ended_at, a.backend_id)
        FROM jobs_attempt a JOIN jobs_job j ON j.id = a.job_id AND j.name LIKE 'storm-%' AND j.foreign_id = ''
    UNION ALL SELECT format('held %s %s %s', h.id, h.gpu, h.released_at) FROM jobs_allocation h
        JOIN jobs_attempt a ON a.id = h.attempt_id
        JOIN jobs_job j ON j.id = a.job_id AND j.name LIKE 'storm-%' AND j.foreign_id = ''
    UNION ALL SELECT format('event %s', e.id) FROM jobs_event e
        JOIN jobs_job j ON j.id = e.job_id AND j.name LIKE 'storm-%' AND j.foreign_id = '' WHERE e.type LIKE 'job.%'
) rows
"""


class Record:
    def __init__(self, instance: Instance) -> None:
        self.instance = instance

    def finals(self) -> dict[str, str]:
        """The present final states; empty if the database is down."""
        with suppress(psycopg.Error, OSError):
            return dict(self.instance.sql(FINALS, [sorted(FINAL_STATES)]).fetchall())
        return {}

    def unfinished_rows(self) -> int:
        """The number of jobs in the database that have not ended."""
        return self.instance.sql(UNFINISHED, [sorted(FINAL_STATES)]).fetchone()[0]

    def unfinished(self, jobs: set[str]) -> set[str]:
        return jobs - set(self.finals())

    def clusters(self) -> list[int]:
        """The ids of all clusters; empty if the database is down."""
        with suppress(psycopg.Error, OSError):
            return [number for (number,) in self.instance.sql("SELECT id FROM jobs_cluster ORDER BY id").fetchall()]
        return []

    def decisions(self) -> str:
        """The number of recovery decisions by state, as text."""
        rows = self.instance.sql("SELECT state, count(*) FROM failures_decision GROUP BY state ORDER BY state")
        return ",".join(f"{state}:{count}" for state, count in rows.fetchall()) or "none"

    def preemptions(self) -> int:
        """The number of preemptions that were not withdrawn."""
        return len(self.instance.sql(PREEMPTIONS).fetchall())

    def term(self) -> int:
        """A number that increases once all clusters have had another turn."""
        return self.instance.sql("SELECT min(term) FROM scheduling_lease WHERE name LIKE 'cluster:%'").fetchone()[0]

    def digest(self) -> str:
        return self.instance.sql(DIGEST).fetchone()[0] or ""

    def evidence(
        self,
        accepted: Mapping[str, str],
        final_once: Mapping[str, str],
        withdrawn: Collection[str],
        effects: Callable[[], Sequence[Effect]],
    ) -> Evidence:
        """Evidence for the judge.

        Effects are read after the rows, so that a command that ends meanwhile may be missing in the rows but not in the
        effects.
        """
        rows = self._at_one_moment()
        return replace(rows, accepted=accepted, final_once=final_once, withdrawn=withdrawn, effects=effects())

    def _at_one_moment(self) -> Evidence:
        """Read all rows in one snapshot, because jobs may change meanwhile."""
        with psycopg.connect(self.instance.surroundings()["DATABASE_URL"]) as session:
            session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            names = [name for (name,) in session.execute(NAMES)]
            return Evidence(
                names=names,
                rows=[
                    JobRow(job=job, state=state, attempts=attempts, live_attempts=live)
                    for job, state, attempts, live in session.execute(JOBS)
                ],
                events=[_job_event(row) for row in session.execute(EVENTS)],
                node_events=[
                    NodeEvent(id=number, node=node, type=what, by=by)
                    for number, node, what, by in session.execute(NODE_EVENTS)
                ],
                steps=[
                    RecoveryStep(decision=decision, kind=kind, node=node)
                    for decision, kind, node in session.execute(STEPS)
                ],
                ended_attempts=[
                    EndedAttempt(key=key, state=state, stop_requested=requested)
                    for key, state, requested in session.execute(ENDED_ATTEMPTS)
                ],
                preemptions=read_preemptions(session),
                counted_nodes=dict(session.execute(COUNTED_NODES)),
                holdings=[
                    Holding(job=job, attempt=attempt, gpu=(node, gpu), since=since, until=until)
                    for job, attempt, node, gpu, since, until in session.execute(HOLDINGS)
                ],
            )


def _job_event(row: tuple) -> JobEvent:
    number, group, what, job, attempt, source, target, gpus, at = row
    return JobEvent(
        id=number,
        group=group,
        type=what,
        job=job,
        attempt=attempt,
        source=source,
        target=target if what in ("job.submitted", "job.state_changed") else "",
        gpus=None if gpus is None else frozenset(_flat(gpus)),
        at=at,
    )


def read_preemptions(session: psycopg.Connection | psycopg.Cursor) -> list[Preemption]:
    """The preemptions that were not withdrawn, with the terms of their jobs."""
    return [_preemption(row) for row in session.execute(PREEMPTIONS)]


def _preemption(row: tuple) -> Preemption:
    job, attempt, decided_at, queued_at, preemptible, exempt, at_checkpoint, per_day, started_at, saved, earlier = row
    return Preemption(
        job=job,
        attempt=attempt,
        decided_at=decided_at,
        queued_at=queued_at,
        preemptible=preemptible,
        exempt=exempt,
        at_checkpoint=at_checkpoint,
        per_day=per_day,
        started_at=started_at,
        saved_at=saved,
        earlier=earlier,
    )


def _flat(gpus: Mapping[str, list[int]]) -> list[Gpu]:
    return [(node, gpu) for node, indices in gpus.items() for gpu in indices]
