"""Preemption: a checkpoint is requested first, then the job is stopped and returns to its old place in the queue."""

from datetime import timedelta

import pytest

from jobs.actions import jobs as job_actions
from jobs.actions import journal, progress
from jobs.core.lifecycle import Flag, State
from jobs.models import Attempt, ClusterCommand, Event, Job, clock
from jobs.models.event import MAX_STOP_TRIES
from scheduling.backends.base import ClusterUnreachable, RequestRejected
from scheduling.engine.cluster import StopDecision, TurnDecisions, WaitDecision
from scheduling.loops.commands.send import send_commands_once
from scheduling.loops.observe.sync import sync_cluster_once
from scheduling.loops.schedule import schedule_once
from scheduling.loops.turn import LeaseLost
from scheduling.queries import snapshot
from tests import make
from tests.scheduling.fake import failing

GRACE = timedelta(seconds=60)


def known_to(slurm, attempt):
    slurm.adopt(attempt)
    ClusterCommand.objects.filter(kind="submit").update(done_at=clock.now())
    return attempt


@pytest.fixture
def victim(cluster, slurm):
    """A job that fits everywhere and saves checkpoints."""
    attempt = make.running(make.job(nodes=4, gpus_per_node=8, preemptible=True, checkpoint_dir="/ckpt"))
    return known_to(slurm, attempt)


@pytest.fixture
def urgent(victim):
    return make.job(nodes=4, gpus_per_node=8, priority=9)


def giving_way(victim, urgent):
    """A policy that preempts the victim for the urgent job."""
    stop = StopDecision(job_id=victim.job_id, why=f"It gives way to {urgent.public_id}.", for_job=urgent.pk)
    return lambda picture: TurnDecisions(
        stops=(stop,), waits=(WaitDecision(job_id=urgent.pk, reason="Resources", why="Soon."),)
    )


def preempt(cluster, victim, urgent, fence=lambda: None):
    return schedule_once(cluster, giving_way(victim, urgent), clock.now(), fence)


def deliver(cluster, slurm, later=timedelta(0)):
    return send_commands_once(cluster, slurm, clock.now() + later)


def saved(attempt, *, durable=True):
    noted = progress.record_attempt_heartbeats(attempt.key, [])
    author = journal.Author(by=attempt.key)
    return progress.record_checkpoints(
        noted, [progress.CheckpointReport(path="/ckpt/7", step=7, durable=durable)], author
    )


def state_of(job):
    return Job.objects.get(pk=job.pk)


def test_victim_is_signaled_first_and_stopped_after_its_grace_period(cluster, slurm, victim, urgent):
    assert preempt(cluster, victim, urgent) == 1
    deliver(cluster, slurm)
    assert (slurm.signaled, slurm.cancelled) == ([(victim.backend_id, "USR1")], [])

    deliver(cluster, slurm, GRACE - timedelta(seconds=5))
    assert slurm.cancelled == []

    deliver(cluster, slurm, GRACE + timedelta(seconds=1))
    assert slurm.cancelled == [victim.backend_id]
    assert len(slurm.signaled) == 1


def test_remote_checkpoint_ends_the_grace_period(cluster, slurm, victim, urgent):
    preempt(cluster, victim, urgent)
    saved(victim, durable=False)
    deliver(cluster, slurm, timedelta(seconds=1))
    assert slurm.cancelled == []

    saved(victim)
    deliver(cluster, slurm, timedelta(seconds=1))

    assert slurm.cancelled == [victim.backend_id]


def test_earlier_checkpoint_does_not_end_the_grace_period(cluster, slurm, victim, urgent):
    saved(victim)

    preempt(cluster, victim, urgent)
    deliver(cluster, slurm, timedelta(seconds=1))

    assert slurm.cancelled == []


@pytest.mark.parametrize(
    ("asked", "cluster_says", "signaled"),
    [
        ({"checkpoint_signal": "B:TERM@5"}, "USR1@60", "B:TERM"),
        ({"checkpoint_signal": "usr2"}, "", "USR2"),
        ({"checkpoint_interval": 600}, "USR1@60", "USR1"),
        ({"checkpoint_dir": "/ckpt"}, "", None),  # its cluster sends no signals
        ({}, "USR1@60", None),  # it saves no checkpoints worth waiting for
        ({"checkpoint_signal": "USR1@0"}, "USR1@60", None),
    ],
)
def test_job_chooses_its_signal_and_grace_period(cluster, slurm, asked, cluster_says, signaled):
    cluster = make.cluster(checkpoint_signal=cluster_says)
    attempt = known_to(slurm, make.running(make.job(gpus_per_node=1, **asked)))

    preempt(cluster, attempt, make.job(gpus_per_node=8))
    deliver(cluster, slurm)

    assert [name for _, name in slurm.signaled] == ([signaled] if signaled else [])
    assert bool(slurm.cancelled) is (signaled is None)


def test_victim_returns_to_its_place_and_events_name_the_other_job(cluster, slurm, victim, urgent):
    submitted_at = victim.job.submitted_at
    preempt(cluster, victim, urgent)
    assert Flag.SIGNALING in state_of(victim.job).flags

    slurm.end(victim.key, State.CANCELLED, clock.now(), signal=15)
    sync_cluster_once(cluster, slurm, clock.now())

    job = state_of(victim.job)
    assert (job.state, job.flags, job.submitted_at, job.requeues) == (State.PENDING, ["REQUEUED"], submitted_at, 0)
    event = Event.objects.get(type="job.preempt_requested")
    assert event.detail == {"for": urgent.public_id, "grace_s": 60}
    assert urgent.public_id in event.why


def test_stopping_job_is_marked_and_not_stopped_twice(cluster, victim, urgent):
    preempt(cluster, victim, urgent)

    assert [job.stopping for job in snapshot.take_snapshot(cluster, clock.now()).running] == [True]
    assert preempt(cluster, victim, urgent) == 0
    assert ClusterCommand.objects.filter(kind="cancel").count() == 1


def test_gpus_of_a_hanging_stop_do_not_count_as_coming_free(cluster, victim, urgent):
    preempt(cluster, victim, urgent)
    ClusterCommand.objects.filter(kind="cancel").update(tries=MAX_STOP_TRIES)

    (held,) = snapshot.take_snapshot(cluster, clock.now()).running
    assert (held.stopping, held.preemptible) == (False, False)
    assert preempt(cluster, victim, urgent) == 0
    assert Event.objects.filter(type="job.preempt_requested").count() == 1
    assert list(Job.objects.hanging(ClusterCommand.objects.hanging())) == [victim.job]


def test_hanging_stop_that_ends_leaves_no_trouble(cluster, slurm, victim, urgent):
    preempt(cluster, victim, urgent)
    ClusterCommand.objects.filter(kind="cancel").update(tries=MAX_STOP_TRIES)
    slurm.end(victim.key, State.CANCELLED, clock.now(), signal=15)

    sync_cluster_once(cluster, slurm, clock.now())

    assert not Job.objects.hanging(ClusterCommand.objects.hanging()).exists()


def test_policy_gets_the_time_of_the_last_checkpoint(cluster, victim):
    assert snapshot.take_snapshot(cluster, clock.now()).running[0].saved_at is None

    saved(victim)

    assert snapshot.take_snapshot(cluster, clock.now()).running[0].saved_at is not None
    assert Attempt.objects.get().saved_step == 7


def test_no_job_is_preempted_for_a_job_that_was_withdrawn(cluster, victim, urgent):
    def withdraw(picture):
        job_actions.cancel(state_of(urgent), author=make.author())
        return giving_way(victim, urgent)(picture)

    assert schedule_once(cluster, withdraw, clock.now(), lambda: None) == 0
    assert Attempt.objects.get(pk=victim.pk).stop_state == ""


def test_worker_without_its_lease_stops_no_job(cluster, victim, urgent):
    def lost():
        raise LeaseLost("over")

    with pytest.raises(LeaseLost):
        preempt(cluster, victim, urgent, lost)
    assert not ClusterCommand.objects.filter(kind__in=("cancel", "signal")).exists()


def test_user_cancel_does_not_wait_for_the_grace_period(cluster, slurm, victim, urgent):
    preempt(cluster, victim, urgent)

    job_actions.cancel(state_of(victim.job), author=make.author())
    deliver(cluster, slurm)

    assert slurm.cancelled == [victim.backend_id]
    assert Attempt.objects.get(pk=victim.pk).stop_state == State.CANCELLED


def test_scheduler_does_not_override_a_user_cancel(cluster, victim, urgent):
    job_actions.cancel(victim.job, author=make.author())

    assert preempt(cluster, victim, urgent) == 0
    assert Attempt.objects.get(pk=victim.pk).stop_state == State.CANCELLED


def test_unsubmitted_attempt_is_withdrawn_without_contacting_the_cluster(cluster, slurm):
    attempt = make.attempt(make.job(gpus_per_node=1, checkpoint_dir="/ckpt"))

    preempt(cluster, attempt, make.job(gpus_per_node=8))
    deliver(cluster, slurm)

    assert (slurm.sent, slurm.signaled) == ([], [])
    assert state_of(attempt.job).state == State.PENDING


def test_cluster_without_signals_stops_the_job_after_the_grace_period(cluster, slurm, victim, urgent):
    slurm.before = failing(RequestRejected("speaks v0.0.38"), "signal")
    preempt(cluster, victim, urgent)

    deliver(cluster, slurm)
    deliver(cluster, slurm, GRACE + timedelta(seconds=1))

    assert ClusterCommand.objects.get(kind="signal").outcome == "refused: speaks v0.0.38"
    assert slurm.cancelled == [victim.backend_id]


def test_signal_that_was_not_delivered_in_time_is_dropped(cluster, slurm, victim, urgent):
    preempt(cluster, victim, urgent)
    slurm.before = failing(ClusterUnreachable("gone"), "signal")
    with pytest.raises(ClusterUnreachable):
        deliver(cluster, slurm)
    slurm.before = lambda verb: None

    deliver(cluster, slurm, GRACE + timedelta(seconds=70))
    deliver(cluster, slurm, GRACE + timedelta(seconds=140))

    assert slurm.cancelled == [victim.backend_id] * len(slurm.cancelled) and slurm.cancelled
    assert len(slurm.signaled) <= 1
    assert not ClusterCommand.objects.open().filter(kind="signal").exists()


def test_advice_mode_names_victims_and_stops_none(cluster, victim, urgent):
    cluster.mode = "advise"

    schedule_once(cluster, giving_way(victim, urgent), clock.now(), lambda: None)

    assert state_of(urgent).why == f"Acme would preempt {victim.job.public_id} to start it."
    assert Attempt.objects.get(pk=victim.pk).stop_state == ""
