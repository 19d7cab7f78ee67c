"""Sleeping nodes: who sleeps in which mode, what wakes nodes up, and nodes that do not come back."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from acmeweb.common.errors import StateConflict
from failures.models import Incident
from jobs.actions import nodes as node_actions
from jobs.core.lifecycle import NodeFlag, NodeState, State
from jobs.models import Attempt, Cluster, ClusterCommand, ClusterMinute, Event, Job, Node, clock
from scheduling.backends.base import RequestRejected
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.loops.commands.send import send_commands_once
from scheduling.loops.drains import evict_from_drained_nodes_once
from scheduling.loops.observe.sync import sync_cluster_once
from scheduling.loops.schedule import schedule_once
from scheduling.models import NodeSleep, NodeSleepState
from scheduling.power.actions import sleeps as sleep_actions
from scheduling.power.actions.sleeps import SLEEPER
from scheduling.power.loops.sleep import clusters_with_sleep, delete_old_sleeps, manage_sleep_once
from scheduling.power.reads import sleeps as node_sleeps
from scheduling.queries import snapshot
from tests import make
from tests.scheduling.fake import failing
from tests.statements import before_statement, failing_statement

BOOT = timedelta(minutes=10)
NAMES = [f"seren-{number:03d}" for number in range(1, 5)]


@pytest.fixture
def cluster(db):
    row = make.cluster(sleep_mode="act", sleep_reserve_nodes=1)
    add_quiet_hour(row)
    return row


def add_quiet_hour(cluster):
    empty = dict.fromkeys(("gpus", "allocated", "closed", "running", "waiting", "requested", "busy_nodes"), 0)
    ClusterMinute.objects.create(cluster=cluster, at=clock.now() - timedelta(hours=1), **empty)


class Clock:
    def __init__(self):
        self.now = clock.now()

    def later(self, **time):
        self.now += timedelta(**time)


@pytest.fixture
def times():
    return Clock()


@pytest.fixture
def turn(cluster, slurm, times):
    """One turn of the cluster and one of the sleep loop, some seconds later."""

    def run(seconds=10, schedules=False):
        row = Cluster.objects.get(pk=cluster.pk)
        times.later(seconds=1)
        send_commands_once(row, slurm, times.now)
        times.later(seconds=1)
        sync_cluster_once(row, slurm, times.now)
        if schedules:
            evict_from_drained_nodes_once(row, times.now)
            schedule_once(row, LIVE_POLICIES["fifo"], times.now, lambda: None)
            send_commands_once(row, slurm, times.now)
        times.later(seconds=seconds)
        return manage_sleep_once(Cluster.objects.get(pk=cluster.pk), times.now)

    return run


def states():
    rows = NodeSleep.objects.order_by("node__name", "pk").values_list("node__name", "state")
    return {name: str(state) for name, state in rows}


def sleep_of(name):
    return NodeSleep.objects.select_related("node", "cluster").get(node__name=name, closed_at=None)


def all_asleep(turn, slurm):
    """All nodes but the reserve sleep."""
    for _ in range(12):
        turn()
    asleep = [name for name, state in states().items() if state == "asleep"]
    assert len(asleep) == 3
    return asleep


def test_nodes_that_are_not_needed_sleep_one_after_the_other(turn, slurm):
    turn()
    assert states() == {"seren-001": "requested"}
    turn()
    assert NodeFlag.POWERED_DOWN in slurm.machines["seren-001"].flags
    assert states() == {"seren-001": "asleep", "seren-002": "requested"}

    for _ in range(10):
        turn()

    assert list(states().values()) == ["asleep"] * 3
    assert Event.objects.filter(type="node.sleep_requested").count() == 3
    assert Node.objects.get(name="seren-001").badge.label == "POWERED_DOWN"
    assert Node.objects.get(name="seren-001").is_schedulable


@pytest.mark.parametrize("mode", ["observe", "propose"])
def test_other_modes_record_nodes_and_leave_them_awake(cluster, turn, slurm, mode):
    Cluster.objects.update(sleep_mode=mode)

    turn()
    turn()

    assert states() == dict.fromkeys(NAMES[:3], "observed" if mode == "observe" else "proposed")
    assert not ClusterCommand.objects.filter(kind="sleep").exists()


def test_nothing_sleeps_where_acme_does_not_drive_or_the_mode_is_off(cluster, turn):
    Cluster.objects.update(mode="observe")
    turn()
    Cluster.objects.update(mode="drive", sleep_mode="off")
    turn()

    assert states() == {}
    assert clusters_with_sleep() == []


def test_approved_proposal_sleeps_and_a_declined_one_is_not_proposed_again(cluster, turn, slurm, times):
    Cluster.objects.update(sleep_mode="propose")
    turn()
    operator = make.author("olga")

    sleep_actions.approve(sleep_of("seren-001"), author=operator, now=times.now)
    sleep_actions.decline(sleep_of("seren-002"), author=operator, now=times.now)
    turn()
    turn()

    assert states() == {
        "seren-001": "asleep",
        "seren-002": "declined",
        "seren-003": "proposed",
        "seren-004": "proposed",
    }
    assert sleep_of("seren-001").requested_by == "olga"
    with pytest.raises(StateConflict, match="not proposed"):
        sleep_actions.approve(sleep_of("seren-001"), author=operator, now=times.now)


def test_proposal_for_a_node_that_got_a_job_is_withdrawn(cluster, turn):
    Cluster.objects.update(sleep_mode="propose")
    turn()
    make.attempt(make.job(gpus_per_node=1), on=["seren-001"])

    turn()

    assert states()["seren-001"] == "withdrawn"


def test_job_wakes_a_sleeping_node_at_once_and_runs_after_its_boot(cluster, turn, slurm, times):
    asleep = all_asleep(turn, slurm)
    awake = next(name for name in NAMES if name not in asleep)
    jobs = make.jobs({"gpus_per_node": 8}, {"gpus_per_node": 8})

    turn(schedules=True)

    attempts = Attempt.objects.filter(job__in=jobs).order_by("pk")
    assert [attempt.nodelist for attempt in attempts] == [awake, asleep[0]]
    assert "1 node must wake up first" in Event.objects.filter(job=jobs[1], type="job.state_changed").last().why
    assert sleep_of(asleep[0]).state == NodeSleepState.WAKING
    turn()
    assert NodeFlag.POWERING_UP in slurm.machines[asleep[0]].flags
    assert sleep_of(asleep[0]).state == NodeSleepState.WAKING
    times.later(minutes=4)
    slurm.set_flags(asleep[0])
    turn()
    ended = NodeSleep.objects.get(node__name=asleep[0])
    assert ended.state == NodeSleepState.AWAKE
    assert timedelta(minutes=4) < ended.closed_at - ended.wake_requested_at < timedelta(minutes=5)


def test_node_that_the_cluster_boots_for_a_job_is_not_asked_to_boot_again(cluster, turn, slurm, times):
    """Slurm would wait for the second boot in vain, and set the node down."""
    asleep = all_asleep(turn, slurm)
    asked = []
    slurm.power_up = asked.append
    make.jobs({"gpus_per_node": 8}, {"gpus_per_node": 8})

    turn(seconds=1, schedules=True)
    assert (asked, sleep_of(asleep[0]).state) == ([], NodeSleepState.WAKING)
    slurm.set_flags(asleep[0])  # it has booted
    turn(seconds=1)
    turn(seconds=1)
    turn(seconds=1)

    assert NodeSleep.objects.get(node__name=asleep[0]).state == NodeSleepState.AWAKE


def test_attempt_is_submitted_to_kubernetes_only_when_its_node_is_awake(cluster, turn, slurm, times):
    asleep = all_asleep(turn, slurm)
    slurm.traits = replace(slurm.traits, powers_nodes=False)
    make.jobs({"gpus_per_node": 8}, {"gpus_per_node": 8})

    turn(schedules=True)
    assert len(slurm.sent) == 1

    times.later(minutes=1)
    turn()
    slurm.set_flags(asleep[0])
    turn()
    assert NodeSleep.objects.get(node__name=asleep[0]).state == NodeSleepState.AWAKE
    times.later(minutes=1)
    turn()
    assert [request.nodes for request in slurm.sent][1:] == [(asleep[0],)]


def test_node_that_does_not_wake_up_is_an_incident_and_its_job_runs_elsewhere(cluster, turn, slurm, times):
    asleep = all_asleep(turn, slurm)
    job = make.jobs({"gpus_per_node": 8}, {"gpus_per_node": 8})[1]
    turn(schedules=True)
    times.later(minutes=31)

    turn()

    broken = Node.objects.get(name=asleep[0])
    assert NodeSleep.objects.get(node=broken).state == NodeSleepState.FAILED
    assert (broken.drain_requested, broken.drain_mode) == (True, "now")
    incident = Incident.objects.get()
    assert (incident.root_cause, incident.subject, incident.state) == ("NodeDidNotWake", broken.name, "open")
    assert "did not wake up within 31 min" in broken.reason
    evict_from_drained_nodes_once(cluster, times.now)
    attempt = Attempt.objects.get(job=job)
    assert attempt.stop_state == State.PENDING
    slurm.end(attempt.key, State.CANCELLED, times.now)
    turn(schedules=True)
    turn(schedules=True)
    newest = Attempt.objects.filter(job=job).order_by("-pk").first()
    assert newest.nodelist in asleep[1:]
    assert sleep_of(newest.nodelist).state == NodeSleepState.WAKING


def test_job_that_was_never_submitted_runs_elsewhere_if_its_node_does_not_wake_up(cluster, turn, slurm, times):
    asleep = all_asleep(turn, slurm)
    slurm.traits = replace(slurm.traits, powers_nodes=False)
    job = make.jobs({"gpus_per_node": 8}, {"gpus_per_node": 8})[1]
    turn(schedules=True)
    times.later(minutes=31)
    turn()

    for _ in range(3):
        turn(schedules=True)

    first, second = Attempt.objects.filter(job=job).order_by("pk")
    assert (first.nodelist, first.backend_id, second.nodelist) == (asleep[0], "", asleep[1])
    assert first.ended_at is not None


def test_node_that_is_down_after_its_boot_is_an_incident_that_ends_when_it_returns(cluster, turn, slurm, times):
    asleep = all_asleep(turn, slurm)
    sleep_actions.wake_by_user(sleep_of(asleep[0]), author=make.author("olga"), now=times.now)
    turn()
    slurm.set_flags(asleep[0])
    changed = {"state": NodeState.DOWN, "reason": "ResumeTimeout reached"}
    slurm.machines[asleep[0]] = replace(slurm.machines[asleep[0]], **changed)
    turn()

    assert NodeSleep.objects.get(node__name=asleep[0]).state == NodeSleepState.FAILED
    assert "(ResumeTimeout reached)" in Node.objects.get(name=asleep[0]).reason
    slurm.machines[asleep[0]] = replace(slurm.machines[asleep[0]], state=NodeState.IDLE, reason="")
    node_actions.resume(Node.objects.get(name=asleep[0]), author=make.author("olga"), now=times.now)
    turn()
    turn()
    assert Incident.objects.get().state == "resolved"


def test_second_failure_of_a_day_lowers_the_mode_to_propose(cluster, turn, slurm, times):
    all_asleep(turn, slurm)
    for _ in range(2):
        row = NodeSleep.objects.active().first()
        sleep_actions.wake(row, author=SLEEPER, why="test", now=times.now)
        sleep_actions.record_failed_wake(row, "it did not wake up", times.now)
    NodeSleep.objects.active().update(state=NodeSleepState.AWAKE, closed_at=times.now)
    for name in NAMES:
        slurm.set_flags(name)
    Node.objects.update(drain_requested=False)
    ClusterCommand.objects.all().delete()
    NodeSleep.objects.filter(state=NodeSleepState.AWAKE).update(closed_at=times.now - timedelta(days=2))

    turn()
    turn()

    assert set(NodeSleep.objects.open().values_list("state", flat=True)) == {"proposed"}


def test_node_that_failed_twice_in_a_month_does_not_sleep(cluster, turn, times):
    node = Node.objects.get(name="seren-001")
    for days in (3, 5):
        at = times.now - timedelta(days=days)
        NodeSleep.objects.create(cluster=cluster, node=node, state=NodeSleepState.FAILED, closed_at=at)

    for _ in range(8):
        turn()

    assert states() == dict.fromkeys(["seren-002", "seren-003", "seren-004"], "asleep") | {"seren-001": "failed"}


@pytest.mark.parametrize("closed", ["drained", "tested", "reserved", "in maintenance"])
def test_drained_tested_and_reserved_nodes_never_sleep(cluster, turn, slurm, times, closed):
    node = Node.objects.get(name="seren-001")
    if closed == "drained":
        node_actions.drain(node, author=make.author("olga"), why="fan", now=times.now)
    elif closed == "tested":
        ClusterCommand.objects.create(cluster=cluster, node=node, kind="test", due_at=times.now + timedelta(days=1))
    elif closed == "reserved":
        slurm.set_flags("seren-001", NodeFlag.RESERVED)
    else:
        window = cluster.maintenances.create(
            name="pumps",
            reason="new pumps",
            start_at=times.now + timedelta(minutes=30),
            end_at=times.now + timedelta(hours=2),
            by="olga",
        )
        window.nodes.add(node)

    for _ in range(8):
        turn()

    assert "seren-001" not in states()
    assert "asleep" in states().values()


def test_sleeping_node_that_is_drained_wakes_up(cluster, turn, slurm, times):
    asleep = all_asleep(turn, slurm)
    node_actions.drain(Node.objects.get(name=asleep[0]), author=make.author("olga"), why="fan", now=times.now)

    turn()

    assert sleep_of(asleep[0]).state == NodeSleepState.WAKING


def test_nodes_wake_up_when_the_mode_is_switched_off(cluster, turn, slurm, times):
    asleep = all_asleep(turn, slurm)
    Cluster.objects.update(sleep_mode="off")
    assert clusters_with_sleep() == [cluster.pk]

    turn()
    turn()
    for name in asleep:
        slurm.set_flags(name)
    turn()
    turn()

    assert set(states().values()) == {"awake"}
    assert clusters_with_sleep() == []


def test_waiting_jobs_wake_nodes_before_they_start(cluster, turn, slurm, times):
    """A job whose begin time is near: its nodes boot before it may start."""
    all_asleep(turn, slurm)
    times.later(hours=1)
    make.job(nodes=3, gpus_per_node=8)
    Job.objects.update(begin_at=times.now + timedelta(minutes=5), reason="BeginTime")

    turn()

    assert sum(state == "waking" for state in states().values()) == 3


def test_waiting_jobs_count_as_the_nodes_that_they_would_fill(cluster, times):
    make.jobs({"gpus_per_node": 1}, {"gpus_per_node": 4}, {"gpus_per_node": 8, "nodes": 2}, {"gpus_per_node": 0})
    make.jobs({"gpus_per_node": 8}, {"gpus_per_node": 8})
    held, dependent = Job.objects.order_by("-pk")[:2]
    Job.objects.filter(pk=held.pk).update(hold="user")
    Job.objects.filter(pk=dependent.pk).update(reason="Dependency")

    assert node_sleeps.queued_nodes(cluster, times.now) == 3 + 1


def test_waiting_shares_of_gpus_count_as_what_they_are_of_a_node(cluster, times):
    shares = make.jobs(*[{"gpus_per_node": 0}] * 16)
    Job.objects.filter(pk__in=[job.pk for job in shares]).update(gpu_milli=500)

    assert node_sleeps.queued_nodes(cluster, times.now) == 1


def test_silent_cluster_changes_nothing(cluster, turn, slurm, times):
    asleep = all_asleep(turn, slurm)
    sleep_actions.wake_by_user(sleep_of(asleep[0]), author=make.author("olga"), now=times.now)
    Cluster.objects.update(last_contact_at=times.now)
    times.later(hours=5)

    assert manage_sleep_once(Cluster.objects.get(), times.now) == 0
    assert sleep_of(asleep[0]).state == NodeSleepState.WAKING


def test_job_that_starts_between_look_and_act_keeps_its_node_awake(cluster, turn, slurm):
    turn_job = make.job(gpus_per_node=1)

    def start():
        make.attempt(turn_job, on=["seren-001"])

    with before_statement('FROM "jobs_node"', "FOR UPDATE OF", act=start):
        turn()

    assert states().get("seren-001") in (None, "withdrawn")


def test_one_node_that_cannot_be_followed_does_not_stop_the_others(cluster, turn, slurm, times):
    asleep = all_asleep(turn, slurm)
    for name in asleep[:2]:
        sleep_actions.wake_by_user(sleep_of(name), author=make.author("olga"), now=times.now)
    turn()
    for name in asleep[:2]:
        slurm.set_flags(name)
    broken = NodeSleep.objects.get(node__name=asleep[0])

    with failing_statement('UPDATE "scheduling_nodesleep"', broken.pk, error=RuntimeError("broken row")):
        turn()

    assert sleep_of(asleep[0]).state == NodeSleepState.WAKING
    assert NodeSleep.objects.get(node__name=asleep[1]).state == NodeSleepState.AWAKE


def test_cluster_that_refuses_to_power_down_keeps_the_node_awake(cluster, turn, slurm):
    slurm.before = failing(RequestRejected("no SuspendProgram"), "power_down")

    turn()
    turn()

    sleep = NodeSleep.objects.get(node__name="seren-001")
    assert (sleep.state, sleep.last_error) == (NodeSleepState.WITHDRAWN, "refused: no SuspendProgram")


def test_node_that_the_cluster_let_sleep_itself_is_adopted(cluster, turn, slurm):
    slurm.set_flags("seren-004", NodeFlag.POWERED_DOWN)

    turn()

    assert (sleep_of("seren-004").state, sleep_of("seren-004").why) == (
        NodeSleepState.ASLEEP,
        "The cluster let it sleep.",
    )


def test_drained_node_that_did_not_wake_up_is_left_to_its_operator(cluster, turn, slurm, times):
    asleep = all_asleep(turn, slurm)
    sleep_actions.record_failed_wake(sleep_of(asleep[0]), "it did not wake up", times.now)
    for _ in range(3):
        turn()
        times.later(hours=1)

    assert NodeSleep.objects.filter(node__name=asleep[0]).count() == 1


def test_old_sleeps_are_deleted_and_open_ones_are_kept(cluster, times):
    nodes = Node.objects.order_by("name")
    for node, days in zip(nodes, (91, 89), strict=False):
        at = times.now - timedelta(days=days)
        NodeSleep.objects.create(cluster=cluster, node=node, state=NodeSleepState.AWAKE, closed_at=at)
    NodeSleep.objects.create(cluster=cluster, node=nodes[0], state=NodeSleepState.ASLEEP)

    assert delete_old_sleeps(times.now) == 1
    assert NodeSleep.objects.count() == 2


def test_wake_up_waits_until_the_node_has_fallen_asleep(cluster, turn, slurm, times):
    turn()
    slurm.power_down = lambda name: slurm.set_flags(name, NodeFlag.POWERING_DOWN)
    turn()
    sleep_actions.wake_by_user(sleep_of("seren-001"), author=make.author("olga"), now=times.now)
    turn()
    assert slurm.machines["seren-001"].flags == {NodeFlag.POWERING_DOWN}
    slurm.set_flags("seren-001", NodeFlag.POWERED_DOWN)
    turn()
    turn()
    assert slurm.machines["seren-001"].flags == {NodeFlag.POWERING_UP}


def test_lost_wake_up_is_repeated(cluster, turn, slurm, times):
    asleep = all_asleep(turn, slurm)
    slurm.power_up = lambda name: None
    sleep_actions.wake_by_user(sleep_of(asleep[0]), author=make.author("olga"), now=times.now)
    turn()
    times.later(minutes=3)
    turn()

    assert ClusterCommand.objects.filter(node__name=asleep[0], kind="wake").count() == 2


def test_snapshot_offers_a_sleeping_node_with_its_measured_boot(cluster, turn, slurm, times):
    asleep = all_asleep(turn, slurm)
    other = Node.objects.get(name=asleep[1])
    for seconds in (100, 120):
        NodeSleep.objects.create(
            cluster=cluster,
            node=Node.objects.exclude(name__in=asleep).get(),
            state=NodeSleepState.AWAKE,
            wake_requested_at=times.now - timedelta(seconds=seconds),
            closed_at=times.now,
        )

    nodes = {node.name: node.boot_s for node in snapshot.take_snapshot(cluster, times.now).nodes}

    assert nodes[other.name] == 120
    assert sorted(nodes.values()) == [0, 120, 120, 120]
