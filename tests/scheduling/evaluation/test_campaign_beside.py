"""A campaign beside a pretraining job, on a simulated cluster in a process of its own."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

import pytest
from django.db.models import Sum

from jobs.models import Allocation, Cluster, Event, Job, clock
from scheduling.evaluation.actions import campaigns as campaign_actions
from scheduling.evaluation.loops.campaigns import coordinate_campaigns_once
from scheduling.evaluation.loops.staging import advance_stagings_once
from scheduling.evaluation.rules import campaign_requests
from scheduling.loops.turn import run_turn
from scheduling.models import Campaign, Shard
from tests import make
from tests.patience import until
from tests.scheduling.simulation.slurm.running import ClusterProcess

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(2700)]

DATASETS = [{"name": "humaneval", "samples": 164}, {"name": "gsm8k", "samples": 1319}]


@pytest.fixture
def process(tmp_path_factory, request):
    options = ("--nodes", "3", "--trial-speed", str(getattr(request, "param", 2000)))
    with ClusterProcess(tmp_path_factory.mktemp("beside"), *options) as running:
        yield running


def campaign(cluster: Cluster, datasets: list[dict[str, Any]] = DATASETS) -> Campaign:
    commands = {"infer": "answer", "metric": "score", "output_root": "/shared/out", "stage_root": "/dev/shm"}
    team = make.team(ada="researcher")
    suite = campaign_actions.define_suite(
        campaign_requests.parse_suite({"name": "core", "datasets": datasets, **commands}),
        team=team,
        author=make.author(),
    )
    wanted = campaign_requests.parse_campaign({"checkpoints": ["/checkpoints/run/step-1000"], "nodes": 3})
    return campaign_actions.create_campaign(
        wanted, suite=suite, cluster=cluster, team=team, author=make.author(), now=clock.now()
    )


def one_turn(row, backend):
    run_turn(row.pk, "test", lambda _: backend)
    now = clock.now()
    advance_stagings_once(now)
    coordinate_campaigns_once(now)


def test_campaign_uses_only_gpus_that_pretraining_does_not_use(process):
    row = Cluster.objects.create(
        name="beside", mode="drive", address=process.address, log_root=str(process.log_root), policy="acme"
    )
    with closing(process.backend()) as backend:
        turn = partial(one_turn, row, backend)
        turn()
        hints = {"SIM_DURATION_S": "86400", "SIM_END": "COMPLETED"}
        pretraining = make.job(cluster=row, kind="pretrain", nodes=2, gpus_per_node=8, environment=hints)

        def is_running() -> bool:
            turn()
            pretraining.refresh_from_db()
            return pretraining.attempts.filter(confirmed_at__isnull=False).exists()

        until(is_running, within_s=600, what="pretraining's start")
        asked_for = campaign(row)

        def is_over() -> bool:
            turn()
            asked_for.refresh_from_db()
            return asked_for.state not in ("PENDING", "RUNNING")

        until(is_over, within_s=1800, what="the campaign's end")

    pretraining.refresh_from_db()
    attempt = pretraining.attempts.get()
    held = set(attempt.allocations.values_list("node__name", flat=True))
    on_gpus = Job.objects.filter(trial__campaign=asked_for, trial__kind="infer")
    scored = Job.objects.filter(trial__campaign=asked_for, trial__kind="score")
    shards = Shard.objects.filter(evaluation__campaign=asked_for)

    assert asked_for.state == "COMPLETED"
    assert (pretraining.state, attempt.stop_state, attempt.ended_at) == ("RUNNING", "", None)
    assert len(held) == 2
    assert not held & set(on_gpus.values_list("required_node", flat=True))
    assert {job.gpus for job in scored} == {0}
    assert shards.aggregate(Sum("samples"))["samples__sum"] == 164 + 1319
    assert not shards.filter(scored_by=None).exists()


@pytest.mark.parametrize("process", [20], indirect=True)
def test_new_pretraining_job_gets_all_gpus_of_a_campaign(process):
    """The shards of this dataset never come to their end within the grace, so nobody is waited for."""
    row = Cluster.objects.create(
        name="beside", mode="drive", address=process.address, log_root=str(process.log_root), policy="acme"
    )
    with closing(process.backend()) as backend:
        turn = partial(one_turn, row, backend)
        turn()
        asked_for = campaign(row, [{"name": "endless", "samples": 10**8, "infer_s": 10**7}])
        trials = Job.objects.filter(trial__campaign=asked_for, trial__kind="infer")

        def held() -> int:
            turn()
            live = Allocation.objects.filter(released_at=None, gpu__isnull=False)
            return live.filter(attempt__job__in=trials, attempt__confirmed_at__isnull=False).count()

        until(lambda: held() == 24, within_s=1800, what="trials on all GPUs")
        hints = {"SIM_DURATION_S": "86400", "SIM_END": "COMPLETED"}
        pretraining = make.job(cluster=row, kind="pretrain", nodes=3, gpus_per_node=8, environment=hints)

        def is_running() -> bool:
            turn()
            return pretraining.attempts.filter(confirmed_at__isnull=False).exists()

        until(is_running, within_s=600, what="pretraining's start")
        for _ in range(3):
            turn()

    asked_for.refresh_from_db()
    preempted = Event.objects.filter(job__in=trials, type="job.preempt_requested").values("job")
    running = trials.filter(attempts__confirmed_at__isnull=False).exclude(ended_at__lt=pretraining.submitted_at)
    others = running.exclude(pk__in=preempted)  # the trial that measures a dataset has ended before
    shards = Shard.objects.filter(evaluation__campaign=asked_for)
    assert held_by(pretraining) == 24
    assert list(others.values_list("state", "why", "attempts__stop_state")) == []
    assert asked_for.state == "RUNNING"
    # On a slow machine a trial was sent for what the first ones gave back; it waits behind pretraining, and has no GPU
    assert not shards.filter(state="INFERRING").exclude(trial__job__state="PENDING").exists()
    assert set(shards.filter(trial=None, infer_s=None).values_list("state", "tries")) == {("WAITING", 0)}


def held_by(job: Job) -> int:
    return Allocation.objects.filter(attempt__job=job, released_at=None, gpu__isnull=False).count()
