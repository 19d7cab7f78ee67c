"""Several Acme installations on one cluster, and an installation whose database lost commits."""

from datetime import timedelta

import pytest

from acmeweb.common.errors import NotAllowed, StateConflict
from jobs.actions import foreign_jobs
from jobs.actions import jobs as job_actions
from jobs.actions.job_verbs import JOB_ACTIONS, JobActionRequest, perform_job_action
from jobs.core.lifecycle import State
from jobs.models import Allocation, Attempt, Cluster, ClusterCommand, ClusterMode, Installation, Job, Node, clock
from jobs.models.permissions import Caller
from scheduling.backends.dialect import parse_job as read_job
from scheduling.loops.commands.send import send_commands_once
from scheduling.loops.observe.outcomes import find_outcomes_once
from scheduling.loops.observe.sync import sync_cluster_once
from tests import make
from tests.scheduling.fake import seen_job

GPUS = {"seren-001": (0, 1)}


def sync(cluster, slurm):
    return sync_cluster_once(Cluster.objects.get(pk=cluster.pk), slurm, clock.now())


def theirs(slurm, **fields):
    """A running job of another Acme on the same cluster."""
    begun = clock.now() - timedelta(minutes=1)
    at = {"submitted_at": begun, "started_at": begun, "nodes": ("seren-001",), "gpus": GPUS, "gpus_per_node": 2}
    return slurm.foreign(**{"key": "0vqrm34vg06.2", "installation": "other123", **at, **fields})


def foreign_gpus():
    return {node.name: node.foreign_gpus for node in Node.objects.all() if node.foreign_gpus}


def test_submitted_job_carries_the_installation_id(cluster, slurm):
    make.attempt()

    send_commands_once(cluster, slurm, clock.now())

    assert slurm.sent[0].installation == Installation.current_id()


def test_the_identity_of_an_installation_does_not_change(db):
    assert Installation.current_id() == Installation.current_id()
    assert Installation.objects.count() == 1


@pytest.mark.parametrize(
    ("comment", "origin"),
    [
        ("acme:k3v9:0vq.2", ("k3v9", "0vq.2")),
        ("acme:0vq.2", ("", "0vq.2")),
        ("my own notes", ("", "")),
        ("", ("", "")),
        (None, ("", "")),
        ({"job": "acme:k3v9:0vq.2"}, ("k3v9", "0vq.2")),
    ],
)
def test_comment_of_a_job_identifies_its_installation(comment, origin):
    seen = read_job({"job_id": 1, "job_state": "RUNNING", "comment": comment})

    assert (seen.installation, seen.key) == origin


def test_a_job_of_another_installation_keeps_its_gpus_and_is_shown_as_such(cluster, slurm):
    theirs(slurm)

    sync(cluster, slurm)

    job = Job.objects.get()
    assert foreign_gpus() == {"seren-001": [0, 1]}
    assert (job.is_foreign, job.installation, job.foreign_key) == (True, "other123", "other123:0vqrm34vg06.2")
    assert slurm.cancelled == []


def test_the_same_key_in_two_installations_is_two_jobs(cluster, slurm):
    attempt = make.running(make.job(gpus_per_node=1), on=["seren-002"])
    slurm.adopt(attempt)
    theirs(slurm, key=attempt.key)

    sync(cluster, slurm)

    assert Attempt.objects.get(pk=attempt.pk).backend_id == attempt.backend_id
    assert Job.objects.exclude(foreign_key="").count() == 1
    assert slurm.cancelled == []


def test_too_long_comment_is_not_a_key(cluster, slurm):
    theirs(slurm, key="x" * 100)

    sync(cluster, slurm)

    assert (Job.objects.get().is_foreign, Job.objects.get().installation) == (True, "")


def test_a_job_of_this_installation_that_the_database_does_not_know_is_not_cancelled(cluster, slurm):
    theirs(slurm, installation=Installation.current_id())

    sync(cluster, slurm)

    assert foreign_gpus() == {"seren-001": [0, 1]}
    assert Job.objects.get().installation == Installation.current_id()
    assert slurm.cancelled == []


def test_an_operator_cancels_a_job_of_another_installation(cluster, slurm):
    backend_id = theirs(slurm)
    sync(cluster, slurm)

    foreign_jobs.cancel_foreign_job(Job.objects.get(), author=make.author(), why="left over")
    send_commands_once(cluster, slurm, clock.now())

    assert slurm.cancelled == [backend_id]


def test_a_job_of_another_installation_is_not_cancelled_on_a_cluster_that_is_only_watched(cluster, slurm):
    theirs(slurm)
    sync(cluster, slurm)
    Cluster.objects.update(mode=ClusterMode.OBSERVE)

    with pytest.raises(StateConflict, match="does not drive"):
        foreign_jobs.cancel_foreign_job(Job.objects.get(), author=make.author())


def test_adopted_job_belongs_to_this_installation(cluster, slurm):
    backend_id = theirs(slurm)
    sync(cluster, slurm)

    foreign_jobs.adopt_foreign_job(Job.objects.get(), author=make.author())
    sync(cluster, slurm)  # fills in the GPUs
    sync(cluster, slurm)
    assert foreign_gpus() == {}
    assert list(Allocation.objects.live().values_list("node__name", "gpu")) == [("seren-001", 0), ("seren-001", 1)]

    job_actions.cancel(Job.objects.get(), author=make.author())
    send_commands_once(cluster, slurm, clock.now())
    assert slurm.cancelled == [backend_id]

    assert Job.objects.get().requeue_limit == 0

    slurm.known = {}
    sync(cluster, slurm)
    assert Attempt.objects.get().missing_since


def test_an_adopted_job_cannot_be_requeued_because_its_command_is_not_known(cluster, slurm):
    theirs(slurm)
    sync(cluster, slurm)
    foreign_jobs.adopt_foreign_job(Job.objects.get(), author=make.author())

    with pytest.raises(StateConflict, match="can only be cancelled"):
        job_actions.requeue(Job.objects.get(), author=make.author())


def test_accounting_shows_the_end_of_another_installations_job(cluster, slurm):
    backend_id = theirs(slurm)
    sync(cluster, slurm)
    over = {"backend_id": backend_id, "key": "0vqrm34vg06.2", "installation": "other123"}
    slurm.accounting = [
        seen_job(**over, state=State.FAILED, submitted_at=clock.now(), ended_at=clock.now(), exit_code=1)
    ]
    slurm.known = {}
    sync(cluster, slurm)

    find_outcomes_once(cluster, slurm, clock.now())

    assert Job.objects.get().state == State.FAILED


def test_only_operators_of_the_cluster_adopt_and_cancel_jobs_of_another_installation(cluster, slurm):
    theirs(slurm)
    sync(cluster, slurm)
    wish = JobActionRequest(author=make.author())

    for name in ("adopt", "cancel"):
        with pytest.raises(NotAllowed, match="permission to operate clusters"):
            perform_job_action(JOB_ACTIONS[name], Job.objects.get(), wish, Caller(user=make.user("ben")))
    perform_job_action(JOB_ACTIONS["adopt"], Job.objects.get(), wish, Caller(user=make.user("root", is_superuser=True)))
    assert not Job.objects.get().is_foreign


# A database that lost commits


@pytest.fixture
def lost(cluster, slurm):
    """The second attempt of a job runs, and the database knows the first one only."""
    job = make.ended(make.job(gpus_per_node=2), state=State.NODE_FAIL).job
    ClusterCommand.objects.update(done_at=clock.now())
    theirs(slurm, key=f"{job.public_id}.2", installation=Installation.current_id())
    return job


def test_lost_running_attempt_is_restored(cluster, slurm, lost):
    sync(cluster, slurm)

    lost.refresh_from_db()
    attempt = Attempt.objects.get(ended_at=None)
    assert (lost.state, attempt.number, attempt.key) == (State.RUNNING, 2, f"{lost.public_id}.2")
    assert attempt.allocations.count() == 2
    assert slurm.cancelled == []


def test_lost_attempt_that_succeeded_completes_its_job(cluster, slurm, lost):
    slurm.end(f"{lost.public_id}.2", State.COMPLETED, clock.now(), exit_code=0, gpus={})

    sync(cluster, slurm)

    lost.refresh_from_db()
    assert lost.state == State.COMPLETED


def test_lost_attempt_that_has_not_started_gets_its_gpus_at_the_start(cluster, slurm, lost):
    key = f"{lost.public_id}.2"
    slurm.change(key, state=State.PENDING, started_at=None, nodes=(), gpus={})
    sync(cluster, slurm)
    lost.refresh_from_db()
    assert lost.state == State.RUNNING

    slurm.change(key, state=State.RUNNING, started_at=clock.now(), nodes=("seren-001",), gpus=GPUS)
    sync(cluster, slurm)

    attempt = Attempt.objects.get(key=key)
    assert attempt.nodelist == "seren-001"
    assert sorted(attempt.allocations.values_list("gpu", flat=True)) == [0, 1]


def test_a_lost_attempt_that_was_cancelled_sends_its_job_back_to_the_queue(cluster, slurm, lost):
    slurm.end(f"{lost.public_id}.2", State.CANCELLED, clock.now(), started_at=None, nodes=(), gpus={})

    sync(cluster, slurm)

    lost.refresh_from_db()
    assert (lost.state, lost.attempts.count()) == (State.PENDING, 2)


def test_a_restored_attempt_that_the_cluster_forgets_is_missing(cluster, slurm, lost):
    sync(cluster, slurm)
    slurm.known = {}

    sync(cluster, slurm)

    assert Attempt.objects.get(ended_at=None).missing_since


def test_the_next_attempt_is_counted_after_a_restored_one(cluster, slurm, lost):
    Attempt.objects.filter(job=lost).update(number=4)

    assert make.attempt(lost).number == 5
