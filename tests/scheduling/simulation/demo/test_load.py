"""What the users of the demo submit: pretraining runs of days, and short jobs on the other GPUs."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest

from jobs.core.lifecycle import JobKind
from scheduling.simulation.demo import users
from scheduling.simulation.machines import workload
from tests import make

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)


@pytest.fixture
def cluster():
    return make.cluster(name="kalos", nodes=12)


def missing(cluster):
    load = users.load_of(cluster, speed=4.0, longest_s=4500.0)
    return list(users.missing_long_runs(cluster, load, Random(1)))


def test_load_waits_for_nodes():
    assert users.load_of(make.cluster(name="kalos", nodes=0), speed=4.0, longest_s=4500.0) is None


def test_pretraining_runs_take_days_and_ask_for_whole_days(cluster):
    runs = missing(cluster)

    assert [(run.nodes, run.gpus_per_node) for run in runs] == [(3, 8), (2, 8)]
    assert all(timedelta(seconds=run.duration_s) < run.time_limit for run in runs)
    assert all(run.time_limit > DAY and run.time_limit % DAY == timedelta(0) for run in runs)


def test_only_runs_that_ended_are_replaced(cluster):
    make.job(cluster=cluster, kind=JobKind.PRETRAIN, nodes=3, gpus_per_node=8, time_limit="3-00:00:00")
    make.job(cluster=cluster, kind=JobKind.PRETRAIN, nodes=2, gpus_per_node=8, time_limit="1:00:00")

    assert [run.nodes for run in missing(cluster)] == [2]


def test_short_jobs_are_no_pretraining_and_are_offered_the_other_gpus(cluster):
    load = users.load_of(cluster, speed=4.0, longest_s=4500.0)
    dice = Random(1)
    jobs = [workload.sample_job(dice, load.short_jobs) for _ in range(300)]

    assert load.short_jobs.gpus == (12 - 3 - 2) * 8
    assert JobKind.PRETRAIN not in {job.kind for job in jobs}
    assert max(job.duration_s for job in jobs) <= 4500
    assert {job.time_limit % timedelta(minutes=15) for job in jobs} == {timedelta(0)}
