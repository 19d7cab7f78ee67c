"""An outage of a cluster for two minutes and its permitted effects, for the simulated cluster and for a real Slurm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from django.db import connection

from jobs.core.lifecycle import FINAL_STATES, State
from jobs.models import Allocation, Attempt, Cluster, ClusterCommand, Event, Job, clock
from scheduling.backends.base import Backend
from scheduling.loops.turn import run_turn_once
from tests import make
from tests.patience import until
from tests.scheduling.loops.test_turn import free
from tests.statements import DatabaseClock

LASTS = {
    "gpus_per_node": 1,
    "cpus_per_node": 1,
    "memory_per_node": "100M",
    "command": "sleep 86400",
    "environment": {"SIM_DURATION_S": "86400"},
}


@dataclass(frozen=True, kw_only=True)
class Away:
    """A cluster whose API can be cut off; its jobs continue meanwhile."""

    backend: Backend
    nodes: tuple[str, ...]
    output: Path
    cut: Callable[[], None]
    mend: Callable[[], None]


def check_outage_costs_no_job(slurm: Away) -> None:
    """Turns continue during the outage. The loops read the database's clock, so the test does not wait."""
    database_clock = DatabaseClock()
    with connection.execute_wrapper(database_clock):
        _check_outage_costs_no_job(slurm, database_clock)


def _check_outage_costs_no_job(slurm: Away, database_clock: DatabaseClock) -> None:
    cluster = make.cluster(nodes=0, policy="fifo", log_root=str(slurm.output))

    def turn() -> int:
        run_turn_once(Cluster.objects.get(pk=cluster.pk), lambda _: slurm.backend, free(), clock.now())
        return Job.objects.filter(state=State.RUNNING, flags=[], foreign_id="").count()

    def event_count() -> int:
        return Event.objects.filter(job__foreign_id="").count()

    turn()  # the first turn reads the nodes
    runs = make.job(cluster=cluster, **LASTS)
    assert until(turn) == 1
    undelivered = make.job(cluster=cluster, **LASTS)
    sent_in_vain = make.attempt(undelivered, on=[slurm.nodes[1]], log_path=str(slurm.output / "vain.log"))
    events_before = event_count()

    slurm.cut()
    for seconds in range(0, 121, 10):
        database_clock.ahead_s = seconds
        turn()

    assert "refused" in Cluster.objects.get().last_error.lower()
    assert not Attempt.objects.filter(ended_at__isnull=False, job__foreign_id="").exists()
    assert not Attempt.objects.exclude(missing_since=None).exists()
    assert Allocation.objects.live().filter(gpu__isnull=False).count() == 2
    assert (event_count(), Job.objects.get(pk=runs.pk).state) == (events_before, State.RUNNING)
    assert 1 < ClusterCommand.objects.get(attempt=sent_in_vain).tries < 10

    slurm.mend()
    database_clock.ahead_s = 180
    assert until(lambda: turn() == 2)
    assert Cluster.objects.get().last_error == ""
    _check_each_runs_once(slurm.backend)


def _check_each_runs_once(backend: Backend) -> None:
    """Check that each attempt runs once on the cluster, then cancel all, because other tests use the cluster."""
    ours = Attempt.objects.filter(job__foreign_id="").values_list("key", flat=True)
    there = [job for job in backend.jobs() if job.key in set(ours)]
    assert sorted(job.key for job in there) == sorted(ours)
    for job in there:
        backend.cancel(job.backend_id)
    until(lambda: all(backend.find(key).state in FINAL_STATES for key in ours))
