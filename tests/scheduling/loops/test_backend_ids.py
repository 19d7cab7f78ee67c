"""The cluster's ids of jobs are opaque text: nothing parses them, compares them as numbers or cuts them."""

from datetime import timedelta

import pytest

from jobs.actions import foreign_jobs
from jobs.actions import jobs as job_actions
from jobs.core.lifecycle import State
from jobs.core.public_id import MAX_BACKEND_ID_LENGTH
from jobs.models import Attempt, ClusterCommand, Job, clock
from scheduling.loops.commands.send import send_commands_once
from scheduling.loops.observe import foreign_jobs as loop
from scheduling.loops.observe.sync import sync_cluster_once
from tests import make

ID_FORMS = [
    lambda number: f"{'n' * 63}/{'j' * (MAX_BACKEND_ID_LENGTH - 80)}-{number:06d}",
    lambda number: f"6f1c2a30-7d1e-4c53-9a55-{number:012x}",
    lambda number: f"vision/run@{number}",
]


def sync(cluster, slurm):
    return sync_cluster_once(cluster, slurm, clock.now())


@pytest.fixture(params=ID_FORMS, ids=["namespace-name", "uid", "at-sign"])
def textual(slurm, request):
    slurm.job_id = request.param
    return slurm


def test_job_is_submitted_followed_and_cancelled_by_a_textual_id(cluster, textual):
    attempt = make.attempt(make.job(gpus_per_node=1))
    send_commands_once(cluster, textual, clock.now())
    textual.start(attempt.key, clock.now())
    sync(cluster, textual)
    job_actions.cancel(Job.objects.get(), author=make.author())
    send_commands_once(cluster, textual, clock.now())

    assert Attempt.objects.get().backend_id == textual.job_id(1)
    assert textual.cancelled == [textual.job_id(1)]

    textual.end(attempt.key, State.CANCELLED, clock.now())
    sync(cluster, textual)
    assert Job.objects.get().state == State.CANCELLED


def test_foreign_job_with_a_textual_id_is_followed_and_cancelled(cluster, textual):
    begun = clock.now() - timedelta(minutes=1)
    run = {"submitted_at": begun, "started_at": begun, "nodes": ("seren-001",)}
    backend_id = textual.foreign(key="0vqrm34vg06.2", installation="other123", **run)
    sync(cluster, textual)
    foreign_jobs.cancel_foreign_job(Job.objects.get(), author=make.author())
    send_commands_once(cluster, textual, clock.now())

    assert textual.cancelled == [backend_id]
    assert not ClusterCommand.objects.open().exists()

    textual.garble(backend_id)
    sync(cluster, textual)
    assert not Attempt.objects.get().missing_since  # its row is unreadable, but it is not gone


def test_new_foreign_jobs_are_imported_in_the_order_of_submission(cluster, slurm):
    now, names = clock.now(), {9000: "b/second", 9001: "a/third", 9002: "c/first"}
    slurm.job_id = names.__getitem__
    for hours in (2, 1, 3):
        slurm.foreign(name=f"-{hours}h", submitted_at=now - timedelta(hours=hours), state=State.PENDING)

    loop.sync_foreign_jobs_once(cluster, slurm.jobs(), now)

    assert list(Job.objects.order_by("id").values_list("name", flat=True)) == ["-3h", "-2h", "-1h"]
