"""Kill one process of the running demo with -9, then everything, and start again: no job is lost, no GPU held twice."""

import os
import signal

import httpx
import pytest

from tests.acceptance.instance import Instance, until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

# Two holdings of one GPU whose times overlap, now or at any time since the first start.
DOUBLE = """
SELECT a.node_id, a.gpu FROM jobs_allocation a JOIN jobs_allocation b
    ON a.node_id = b.node_id AND a.gpu = b.gpu AND a.id < b.id
    AND tstzrange(a.held_at, a.released_at) && tstzrange(b.held_at, b.released_at)
"""
# A job that is live without exactly one live attempt, or the other way round.
TORN = """
SELECT j.public_id FROM jobs_job j LEFT JOIN jobs_attempt a ON a.job_id = j.id AND a.ended_at IS NULL
    WHERE (j.state IN ('RUNNING', 'SUSPENDED')) <> (a.id IS NOT NULL)
"""
# Terminal states that moved on, and moves without an Event: the last Event says the state the row has.
UNTOLD = """
SELECT j.public_id FROM jobs_job j JOIN LATERAL (
    SELECT to_state FROM jobs_event e WHERE e.job_id = j.id AND to_state <> '' ORDER BY id DESC LIMIT 1
) e ON true WHERE e.to_state <> j.state
"""


def ids(running: Instance) -> set[str]:
    return {row[0] for row in running.sql("SELECT public_id FROM jobs_job")}


def ended(running: Instance) -> dict[str, str]:
    finals = "SELECT public_id, state FROM jobs_job WHERE state NOT IN ('PENDING', 'RUNNING', 'SUSPENDED')"
    return dict(running.sql(finals).fetchall())


def keys_on_the_cluster(running: Instance) -> list[str]:
    (address,) = running.sql("SELECT address FROM jobs_cluster").fetchone()
    token = {"X-SLURM-USER-TOKEN": running.place.cluster_token.read_text().strip()}
    jobs = httpx.get(f"{address}/slurm/v0.0.42/jobs", headers=token, timeout=10, trust_env=False).json()["jobs"]
    return [job["comment"] for job in jobs if job["comment"].startswith("acme:")]


@pytest.mark.parametrize("victim", ["worker", "beat", "web", "valkey", "postgres", "cluster"])
def test_no_job_is_lost_and_no_gpu_held_twice(instance, victim):
    instance.start().ready()
    until(lambda: len(ended(instance)) >= 3, what="no job came to an end")
    os.kill(until(lambda: instance.pids().get(victim)), signal.SIGKILL)
    before, over = (set(), {}) if victim == "postgres" else (ids(instance), ended(instance))

    instance.process.kill()
    instance.process.wait()
    instance.start().ready()

    assert before <= ids(instance)
    assert over.items() <= ended(instance).items()
    until(lambda: len(ended(instance)) >= len(over) + 5, what="jobs do not move any more")
    for question in (DOUBLE, TORN, UNTOLD):
        assert instance.sql(question).fetchall() == []
    sent = keys_on_the_cluster(instance)
    assert len(sent) == len(set(sent))
    assert instance.stop() == 0
