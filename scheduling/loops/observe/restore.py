"""Restore attempts that the database has lost but the cluster still has.

Eligible rows     Jobs on the cluster with a key of this installation that no attempt has, if the job is in the database
                  and pending. This happens after a failover that lost commits, or when a backup was restored.
What a turn does  Writes an attempt, its allocations and an Event for each job, and its end if it has ended. If the
                  cluster has not started the job yet, its GPUs are recorded when it starts (`sync`).
Failure story     Each attempt is one transaction. The number of an attempt and the live attempt of a job are unique,
                  so it cannot be restored twice. This runs before jobs are started in the same turn, so the job cannot
                  start a second time. A job that is not pending is retried in the next turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from jobs.actions import restore
from jobs.actions.journal import SYNC
from jobs.core.backend_job import BackendJob
from jobs.core.lifecycle import State
from jobs.models import Cluster, Job
from scheduling.loops.observe import observations
from scheduling.loops.observe.attempt_changes import apply_observations


def restorable_jobs(cluster: Cluster, keys: Iterable[str]) -> dict[str, Job]:
    """Return the jobs of this installation by key, for keys that no attempt has."""
    ids = {key: _public_id_of_key(key) for key in keys}
    rows = Job.objects.filter(cluster=cluster, public_id__in=set(ids.values()) - {""}, foreign_id="")
    jobs = {job.public_id: job for job in rows.select_related("cluster")} if any(ids.values()) else {}
    return {key: jobs[public_id] for key, public_id in ids.items() if public_id in jobs}


def _public_id_of_key(key: str) -> str:
    public_id, _, number = key.rpartition(".")
    return public_id if number.isascii() and number.isdigit() and len(number) <= 4 and ":" not in key else ""


def restore_lost_attempt(job: Job, key: str, seen: Sequence[BackendJob], now: datetime) -> None:
    if job.state != State.PENDING:
        return
    picked, _ = observations.pick_job(seen, "")
    if picked is None:
        return
    lost = restore.LostAttempt(
        key=key,
        number=int(key.rpartition(".")[2]),
        backend_id=picked.backend_id,
        started_at=picked.started_at or now,
        nodes=picked.nodes,
        gpus=picked.gpus,
        cancelled=picked.state == State.CANCELLED,
    )
    attempt = restore.restore(job, lost, author=SYNC)
    apply_observations(attempt, picked, True, now)
