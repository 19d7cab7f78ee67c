"""Outcome detection on a real Slurm that forgets ended jobs after two seconds and has no accounting."""

from __future__ import annotations

from contextlib import closing

import pytest

from jobs.core.lifecycle import Flag, State
from jobs.models import Attempt, ClusterCommand, Job, Node, clock
from scheduling.backends.opening import open_backend
from scheduling.loops.observe.outcome_evidence import MISSING_GRACE
from scheduling.loops.observe.outcomes import find_outcomes_once
from scheduling.loops.turn import run_turn
from tests import make
from tests.patience import until
from tests.scheduling.backends.real_slurm import started_or_skipped

pytestmark = [pytest.mark.system, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def slurm():
    with started_or_skipped(min_job_age_s=2) as slurm:
        yield slurm


@pytest.fixture
def backend(slurm):
    with closing(open_backend(slurm.address)) as backend:
        yield backend


@pytest.fixture
def cluster(slurm):
    return make.cluster(nodes=0, address=slurm.address, log_root=str(slurm.output))


def run_loops(cluster, backend):
    run_turn(cluster.pk, "test", lambda row: backend)


def accepted_jobs(cluster, backend, *commands):
    """Jobs that Slurm has accepted. After this, the tests do not poll until Slurm has forgotten them."""
    until(lambda: run_loops(cluster, backend) or Node.objects.usable().count() == 4, what="nodes")
    jobs = [make.job(cluster=cluster, command=command) for command in commands]
    run_loops(cluster, backend)
    assert Attempt.objects.exclude(backend_id="").count() == len(jobs)
    return jobs


def forget(backend):
    until(lambda: not backend.jobs(), what="that Slurm forgets its jobs")


def outcomes(cluster, backend):
    run_loops(cluster, backend)
    assert Attempt.objects.live().filter(missing_since=None).count() == 0
    find_outcomes_once(cluster, backend, clock.now() + MISSING_GRACE)


def test_forgotten_jobs_keep_their_outcomes(cluster, backend):
    jobs = accepted_jobs(
        cluster,
        backend,
        "#!/bin/sh\nexit 0\n",
        "#!/bin/bash\nexec sh -c 'exit 3'\n",
        "#!/bin/bash\ntrap 'exit 4' EXIT\ntrue\n",
    )
    forget(backend)

    outcomes(cluster, backend)

    states = [Job.objects.values_list("state", "exit_code", "requeues").get(pk=job.pk) for job in jobs]
    assert states == [(State.COMPLETED, 0, 0), (State.FAILED, 3, 0), (State.FAILED, 4, 0)]


def test_job_whose_script_was_killed_has_an_unknown_outcome(cluster, backend):
    (job,) = accepted_jobs(cluster, backend, "#!/bin/bash\nkill -KILL $PPID; kill -KILL $$\n")
    forget(backend)

    outcomes(cluster, backend)

    job.refresh_from_db()
    assert (job.state, Flag.OUTCOME_UNKNOWN in job.flags) == (State.PENDING, True)


def test_submission_that_is_sent_twice_runs_once(cluster, backend, slurm):
    (job,) = accepted_jobs(cluster, backend, f"#!/bin/sh\necho once >> {slurm.output}/effects\n")
    forget(backend)
    # As after a failover that lost these commits
    Attempt.objects.update(backend_id="", confirmed_at=None)
    ClusterCommand.objects.update(
        done_at=None, tries=0, tries_without_effect=0, due_at=clock.now(), is_being_sent=False
    )

    until(lambda: run_loops(cluster, backend) or Attempt.objects.get().missing_since, what="the refused repetition")
    find_outcomes_once(cluster, backend, clock.now() + MISSING_GRACE)

    job.refresh_from_db()
    assert (slurm.output / "effects").read_text() == "once\n"
    assert job.state == State.COMPLETED
