"""Giving way: asked for a checkpoint first, stopped after it or after the grace, back at the old place in the queue."""

from datetime import timedelta

import pytest

from jobs.actions import jobs as job_actions
from jobs.actions import journal, progress
from jobs.core.lifecycle import Flag, State
from jobs.models import Attempt, Deed, Event, Job, clock
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
    Deed.objects.filter(kind="submit").update(done_at=clock.now())
    return attempt


@pytest.fixture
def victim(cluster, slurm):
    """It runs everywhere, and saves checkpoints."""
    attempt = make.running(make.job(nodes=4, gpus_per_node=8, preemptible=True, checkpoint_dir="/ckpt"))
    return known_to(slurm, attempt)


@pytest.fixture
def urgent(victim):
    return make.job(nodes=4, gpus_per_node=8, priority=9)


def giving_way(victim, urgent):
    """A policy that finds that the one must give way to the other."""
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


def test_it_is_asked_first_and_stopped_when_its_grace_is_over(cluster, slurm, victim, urgent):
    assert preempt(cluster, victim, urgent) == 1
    deliver(cluster, slurm)
    assert (slurm.signalled, slurm.cancelled) == ([(victim.backend_id, "USR1")], [])

    deliver(cluster, slurm, GRACE - timedelta(seconds=5))
    assert slurm.cancelled == []

    deliver(cluster, slurm, GRACE + timedelta(seconds=1))
    assert slurm.cancelled == [victim.backend_id]
    assert len(slurm.signalled) == 1


def test_a_checkpoint_in_remote_storage_ends_the_grace(cluster, slurm, victim, urgent):
    preempt(cluster, victim, urgent)
    saved(victim, durable=False)
    deliver(cluster, slurm, timedelta(seconds=1))
    assert slurm.cancelled == []

    saved(victim)
    deliver(cluster, slurm, timedelta(seconds=1))

    assert slurm.cancelled == [victim.backend_id]


def test_a_checkpoint_from_before_the_ask_does_not(cluster, slurm, victim, urgent):
    saved(victim)

    preempt(cluster, victim, urgent)
    deliver(cluster, slurm, timedelta(seconds=1))

    assert slurm.cancelled == []


@pytest.mark.parametrize(
    ("asked", "cluster_says", "signalled"),
    [
        ({"checkpoint_signal": "B:TERM@5"}, "USR1@60", "B:TERM"),
        ({"checkpoint_signal": "usr2"}, "", "USR2"),
        ({"checkpoint_interval": 600}, "USR1@60", "USR1"),
        ({"checkpoint_dir": "/ckpt"}, "", None),  # its cluster asks nobody
        ({}, "USR1@60", None),  # it saves nothing that would be worth waiting for
        ({"checkpoint_signal": "USR1@0"}, "USR1@60", None),
    ],
)
def test_a_job_says_how_it_wants_to_be_asked(cluster, slurm, asked, cluster_says, signalled):
    cluster = make.cluster(checkpoint_signal=cluster_says)
    attempt = known_to(slurm, make.running(make.job(gpus_per_node=1, **asked)))

    preempt(cluster, attempt, make.job(gpus_per_node=8))
    deliver(cluster, slurm)

    assert [name for _, name in slurm.signalled] == ([signalled] if signalled else [])
    assert bool(slurm.cancelled) is (signalled is None)


def test_it_goes_back_to_its_old_place_and_the_events_say_for_whom(cluster, slurm, victim, urgent):
    came = victim.job.submitted_at
    preempt(cluster, victim, urgent)
    assert Flag.SIGNALING in state_of(victim.job).flags

    slurm.end(victim.key, State.CANCELLED, clock.now(), signal=15)
    sync_cluster_once(cluster, slurm, clock.now())

    job = state_of(victim.job)
    assert (job.state, job.flags, job.submitted_at, job.requeues) == (State.PENDING, ["REQUEUED"], came, 0)
    asked = Event.objects.get(what="job.preempt_asked")
    assert asked.detail == {"for": urgent.public_id, "grace_s": 60}
    assert urgent.public_id in asked.why


def test_who_is_being_stopped_is_told_apart_and_not_stopped_twice(cluster, victim, urgent):
    preempt(cluster, victim, urgent)

    assert [job.stopping for job in snapshot.take_snapshot(cluster, clock.now()).running] == [True]
    assert preempt(cluster, victim, urgent) == 0
    assert Deed.objects.filter(kind="cancel").count() == 1


def test_a_stop_that_hangs_no_longer_counts_as_room_that_comes_free(cluster, victim, urgent):
    preempt(cluster, victim, urgent)
    Deed.objects.filter(kind="cancel").update(tries=MAX_STOP_TRIES)

    (held,) = snapshot.take_snapshot(cluster, clock.now()).running
    assert (held.stopping, held.preemptible) == (False, False)
    assert preempt(cluster, victim, urgent) == 0
    assert Event.objects.filter(what="job.preempt_asked").count() == 1
    assert list(Job.objects.hanging(Deed.objects.hanging())) == [victim.job]


def test_a_stop_that_hung_and_ended_after_all_is_nobodys_trouble(cluster, slurm, victim, urgent):
    preempt(cluster, victim, urgent)
    Deed.objects.filter(kind="cancel").update(tries=MAX_STOP_TRIES)
    slurm.end(victim.key, State.CANCELLED, clock.now(), signal=15)

    sync_cluster_once(cluster, slurm, clock.now())

    assert not Job.objects.hanging(Deed.objects.hanging()).exists()


def test_a_policy_learns_when_work_was_last_saved(cluster, victim):
    assert snapshot.take_snapshot(cluster, clock.now()).running[0].saved_at is None

    saved(victim)

    assert snapshot.take_snapshot(cluster, clock.now()).running[0].saved_at is not None
    assert Attempt.objects.get().saved_step == 7


def test_nobody_gives_way_to_a_job_that_went_away_meanwhile(cluster, victim, urgent):
    def withdraw(picture):
        job_actions.cancel(state_of(urgent), author=make.author())
        return giving_way(victim, urgent)(picture)

    assert schedule_once(cluster, withdraw, clock.now(), lambda: None) == 0
    assert Attempt.objects.get(pk=victim.pk).stop_as == ""


def test_a_worker_that_lost_its_lease_stops_nobody(cluster, victim, urgent):
    def lost():
        raise LeaseLost("over")

    with pytest.raises(LeaseLost):
        preempt(cluster, victim, urgent, lost)
    assert not Deed.objects.filter(kind__in=("cancel", "signal")).exists()


def test_a_person_who_cancels_does_not_wait_for_the_grace(cluster, slurm, victim, urgent):
    preempt(cluster, victim, urgent)

    job_actions.cancel(state_of(victim.job), author=make.author())
    deliver(cluster, slurm)

    assert slurm.cancelled == [victim.backend_id]
    assert Attempt.objects.get(pk=victim.pk).stop_as == State.CANCELLED


def test_the_scheduler_does_not_overrule_a_persons_cancel(cluster, victim, urgent):
    job_actions.cancel(victim.job, author=make.author())

    assert preempt(cluster, victim, urgent) == 0
    assert Attempt.objects.get(pk=victim.pk).stop_as == State.CANCELLED


def test_who_has_not_begun_yet_is_withdrawn_before_the_cluster_hears_of_him(cluster, slurm):
    attempt = make.attempt(make.job(gpus_per_node=1, checkpoint_dir="/ckpt"))

    preempt(cluster, attempt, make.job(gpus_per_node=8))
    deliver(cluster, slurm)

    assert (slurm.sent, slurm.signalled) == ([], [])
    assert state_of(attempt.job).state == State.PENDING


def test_a_cluster_that_cannot_signal_stops_it_after_the_grace_all_the_same(cluster, slurm, victim, urgent):
    slurm.before = failing(RequestRejected("speaks v0.0.38"), "signal")
    preempt(cluster, victim, urgent)

    deliver(cluster, slurm)
    deliver(cluster, slurm, GRACE + timedelta(seconds=1))

    assert Deed.objects.get(kind="signal").outcome == "refused: speaks v0.0.38"
    assert slurm.cancelled == [victim.backend_id]


def test_an_ask_that_could_not_be_brought_in_time_is_dropped(cluster, slurm, victim, urgent):
    preempt(cluster, victim, urgent)
    slurm.before = failing(ClusterUnreachable("gone"), "signal")
    with pytest.raises(ClusterUnreachable):
        deliver(cluster, slurm)
    slurm.before = lambda verb: None

    deliver(cluster, slurm, GRACE + timedelta(seconds=70))
    deliver(cluster, slurm, GRACE + timedelta(seconds=140))

    assert slurm.cancelled == [victim.backend_id] * len(slurm.cancelled) and slurm.cancelled
    assert len(slurm.signalled) <= 1
    assert not Deed.objects.open().filter(kind="signal").exists()


def test_advice_says_who_would_be_stopped_and_stops_nobody(cluster, victim, urgent):
    cluster.mode = "advise"

    schedule_once(cluster, giving_way(victim, urgent), clock.now(), lambda: None)

    assert state_of(urgent).why == f"Acme would stop {victim.job.public_id} to make room for it."
    assert Attempt.objects.get(pk=victim.pk).stop_as == ""
