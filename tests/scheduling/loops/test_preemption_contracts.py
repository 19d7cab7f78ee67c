"""A live cluster keeps the contracts of preemptible jobs, also if a turn is killed, runs twice or is late."""

from datetime import timedelta

import pytest

from acmeweb.common.errors import StateConflict
from jobs.actions import jobs as job_actions
from jobs.actions import journal, progress, stop
from jobs.core.lifecycle import Flag, State
from jobs.core.preemption_contract import CHECKPOINT_TOLERANCE, Preemptability
from jobs.models import Attempt, ClusterCommand, Event, Job, clock
from scheduling.backends.base import ClusterUnreachable
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.loops.commands.send import send_commands_once
from scheduling.loops.observe.sync import sync_cluster_once
from scheduling.loops.schedule import schedule_once
from scheduling.queries import snapshot
from tests import make
from tests.scheduling.fake import failing

MINUTE = timedelta(minutes=1)


@pytest.fixture
def cluster(db):
    return make.cluster(
        nodes=1, max_exempt_minutes=60, checkpoint_clause="optional", min_preemptions_per_day=0, policy="acme"
    )


@pytest.fixture
def borrower(cluster, slurm):
    """Starts a preemptible job with these terms on all GPUs."""

    def start(**terms):
        attempt = make.running(make.job(gpus_per_node=8, preemptible=True, checkpoint_dir="/ckpt", **terms))
        slurm.adopt(attempt)
        ClusterCommand.objects.filter(kind="submit").update(done_at=clock.now())
        return attempt

    return start


def turn(cluster):
    return schedule_once(cluster, LIVE_POLICIES["acme"], clock.now(), lambda: None)


def deliver(cluster, slurm, later=timedelta(0)):
    return send_commands_once(cluster, slurm, clock.now() + later)


def save(attempt, step=1):
    noted = progress.record_attempt_heartbeats(attempt.key, [])
    reports = [progress.CheckpointReport(path=f"/ckpt/{step}", step=step, durable=True)]
    progress.record_checkpoints(noted, reports, journal.Author(by=attempt.key))


def let_minutes_pass(attempt, minutes):
    """Move what is recorded of the attempt into the past."""
    times = ("seen_running_at", "saved_at", "checkpoint_asked_at")
    row = Attempt.objects.get(pk=attempt.pk)
    moved = {name: getattr(row, name) - minutes * MINUTE for name in times if getattr(row, name)}
    Attempt.objects.filter(pk=attempt.pk).update(**moved)


def stop_state(attempt):
    return Attempt.objects.get(pk=attempt.pk).stop_state


def standing(cluster):
    (held,) = snapshot.take_snapshot(cluster, clock.now()).running
    return held.standing.may


def test_job_is_preempted_after_its_protection(cluster, borrower):
    attempt = borrower(preempt_exempt_time="30:00")
    make.job(gpus_per_node=8)

    turn(cluster)
    assert stop_state(attempt) == ""

    let_minutes_pass(attempt, 31)
    turn(cluster)
    assert stop_state(attempt) == State.PREEMPTED


def test_preemption_from_an_old_snapshot_is_refused(cluster, borrower):
    attempt = borrower(preempt_exempt_time="30:00")

    with pytest.raises(StateConflict, match="It is protected from preemption for 30 min after each start"):
        job_actions.preempt(attempt.job, author=journal.SCHEDULER, why="Others need the GPUs.")

    assert stop_state(attempt) == ""
    assert not ClusterCommand.objects.filter(kind="cancel").exists()


def test_job_is_preempted_at_most_as_often_as_it_agreed_to(cluster, slurm, borrower):
    attempt = borrower(preemptions_per_day=1)
    job_actions.preempt(attempt.job, author=journal.SCHEDULER, why="Others need the GPUs.")
    slurm.end(attempt.key, State.CANCELLED, clock.now(), signal=15)
    sync_cluster_once(cluster, slurm, clock.now())

    again = make.running(Job.objects.get(pk=attempt.job_id))

    assert standing(cluster) == Preemptability.PROTECTED
    with pytest.raises(StateConflict, match="at most once a day"):
        job_actions.preempt(again.job, author=journal.SCHEDULER, why="Others need the GPUs.")
    Attempt.objects.filter(pk=attempt.pk).update(ended_at=clock.now() - timedelta(hours=25))
    assert standing(cluster) == Preemptability.NOW


def test_job_that_completed_before_the_stop_arrived_was_not_preempted(cluster, slurm, borrower):
    attempt = borrower(preemptions_per_day=1)
    job_actions.preempt(attempt.job, author=journal.SCHEDULER, why="Others need the GPUs.")
    slurm.end(attempt.key, State.COMPLETED, clock.now(), exit_code=0)
    sync_cluster_once(cluster, slurm, clock.now())

    assert not Attempt.objects.preempted().exists()


# --- only at checkpoints


@pytest.fixture
def saving(borrower):
    """A job that is preempted only at checkpoints. It has saved one some time ago."""
    attempt = borrower(preempt_at_checkpoint=True)
    save(attempt)
    let_minutes_pass(attempt, 20)
    return attempt


def test_job_is_asked_for_a_checkpoint_and_stopped_after_it(cluster, slurm, saving):
    make.job(gpus_per_node=8)
    assert turn(cluster) == 1
    deliver(cluster, slurm)
    assert (slurm.signaled, slurm.cancelled, stop_state(saving)) == ([(saving.backend_id, "USR1")], [], "")

    save(saving, step=2)
    assert turn(cluster) == 1
    deliver(cluster, slurm)

    assert (slurm.cancelled, stop_state(saving)) == ([saving.backend_id], State.PREEMPTED)
    assert len(slurm.signaled) == 1
    assert Event.objects.get(type="job.checkpoint_requested").job_id == saving.job_id


def test_request_is_not_repeated_by_further_turns(cluster, slurm, saving):
    """Whether the turn was killed after the request or runs twice: the request is in the row."""
    make.job(gpus_per_node=8)
    assert [turn(cluster) for _ in range(3)] == [1, 0, 0]

    deliver(cluster, slurm)
    assert len(slurm.signaled) == 1
    with pytest.raises(StateConflict):
        job_actions.ask_for_checkpoint(saving.job, author=journal.SCHEDULER, why="Again.")


def test_turn_that_is_late_asks_for_another_checkpoint(cluster, saving):
    make.job(gpus_per_node=8)
    turn(cluster)
    save(saving, step=2)
    let_minutes_pass(saving, 2)

    turn(cluster)

    assert stop_state(saving) == ""
    assert Event.objects.filter(type="job.checkpoint_requested").count() == 2


def test_stop_that_cannot_be_sent_in_time_is_withdrawn(cluster, slurm, saving):
    make.job(gpus_per_node=8)
    save(saving, step=2)
    turn(cluster)
    slurm.before = failing(ClusterUnreachable("no route"), "cancel")
    with pytest.raises(ClusterUnreachable):
        deliver(cluster, slurm)
    assert stop_state(saving) == State.PREEMPTED

    slurm.before = lambda verb: None
    deliver(cluster, slurm, CHECKPOINT_TOLERANCE + MINUTE)

    assert (slurm.cancelled, stop_state(saving)) == ([], "")
    assert Flag.SIGNALING not in Job.objects.get(pk=saving.job_id).flags
    assert Event.objects.get(type="job.preempt_cancelled").job_id == saving.job_id
    assert not ClusterCommand.objects.open().filter(attempt=saving).exists()


def test_stop_that_may_have_been_sent_is_not_withdrawn(cluster, slurm, saving):
    make.job(gpus_per_node=8)
    save(saving, step=2)
    turn(cluster)
    deliver(cluster, slurm)

    deliver(cluster, slurm, CHECKPOINT_TOLERANCE + MINUTE)

    assert stop_state(saving) == State.PREEMPTED
    assert len(slurm.cancelled) == 2


def test_job_that_reports_no_checkpoint_is_not_preempted(cluster, slurm, borrower):
    attempt = borrower(preempt_at_checkpoint=True)
    make.job(gpus_per_node=8)

    assert turn(cluster) == 0

    deliver(cluster, slurm)
    assert (slurm.signaled, slurm.cancelled, stop_state(attempt)) == ([], [], "")
    assert standing(cluster) == Preemptability.PROTECTED


def test_job_is_not_asked_for_a_job_that_was_withdrawn(cluster, saving):
    urgent = make.job(gpus_per_node=8)

    def withdraw(picture):
        job_actions.cancel(Job.objects.get(pk=urgent.pk), author=make.author())
        return LIVE_POLICIES["acme"](picture)

    assert schedule_once(cluster, withdraw, clock.now(), lambda: None) == 0
    assert Attempt.objects.get(pk=saving.pk).checkpoint_asked_at is None


def test_eviction_uses_the_signal_of_an_open_request(cluster, slurm, saving):
    make.job(gpus_per_node=8)
    turn(cluster)

    stop.evict(saving.job, make.node(cluster=cluster), author=make.author(), why="Repair.")

    assert ClusterCommand.objects.open().filter(attempt=saving, kind="signal").count() == 1
