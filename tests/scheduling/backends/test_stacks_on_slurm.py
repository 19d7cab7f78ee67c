"""Stack dumps on a real Slurm: a training job on two nodes hangs, and both ranks print their stacks and survive.

The signal goes through slurmrestd. The programs do not know Acme; `acme exec` starts them. The job's label says that
the batch shell passes the signal on (srun has replaced it), so API versions that also signal the shell can be used too.
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest

from failures.actions import incidents as failure_actions
from failures.actions import stacks as stack_actions
from failures.loops.stacks import stacks_once
from failures.models import Incident, StackDump
from jobs.actions import jobs as job_actions
from jobs.models import Attempt, ClusterCommand, Node, clock
from scheduling.backends.opening import open_backend
from scheduling.loops.turn import run_turn
from tests import make
from tests.patience import until
from tests.scheduling.backends.real_slurm import started_or_skipped

pytestmark = [pytest.mark.system, pytest.mark.django_db(transaction=True)]

HANGS = """
import os, threading

def waits_for_the_other():
    print("rank", os.environ["SLURM_PROCID"], "ready", flush=True)
    threading.Event().wait()

waits_for_the_other()
"""


@pytest.fixture
def slurm():
    with started_or_skipped() as slurm:
        yield slurm


@pytest.fixture
def backend(slurm):
    with closing(open_backend(slurm.address)) as backend:
        yield backend


def test_ranks_of_a_hanging_job_print_their_stacks_and_survive(slurm, backend, live_server, settings):
    settings.ACME_URL = live_server.url
    cluster = make.cluster(nodes=0, address=slurm.address, log_root=str(slurm.output))

    def run_loops():
        run_turn(cluster.pk, "test", lambda row: backend)

    def run_loops_until(condition, what):
        return until(lambda: run_loops() or condition(), what=what)

    run_loops_until(lambda: Node.objects.usable().count() == 4, "nodes")
    (slurm.output / "train.py").write_text(HANGS)
    wrapped = f"{Path(sys.executable).parent}/acme exec {sys.executable} {slurm.output}/train.py"
    job = make.job(
        cluster=cluster,
        kind="pretrain",
        nodes=2,
        gpus_per_node=8,
        labels={"acme-stacks": "B:USR2"},
        command=f"#!/bin/sh\nexec srun --nodes=2 --ntasks=2 --ntasks-per-node=1 {wrapped}\n",
    )
    attempt = run_loops_until(lambda: Attempt.objects.filter(job=job, confirmed_at__isnull=False).first(), "the job")
    log = Path(attempt.log_path)
    run_loops_until(lambda: log.exists() and log.read_text().count("ready") == 2, "both ranks")

    dump = until(lambda: request_stacks(attempt) or run_loops() or stack_dump(attempt), what="the stacks of both ranks")

    assert {line[:7] for line in dump.text.splitlines() if "waits_for_the_other" in line} == {"[rank0]", "[rank1]"}
    assert not Attempt.objects.get(pk=attempt.pk).ended_at  # both ranks survived
    job.refresh_from_db()
    job_actions.cancel(job, author=make.author())
    run_loops_until(lambda: not ClusterCommand.objects.open().exists(), "the end of the job")


def request_stacks(attempt: Attempt) -> None:
    """Request the stacks, again if an earlier request timed out, as it may on a slow machine."""
    if StackDump.objects.open().exists():
        return
    attempt.refresh_from_db()
    now, size = clock.now(), Path(attempt.log_path).stat().st_size
    failure_actions.diagnose_running_attempt(attempt, "Hang", "no step", now, now)
    stack_actions.request_stacks(attempt, Incident.objects.get(), size, now)


def stack_dump(attempt: Attempt) -> StackDump | None:
    stacks_once(clock.now())
    return StackDump.objects.filter(attempt=attempt, ranks=2).first()
