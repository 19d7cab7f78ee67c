"""Drains: which jobs leave a node, when, and what a resume still stops."""

from datetime import timedelta

import pytest

from acmeweb.common.errors import StateConflict
from jobs.actions import jobs as job_actions
from jobs.actions import journal, progress
from jobs.actions import nodes as node_actions
from jobs.core.lifecycle import State
from jobs.models import Attempt, ClusterCommand, DrainMode, Event, Job, Node, clock
from jobs.queries import drain_impact
from scheduling.loops.commands.send import send_commands_once
from scheduling.loops.drains import evict, evict_from_drained_nodes_once
from scheduling.loops.observe.sync import sync_cluster_once
from tests import make

GRACE = timedelta(seconds=61)


@pytest.fixture
def wide(cluster, slurm):
    """It runs on two nodes and saves checkpoints."""
    return known_to(slurm, make.running(make.job(nodes=2, gpus_per_node=4, checkpoint_dir="/ckpt")))


@pytest.fixture
def small(cluster, slurm):
    """It runs beside the wide one on the first node, and saves nothing."""
    return known_to(slurm, make.running(make.job(gpus_per_node=1), gpus=(7,)))


def known_to(slurm, attempt):
    slurm.adopt(attempt)
    ClusterCommand.objects.filter(kind="submit").update(done_at=clock.now())
    return attempt


def node(name="seren-001"):
    return Node.objects.select_related("cluster").get(name=name)


def drain(mode, name="seren-001"):
    node_actions.drain(node(name), author=make.author("olga"), why="bad fan", now=clock.now(), mode=mode)


def save(attempt, step=1):
    noted, saved = (
        progress.record_attempt_heartbeats(attempt.key, []),
        [progress.CheckpointReport(path=f"/ckpt/{step}", step=step, durable=True)],
    )
    progress.record_checkpoints(noted, saved, journal.Author(by=attempt.key))


def wanted(attempt):
    return Attempt.objects.get(pk=attempt.pk).stop_state


def turn(cluster, slurm, later=timedelta(0)):
    evict_from_drained_nodes_once(cluster, clock.now() + later)
    send_commands_once(cluster, slurm, clock.now() + later)


def test_drain_mode_finish_evicts_no_job(cluster, slurm, wide):
    drain(DrainMode.FINISH)

    assert evict_from_drained_nodes_once(cluster, clock.now()) == 0
    assert wanted(wide) == ""


def test_attempt_that_the_cluster_does_not_show_is_not_evicted(cluster, slurm, small):
    Attempt.objects.filter(pk=small.pk).update(missing_since=clock.now())
    drain(DrainMode.NOW)

    assert evict_from_drained_nodes_once(cluster, clock.now()) == 0
    assert wanted(small) == ""


def test_drain_mode_now_evicts_all_jobs_on_the_node_only(cluster, slurm, wide, small):
    elsewhere = known_to(slurm, make.running(make.job(gpus_per_node=1), on=["seren-003"]))

    drain(DrainMode.NOW)
    turn(cluster, slurm)

    assert [wanted(one) for one in (wide, small, elsewhere)] == [State.PENDING, State.PENDING, ""]
    assert slurm.signaled == [(wide.backend_id, "USR1")]  # who saves nothing is not kept waiting
    assert slurm.cancelled == [small.backend_id]
    assert evict_from_drained_nodes_once(cluster, clock.now()) == 0


def test_evicted_job_keeps_its_place_and_its_events_say_why(cluster, slurm, small):
    drain(DrainMode.NOW)
    turn(cluster, slurm)
    slurm.end(small.key, State.CANCELLED, clock.now(), signal=15)

    sync_cluster_once(cluster, slurm, clock.now())

    job = Job.objects.get(pk=small.job_id)
    assert (job.state, job.submitted_at, job.requeues) == (State.PENDING, small.job.submitted_at, 0)
    asked = Event.objects.get(type="job.evict_requested")
    assert (asked.why, asked.node.name) == ("seren-001 is drained by olga: bad fan", "seren-001")


def test_drain_mode_checkpoint_evicts_jobs_after_their_checkpoint(cluster, slurm, wide, small):
    save(wide, 1)
    drain(DrainMode.CHECKPOINT)
    assert evict_from_drained_nodes_once(cluster, clock.now()) == 0  # that one was before

    save(wide, 2)
    turn(cluster, slurm)

    assert (wanted(wide), wanted(small)) == (State.PENDING, "")
    assert (slurm.signaled, slurm.cancelled) == ([], [wide.backend_id])


def test_resume_stops_pending_evictions(cluster, slurm, wide, small):
    drain(DrainMode.NOW)
    turn(cluster, slurm)

    node_actions.resume(node(), author=make.author("olga"), now=clock.now())
    turn(cluster, slurm, GRACE)

    assert (wanted(wide), wanted(small)) == ("", State.PENDING)
    assert slurm.cancelled.count(wide.backend_id) == 0
    assert "SIGNALING" not in Job.objects.get(pk=wide.job_id).flags
    assert Event.objects.get(type="job.evict_cancelled").job_id == wide.job_id


def test_resume_does_not_undo_a_users_cancel(cluster, slurm, wide):
    drain(DrainMode.NOW)
    turn(cluster, slurm)
    job_actions.cancel(Job.objects.get(pk=wide.job_id), author=make.author())

    node_actions.resume(node(), author=make.author("olga"), now=clock.now())
    turn(cluster, slurm)

    assert (wanted(wide), slurm.cancelled) == (State.CANCELLED, [wide.backend_id])


def test_resume_during_the_eviction_takes_precedence(cluster, slurm, small):
    drain(DrainMode.NOW)
    stale = node()
    node_actions.resume(node(), author=make.author("olga"), now=clock.now())

    assert evict(small, stale) is False
    assert wanted(small) == ""


def test_drain_mode_can_be_changed_both_ways(cluster, slurm, wide):
    drain(DrainMode.FINISH)
    drain(DrainMode.NOW)
    turn(cluster, slurm)
    assert wanted(wide) == State.PENDING

    drain(DrainMode.FINISH)

    assert wanted(wide) == "" and node().drain_requested
    with pytest.raises(StateConflict, match="already drained"):
        drain(DrainMode.FINISH)


def test_undriven_cluster_only_offers_drain_mode_finish(wide):
    make.cluster(mode="advise")

    with pytest.raises(StateConflict, match="is not driven by Acme"):
        drain(DrainMode.NOW)


def test_failed_eviction_does_not_stop_the_others(cluster, slurm, wide, small):
    job_actions.cancel(wide.job, author=make.author())
    drain(DrainMode.NOW)

    assert evict_from_drained_nodes_once(cluster, clock.now()) == 1
    assert wanted(small) == State.PENDING


def test_drain_impact_counts_all_gpus_since_the_checkpoint(cluster, wide, small, django_assert_num_queries):
    row, now = node(), clock.now()
    with django_assert_num_queries(1):
        before = drain_impact.affected_jobs([row], now)
    save(wide)
    after = drain_impact.affected_jobs([node()], clock.now())

    assert [one.gpus for one in before] == [4, 1]
    assert [round(one.at_risk, 1) for one in before] == [0.7, 0.1]  # 8 and 1 GPUs for five minutes
    assert [round(one.at_risk, 1) for one in after] == [0.0, 0.1]


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        (DrainMode.FINISH, "No new jobs; 2 running jobs finish."),
        (
            DrainMode.CHECKPOINT,
            "No new jobs; 1 job is requeued after the next checkpoint; 1 without checkpoints finishes.",
        ),
        (
            DrainMode.NOW,
            "No new jobs; 2 jobs are requeued now: up to 0.8 GPU-hours since the last checkpoints are lost.",
        ),
    ],
)
def test_drain_impact_is_a_sentence(cluster, wide, small, mode, sentence):
    assert drain_impact.drain_impact_text(drain_impact.affected_jobs([node()], clock.now()), mode) == sentence
