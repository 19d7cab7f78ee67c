"""Restore: write attempts down again that our database has lost while their cluster kept them.

Who is eligible   jobs of the cluster with a key of this installation that no attempt here has, where the job itself is
                  known and waits. This happens after a failover that lost commits, or when a backup was restored.
What a turn does  one attempt, its allocations and one Event for each; its end too, where it has ended already. GPUs of
                  one that the cluster has not started yet are written down when it starts (`sync`).
Failure story     One transaction for each attempt; the number and the live attempt of a job are unique, so it cannot be
                  written twice. It runs before anything is started in the same turn, so the job cannot start again
                  beside it. A job that does not wait here is left to the next turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from jobs.actions import restore
from jobs.actions.journal import SYNC
from jobs.core.lifecycle import State
from jobs.models import Cluster, Job
from scheduling.backends.base import BackendJob
from scheduling.core import observations
from scheduling.loops.observe.attempt_changes import apply_observations


def restorable_jobs(cluster: Cluster, keys: Iterable[str]) -> dict[str, Job]:
    """Of keys that no attempt has: those whose jobs are ours, with the job."""
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
    chosen, _ = observations.pick_job(seen, "")
    if chosen is None:
        return
    lost = restore.LostAttempt(
        key=key,
        number=int(key.rpartition(".")[2]),
        backend_id=chosen.backend_id,
        started_at=chosen.started_at or now,
        nodes=chosen.nodes,
        gpus=chosen.gpus,
        cancelled=chosen.state == State.CANCELLED,
    )
    attempt = restore.restore(job, lost, author=SYNC)
    apply_observations(attempt, chosen, True, now)
