"""The record of a running instance, read for the judge: rows, Events, and what the cluster itself remembers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import httpx
import psycopg

from jobs.lifecycle import FINAL
from tests.acceptance.instance import Instance
from tests.chaos.judge import Closing, Done, Evidence, Gpu, Kept, Ran, Told

# The transaction of a row is its xmin, and what one transaction tells became true at once
EVENTS = """
SELECT e.id, e.xmin::text, e.what, j.public_id, coalesce(a.key, ''), e.from_state, e.to_state, e.detail -> 'gpus'
FROM jobs_event e JOIN jobs_job j ON j.id = e.job_id LEFT JOIN jobs_attempt a ON a.id = e.attempt_id ORDER BY e.id
"""
JOBS = """
SELECT j.public_id, j.state, count(a.id), count(a.id) FILTER (WHERE a.ended_at IS NULL)
FROM jobs_job j LEFT JOIN jobs_attempt a ON a.job_id = j.id GROUP BY j.id
"""
CLOSINGS = """
SELECT e.id, n.name, e.what, e.by FROM jobs_event e JOIN jobs_node n ON n.id = e.node_id
WHERE e.what IN ('node.drained', 'node.resumed') ORDER BY e.id
"""
STEPS = """
SELECT s.decision_id, s.kind, coalesce(n.name, '') FROM failures_step s LEFT JOIN jobs_node n ON n.id = s.node_id
"""
# Everything that a turn may write about jobs at rest; who waits is told anew, which is an answer and not a change. Why
# a job failed, and what is to be done about it, other loops say after its end; what they do to a job is in here, too.
DIGEST = """
SELECT md5(string_agg(t, '|' ORDER BY t)) FROM (
    SELECT format('job %s %s %s', id, state, flags) t FROM jobs_job WHERE name LIKE 'storm-%'
    UNION ALL SELECT format('attempt %s %s %s %s', a.id, a.state, a.ended_at, a.backend_id)
        FROM jobs_attempt a JOIN jobs_job j ON j.id = a.job_id AND j.name LIKE 'storm-%'
    UNION ALL SELECT format('held %s %s %s', h.id, h.gpu, h.released_at) FROM jobs_allocation h
        JOIN jobs_attempt a ON a.id = h.attempt_id JOIN jobs_job j ON j.id = a.job_id AND j.name LIKE 'storm-%'
    UNION ALL SELECT format('event %s', e.id) FROM jobs_event e
        JOIN jobs_job j ON j.id = e.job_id AND j.name LIKE 'storm-%' WHERE e.what LIKE 'job.%'
) rows
"""


class Record:
    def __init__(self, instance: Instance) -> None:
        self.instance = instance

    def finals(self) -> dict[str, str]:
        """Final states as they are just now; nothing while the database is away."""
        with suppress(psycopg.Error, OSError):
            rows = self.instance.sql("SELECT public_id, state FROM jobs_job WHERE state = ANY(%s)", [sorted(FINAL)])
            return dict(rows.fetchall())
        return {}

    def unfinished(self, jobs: set[str]) -> set[str]:
        return jobs - set(self.finals())

    def cluster(self) -> int:
        with suppress(psycopg.Error, OSError):
            return self.instance.sql("SELECT id FROM jobs_cluster").fetchone()[0]
        return 1

    def decisions(self) -> str:
        """How many of each course, as recovery left them."""
        rows = self.instance.sql("SELECT course, count(*) FROM failures_decision GROUP BY course ORDER BY course")
        return ",".join(f"{course}:{count}" for course, count in rows.fetchall()) or "none"

    def term(self) -> int:
        return self.instance.sql("SELECT max(term) FROM scheduling_lease").fetchone()[0]

    def digest(self) -> str:
        return self.instance.sql(DIGEST).fetchone()[0] or ""

    def evidence(self, accepted: Mapping[str, str], final_once: Mapping[str, str]) -> Evidence:
        return replace(self._at_one_moment(), accepted=accepted, final_once=final_once, ran=self._on_the_cluster())

    def _at_one_moment(self) -> Evidence:
        """One snapshot: jobs may be moving while we look."""
        with psycopg.connect(self.instance.surroundings()["DATABASE_URL"]) as session:
            session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            kept = [
                Kept(job=job, state=state, attempts=attempts, live_attempts=live)
                for job, state, attempts, live in session.execute(JOBS).fetchall()
            ]
            names = [name for (name,) in session.execute("SELECT name FROM jobs_job WHERE name LIKE 'storm-%'")]
            return Evidence(
                names=names,
                rows=kept,
                told=[_told(row) for row in session.execute(EVENTS).fetchall()],
                closings=[
                    Closing(id=number, node=node, what=what, by=by)
                    for number, node, what, by in session.execute(CLOSINGS).fetchall()
                ],
                done=[
                    Done(decision=decision, kind=kind, node=node)
                    for decision, kind, node in session.execute(STEPS).fetchall()
                ],
            )

    def _on_the_cluster(self) -> list[Ran]:
        """Asked directly, past everything of ours."""
        (address,) = self.instance.sql("SELECT address FROM jobs_cluster").fetchone()
        token = {"X-SLURM-USER-TOKEN": self.instance.place.cluster_token.read_text().strip()}
        answer = httpx.get(f"{address}/slurm/v0.0.42/jobs", headers=token, timeout=30, trust_env=False)
        return [
            Ran(
                key=job["comment"].removeprefix("acme:"),
                state=job["job_state"][0],
                started=job["start_time"]["number"] > 0,
            )
            for job in answer.raise_for_status().json()["jobs"]
            if job["comment"].startswith("acme:")
        ]


def _told(row: tuple) -> Told:
    number, group, what, job, attempt, source, target, gpus = row
    return Told(
        id=number,
        group=group,
        what=what,
        job=job,
        attempt=attempt,
        source=source,
        target=target if what in ("job.submitted", "job.moved") else "",
        gpus=None if gpus is None else frozenset(_flat(gpus)),
    )


def _flat(gpus: Mapping[str, list[int]]) -> list[Gpu]:
    return [(node, gpu) for node, indices in gpus.items() for gpu in indices]
