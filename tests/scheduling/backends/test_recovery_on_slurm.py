"""Recovery on a real Slurm: a training job on two nodes loses one and continues from its checkpoint on other nodes.

No operator takes part. The job is an ordinary program: both ranks count steps in lockstep; the first one writes
checkpoints and reports them to Acme over HTTP with its progress token. Its node fails like a real machine: all its
processes stop at once without a message.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import closing, suppress
from pathlib import Path

import pytest

from failures.loops.diagnose import diagnose_once
from failures.models import Decision, Incident
from jobs.actions import jobs as job_actions
from jobs.actions import recovery as recovery_actions
from jobs.models import Attempt, Checkpoint, Job, Node, clock
from scheduling.backends.base import Backend
from scheduling.backends.opening import open_backend
from scheduling.loops.turn import run_turn
from scheduling.models import NodeTest
from tests import make
from tests.failures.make import decide_and_recover_once
from tests.patience import until
from tests.scheduling.backends.real_slurm import RealSlurm, started_or_skipped

pytestmark = [pytest.mark.system, pytest.mark.django_db(transaction=True)]

TRAIN = """
import json, os, sys, time, urllib.request
from pathlib import Path

rank, place = int(os.environ["SLURM_PROCID"]), Path(os.environ["ACME_CHECKPOINT_DIR"])
run = place / ("attempt-" + os.environ["ACME_ATTEMPT"])
run.mkdir(parents=True, exist_ok=True)
(run / f"pid-{rank}").write_text(json.dumps([os.environ["SLURMD_NODENAME"], os.getpid()]))


def tell(**said):
    request = urllib.request.Request(
        os.environ["ACME_URL"] + "/api/v1/progress/", json.dumps(said).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["ACME_PROGRESS_TOKEN"]},
    )
    urllib.request.urlopen(request, timeout=600).close()


state = {"step": 0, "weight": 10.0}
if os.environ.get("ACME_CHECKPOINT"):
    state = json.loads(Path(os.environ["ACME_CHECKPOINT"]).read_text())
    print("going on from step", state["step"], flush=True)
while state["step"] < 1_000_000:
    state["step"] += 1
    state["weight"] -= 0.01 * 2 * (state["weight"] - 3)
    (run / f"step-{rank}.new").write_text(str(state["step"]))
    (run / f"step-{rank}.new").rename(run / f"step-{rank}")
    other = run / f"step-{1 - rank}"
    while not other.exists() or int(other.read_text() or 0) < state["step"]:
        time.sleep(0.01)
    if rank == 0 and state["step"] % 10 == 0:
        file = place / f"{state['step']}.json"
        (place / "new").write_text(json.dumps(state))
        (place / "new").rename(file)
        loss = (state["weight"] - 3) ** 2
        print("step", state["step"], "loss", loss, flush=True)
        tell(heartbeats=[{"step": state["step"], "loss": loss}],
             checkpoints=[{"step": state["step"], "path": str(file), "durable": True}])
    time.sleep(0.05)
"""


@pytest.fixture
def backend(slurm):
    with closing(open_backend(slurm.address)) as backend:
        yield backend


@pytest.fixture
def slurm():
    with started_or_skipped() as slurm:
        yield slurm


def fail_node(slurm: RealSlurm, place: Path, name: str) -> None:
    """Kill Slurm's daemon and all processes on this node at once."""
    slurm.kill_node(name)
    for file in place.glob("pid-*"):
        node, pid = json.loads(file.read_text())
        if node == name:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_training_continues_on_other_nodes_from_its_checkpoint_after_a_node_failure(
    slurm, backend, live_server, settings
):
    settings.ACME_URL = live_server.url
    cluster = make.cluster(nodes=0, address=slurm.address, log_root=str(slurm.output))
    recovery_actions.set_recovery_mode("act", author=make.LOOP)

    def look():
        run_turn(cluster.pk, "test", lambda row: backend)
        diagnose_once(clock.now())
        decide_and_recover_once(clock.now())

    def once(true, what):
        return until(lambda: look() or true(), what=what)

    once(lambda: Node.objects.usable().count() == 4, "nodes")
    (slurm.output / "train.py").write_text(TRAIN)
    job = make.job(
        cluster=cluster,
        name="pretrain",
        kind="pretrain",
        nodes=2,
        gpus_per_node=8,
        checkpoint_dir=str(slurm.output / "checkpoints"),
        command=f"#!/bin/sh\nexec srun --nodes=2 --ntasks=2 --ntasks-per-node=1 python3 -u {slurm.output}/train.py\n",
    )
    once(lambda: Checkpoint.objects.filter(job=job, step__gte=20).exists(), "a checkpoint of step 20")
    place = Path(job.checkpoint_dir) / "attempt-1"
    victim = json.loads((place / "pid-1").read_text())[0]
    fail_node(slurm, place, victim)

    again = once(lambda: Attempt.objects.filter(job=job, number=2, confirmed_at__isnull=False).first(), "a new attempt")
    saved = Decision.objects.get().checkpoint_step
    once(lambda: Checkpoint.objects.filter(attempt=again, step__gt=saved).exists(), "a step further")

    decision = Decision.objects.get()
    assert (decision.action, decision.mode, decision.state) == ("restart elsewhere", "act", "done")
    assert decision.drain == [victim] and saved >= 20
    assert victim not in set(again.allocations.values_list("node__name", flat=True))
    assert Node.objects.get(name=victim).drain_requested
    assert NodeTest.objects.get().faulty == [victim]
    incident = Incident.objects.get()
    assert (incident.root_cause, incident.subject) == ("SlurmNodeFail", victim)
    assert f"going on from step {saved}" in Path(again.log_path).read_text()
    losses = [float(line.split()[3]) for path in _logs(job) for line in path.read_text().splitlines() if "loss" in line]
    before, after = losses[0], losses[-1]
    assert after < before
    _stop(cluster, backend, job)


def _logs(job: Job) -> list[Path]:
    return [Path(one.log_path) for one in job.attempts.order_by("number")]


def _stop(cluster, backend: Backend, job: Job) -> None:
    job.refresh_from_db()
    job_actions.cancel(job, author=make.author())

    def ended():
        run_turn(cluster.pk, "test", lambda row: backend)
        return not Attempt.objects.filter(job=job, ended_at=None).exists()

    until(ended, what="the end of the job")
