"""On a real Slurm: a training on two nodes hangs, and both ranks say where they stand. Neither dies of it.

The signal goes through slurmrestd; the programs know nothing of us, `acme exec` starts them. The job's label says that
the batch shell passes it on (srun has taken its place), so also an API may be used that would signal the shell too.
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
from jobs.models import Attempt, Deed, Node, clock
from scheduling.backends.opening import open_backend
from scheduling.loops.turn import run_turns
from tests import make
from tests.backends.real_slurm import started_or_skipped
from tests.patience import until

pytestmark = [pytest.mark.slurm, pytest.mark.django_db(transaction=True)]

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


def test_the_ranks_of_a_hang_are_asked_through_slurm_and_say_where_they_stand(slurm, backend, live_server, settings):
    settings.ACME_URL = live_server.url
    cluster = make.cluster(nodes=0, address=slurm.address, log_root=str(slurm.output))

    def look():
        run_turns(cluster.pk, "test", lambda row: backend)

    def once(true, what):
        return until(lambda: look() or true(), what=what)

    once(lambda: Node.objects.usable().count() == 4, "nodes")
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
    attempt = once(lambda: Attempt.objects.filter(job=job, confirmed_at__isnull=False).first(), "the job")
    log = Path(attempt.log_path)
    once(lambda: log.exists() and log.read_text().count("ready") == 2, "both ranks")

    told = until(lambda: asked(attempt) or look() or answered(attempt), what="the stacks of both ranks")

    assert {line[:7] for line in told.text.splitlines() if "waits_for_the_other" in line} == {"[rank0]", "[rank1]"}
    assert not Attempt.objects.get(pk=attempt.pk).ended_at  # nobody died of it
    job.refresh_from_db()
    job_actions.cancel(job, author=make.author())
    once(lambda: not Deed.objects.open().exists(), "the end of the job")


def asked(attempt: Attempt) -> None:
    """Once more where an answer came too late, as it may on a slow machine."""
    if StackDump.objects.open().exists():
        return
    attempt.refresh_from_db()
    now, size = clock.now(), Path(attempt.log_path).stat().st_size
    failure_actions.diagnose_running_attempt(attempt, "Hang", "no step", now, now)
    stack_actions.request_stacks(attempt, Incident.objects.get(), size, now)


def answered(attempt: Attempt) -> StackDump | None:
    stacks_once(clock.now())
    return StackDump.objects.filter(attempt=attempt, ranks=2).first()
