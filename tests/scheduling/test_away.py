"""A cluster that nobody reaches for minutes: a real server that is killed, turns in between, and it is there again."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta

import pytest

from jobs import clock
from jobs.lifecycle import State
from jobs.models import Allocation, Attempt, Cluster, Deed, Event, Job
from scheduling.loops.turn import turn_once
from tests import make
from tests.cluster.running import ClusterProcess
from tests.patience import until
from tests.scheduling.test_turn import free

LASTS = {"gpus_per_node": 1, "command": "train", "environment": {"SIM_DURATION_S": "86400"}}


@pytest.fixture
def later(monkeypatch):
    """Set the clock of all loops ahead by so many seconds."""
    now, ahead = clock.now, [0]
    monkeypatch.setattr(clock, "now", lambda: now() + timedelta(seconds=ahead[0]))
    return lambda seconds: ahead.__setitem__(0, seconds)


def test_a_cluster_that_is_away_for_two_minutes_costs_no_job(db, tmp_path, later):
    with ClusterProcess(tmp_path, "--nodes", "2") as slurm, closing(slurm.backend()) as backend:
        cluster = make.cluster(nodes=0, policy="fifo")

        def turn():
            turn_once(Cluster.objects.get(pk=cluster.pk), lambda _: backend, free(), clock.now())
            return Job.objects.filter(state=State.RUNNING, flags=[]).count()

        turn()  # it learns its nodes
        runs = make.job(cluster=cluster, **LASTS)
        assert until(turn) == 1
        sent_in_vain = make.attempt(make.job(cluster=cluster, **LASTS), on=["seren-002"])
        told = Event.objects.count()

        slurm.kill()
        for seconds in range(0, 121, 10):
            later(seconds)
            turn()

        assert "refused" in Cluster.objects.get().trouble.lower()
        assert not Attempt.objects.filter(ended_at__isnull=False).exists()
        assert not Attempt.objects.exclude(missing_since=None).exists()
        assert Allocation.objects.live().count() == 2
        assert (Event.objects.count(), Job.objects.get(pk=runs.pk).state) == (told, State.RUNNING)
        assert 1 < Deed.objects.get(attempt=sent_in_vain).tries < 10

        slurm.start()
        later(180)
        assert until(lambda: turn() == 2)
        assert Cluster.objects.get().trouble == ""
        assert [job.key for job in backend.jobs()] == list(Attempt.objects.order_by("pk").values_list("key", flat=True))
