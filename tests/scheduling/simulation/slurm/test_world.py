"""The controller of a simulated cluster: jobs, nodes and time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from jobs.core.lifecycle import FINAL_STATES, Flag, NodeFlag, NodeState, State
from scheduling.simulation.machines.faults import FaultModel
from scheduling.simulation.machines.scripts.play import SimulatedExecutor
from scheduling.simulation.machines.values import ProcessExit
from scheduling.simulation.slurm.controller import ClusterController
from scheduling.simulation.slurm.store import StateStore
from scheduling.simulation.slurm.values import SlurmError
from tests.properties import examples
from tests.scheduling.simulation.machines.make import NODES, NOW, request

from .make import after, controller, snapshot

A, B = NODES[:2]


def test_job_goes_through_all_its_states():
    cluster = controller()
    job = cluster.submit(request(A), NOW)

    assert (after(cluster, 0, job).state, cluster.jobs[job.id].flags) == (State.RUNNING, {Flag.CONFIGURING})
    assert after(cluster, 1, job).flags == frozenset()
    ended = after(cluster, 101, job)
    assert (ended.state, ended.flags, ended.ended_at) == (State.COMPLETED, {Flag.COMPLETING}, NOW + 101)
    assert after(cluster, 102, job).flags == frozenset()


def test_job_gets_the_lowest_free_gpus_and_releases_them():
    cluster = controller()
    first, second = cluster.submit(request(A, seconds=10), NOW), cluster.submit(request(A), NOW)

    cluster.advance_to(NOW)

    assert [cluster.jobs[j.id].gpus[A] for j in (first, second)] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    third = cluster.submit(request(A), NOW + 5)
    assert after(cluster, 5, third).reason == "Resources"
    assert after(cluster, 12, third).gpus[A] == (0, 1, 2, 3)


def test_multi_node_job_starts_on_all_nodes_or_none():
    cluster = controller()
    cluster.submit(request(B, gpus_per_node=8, seconds=50), NOW)

    gang = cluster.submit(request(A, B), NOW)

    assert after(cluster, 1, gang).state == State.PENDING
    assert cluster.used_gpus(A) == ()
    assert after(cluster, 60, gang).nodes == (A, B)


def test_younger_job_does_not_overtake_an_older_one_on_the_same_node():
    cluster = controller()
    cluster.submit(request(A, gpus_per_node=6), NOW)
    wide = cluster.submit(request(A, gpus_per_node=8), NOW)
    narrow, elsewhere = cluster.submit(request(A, gpus_per_node=1), NOW), cluster.submit(request(B), NOW)

    cluster.advance_to(NOW)

    reasons = [cluster.jobs[j.id].reason for j in (wide, narrow, elsewhere)]
    assert reasons == ["Resources", "Priority", "None"]


def test_job_for_a_drained_node_waits_without_blocking_others():
    cluster = controller()
    cluster.drain(A, "fan", "ada", NOW)
    waiting, gang = cluster.submit(request(A), NOW), cluster.submit(request(A, B), NOW)
    other = cluster.submit(request(B), NOW)

    cluster.advance_to(NOW)

    reasons = [cluster.jobs[j.id].reason for j in (waiting, gang, other)]
    assert reasons == ["ReqNodeNotAvail", "ReqNodeNotAvail", "None"]
    cluster.resume(A, NOW + 1)
    assert after(cluster, 1, waiting).state == State.RUNNING


def test_drained_node_finishes_its_jobs():
    cluster = controller()
    job = cluster.submit(request(A), NOW)
    cluster.advance_to(NOW + 2)

    cluster.drain(A, "fan", "ada", NOW + 2)

    assert cluster.node_state(A) == (NodeState.MIXED, {NodeFlag.DRAIN})
    assert after(cluster, 200, job).state == State.COMPLETED
    assert cluster.node_state(A) == (NodeState.IDLE, {NodeFlag.DRAIN})


def test_node_failure_ends_every_job_on_the_node():
    cluster = controller()
    gang, other = cluster.submit(request(A, B), NOW), cluster.submit(request(NODES[2]), NOW)
    cluster.advance_to(NOW + 2)

    cluster.set_down(A, "Not responding", "slurm", NOW + 2)

    assert after(cluster, 5, gang).state == State.NODE_FAIL
    assert cluster.jobs[other.id].state == State.RUNNING
    assert cluster.node_state(A)[0] == NodeState.DOWN
    assert cluster.node_state(B) == (NodeState.IDLE, frozenset())


@pytest.mark.parametrize(
    ("end", "state", "ended"),
    [
        ("COMPLETED", State.COMPLETED, ProcessExit()),
        ("FAILED:7", State.FAILED, ProcessExit(code=7)),
        ("OUT_OF_MEMORY", State.OUT_OF_MEMORY, ProcessExit(signal=125)),
        ("NODE_FAIL", State.NODE_FAIL, ProcessExit()),
    ],
)
def test_job_ends_according_to_its_hint(end, state, ended):
    cluster = controller()
    job = cluster.submit(request(A, seconds=1, end=end), NOW)

    final = after(cluster, 10, job)

    assert (final.state, final.exit) == (state, ended)


def test_failed_node_stays_down_until_it_is_repaired():
    cluster = controller()
    cluster.submit(request(A, seconds=1, end="NODE_FAIL"), NOW)

    cluster.advance_to(NOW + 10)

    assert cluster.node_state(A)[0] == NodeState.DOWN
    cluster.advance_to(NOW + 9000)
    assert cluster.node_state(A)[0] == NodeState.IDLE
    assert cluster.nodes[A].boot_at > NOW


def test_time_limit_ends_a_job():
    cluster = controller()
    job = cluster.submit(request(A, seconds=1000, limit_s=60.0), NOW)

    assert after(cluster, 59, job).state == State.RUNNING
    assert (after(cluster, 61, job).state, cluster.jobs[job.id].reason) == (State.TIMEOUT, "TimeLimit")


def test_extended_time_limit_takes_effect():
    cluster = controller()
    job = cluster.submit(request(A, seconds=1000, limit_s=60.0), NOW)
    cluster.advance_to(NOW + 30)

    cluster.update(job.id, {"limit_s": 120.0}, NOW + 30)

    assert after(cluster, 100, job).state == State.RUNNING
    assert after(cluster, 121, job).state == State.TIMEOUT


@pytest.mark.parametrize("when", [0, 0.5, 5])
def test_cancelled_job_is_cancelled_at_once_and_soon_frees_its_gpus(when):
    cluster = controller()
    job = cluster.submit(request(A), NOW)
    cluster.advance_to(NOW + when)

    cluster.cancel(job.id, NOW + when)

    assert cluster.jobs[job.id].state == State.CANCELLED
    assert after(cluster, when + 2, job).flags == frozenset()
    assert cluster.used_gpus(A) == ()


def test_held_job_waits_for_its_release():
    cluster = controller()
    job = cluster.submit(request(A, held=True), NOW)

    assert after(cluster, 5, job).reason == "JobHeldUser"
    cluster.update(job.id, {"held": False}, NOW + 5)
    assert after(cluster, 5, job).state == State.RUNNING


@pytest.mark.parametrize(
    ("impossible", "number"),
    [
        (request("nowhere"), 2018),
        (request(A, gpus_per_node=9), 2014),
        (request(A, gpu_model="h100"), 2014),
        (request(A, cpus_per_node=1000), 2014),
        (request(A, memory_per_node_mb=10**9), 2014),
        (request(node_count=5), 2014),
        (request(A, node_count=2), 2014),
    ],
)
def test_impossible_request_is_rejected(impossible, number):
    with pytest.raises(SlurmError) as error:
        controller().submit(impossible, NOW)

    assert error.value.number == number


def test_unknown_and_ended_jobs_cannot_be_cancelled():
    cluster = controller()
    job = cluster.submit(request(A, seconds=1), NOW)
    cluster.advance_to(NOW + 10)

    for job_id, number in ((99, 2017), (job.id, 2021)):
        with pytest.raises(SlurmError) as error:
            cluster.cancel(job_id, NOW + 10)
        assert error.value.number == number


def test_ended_job_is_forgotten_after_five_minutes_and_its_id_is_not_reused():
    cluster = controller()
    job = cluster.submit(request(A, seconds=1), NOW)
    ended_at = after(cluster, 10, job).ended_at

    cluster.advance_to(ended_at + 299)
    assert job.id in cluster.jobs

    cluster.advance_to(ended_at + 300)
    assert job.id not in cluster.jobs
    assert cluster.submit(request(A), NOW + 4000).id == job.id + 1


def test_forgotten_job_is_stored_in_its_last_state():
    cluster = controller()
    job = cluster.submit(request(A, seconds=1, end="FAILED:3"), NOW)

    cluster.advance_to(NOW + 4000)  # it started, ended and was forgotten in one step

    changes = cluster.take_changes()
    assert changes.jobs == ()
    assert [(one.id, one.state, one.exit.code) for one in changes.forgotten] == [(job.id, State.FAILED, 3)]


def test_clock_offset_changes_later_timestamps_but_not_scheduled_events():
    cluster = controller()
    job = cluster.submit(request(A, seconds=100), NOW)
    cluster.advance_to(NOW + 50)

    cluster.set_clock_offset(300)

    ended = after(cluster, 200, job)
    assert (ended.submit_time, ended.start_time) == (NOW, NOW)
    assert (ended.ended_at, ended.end_time) == (NOW + 101, NOW + 401)
    assert cluster.submit(request(A), NOW + 200).submit_time == NOW + 500


def test_clock_offset_changes_the_time_of_a_drain():
    cluster = controller()
    cluster.set_clock_offset(-300)

    cluster.drain(A, "disk", "ada", NOW)

    assert cluster.nodes[A].reason_at == NOW - 300


def test_clock_offset_is_part_of_the_snapshot():
    cluster = controller()

    cluster.set_clock_offset(300)

    assert ClusterController(cluster.take_snapshot(), SimulatedExecutor(), NOW).clock_offset_s == 300
    assert cluster.take_changes().clock == cluster.take_snapshot().clock


def test_job_never_starts_before_its_submission():
    cluster = controller()
    cluster.submit(request(A, seconds=1), NOW)
    late = cluster.submit(request(B), NOW + 50)

    assert after(cluster, 60, late).started_at >= NOW + 50


def test_faults_are_drawn_from_the_seed():
    def story(seed: int) -> list[str]:
        cluster = controller(faults=FaultModel(per_node_day=24, seed=seed))
        cluster.advance_to(NOW + 20_000)
        return [f"{n.name} {n.down} {n.boot_at}" for n in cluster.nodes.values()]

    assert story(1) == story(1) != story(2)


def test_one_long_step_equals_many_short_steps():
    stepping, leaping = controller(), controller()
    for cluster in (stepping, leaping):
        for i in range(12):
            cluster.submit(request(NODES[i % 4], seconds=7 * i, end="FAILED:2" if i % 3 else "COMPLETED"), NOW)

    for tenth in range(3000):
        stepping.advance_to(NOW + tenth / 10)
    leaping.advance_to(NOW + 299.9)

    assert stepping.take_snapshot() == leaping.take_snapshot()


class WorldMachine(RuleBasedStateMachine):
    """Random commands and time steps: no GPU is held twice, ids never repeat, a restart changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.store = StateStore(":memory:")
        self.store.begin(snapshot())
        self.controller, self.now, self.ids = ClusterController(snapshot(), SimulatedExecutor(), NOW), NOW, []

    nodes = st.lists(st.sampled_from(NODES), min_size=0, max_size=3, unique=True)
    ends = st.sampled_from(["COMPLETED", "FAILED:3", "OUT_OF_MEMORY", "NODE_FAIL", "TIMEOUT"])

    @rule(
        nodes=nodes, gpus=st.integers(0, 8), seconds=st.integers(0, 40), end=ends, limit=st.sampled_from([None, 20.0])
    )
    def submit(self, nodes, gpus, seconds, end, limit):
        job_request = request(*nodes, gpus_per_node=gpus, seconds=seconds, end=end, limit_s=limit)
        self.ids.append(self.controller.submit(job_request, self.now).id)

    @rule(index=st.integers(0, 30))
    def cancel(self, index):
        if not self.ids:
            return
        try:
            self.controller.cancel(self.ids[index % len(self.ids)], self.now)
        except SlurmError:
            return

    @rule(node=st.sampled_from(NODES), what=st.sampled_from(["drain", "down", "resume"]))
    def touch(self, node, what):
        if what == "drain":
            self.controller.drain(node, "test", "ada", self.now)
        elif what == "down":
            self.controller.set_down(node, "test", "ada", self.now)
        else:
            self.controller.resume(node, self.now)

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, 7.0, 60.0, 4000.0]))
    def pass_time(self, seconds):
        self.now += seconds
        self.controller.advance_to(self.now)

    @rule()
    def restart(self):
        self.store.write(self.controller.take_changes())
        stored = self.store.load()
        assert stored.clock == self.controller.take_snapshot().clock
        assert {n.name: n for n in stored.nodes} == dict(self.controller.nodes)
        assert {j.id: j for j in stored.jobs} == dict(self.controller.jobs)
        self.controller = ClusterController(stored, SimulatedExecutor(), self.now)

    @invariant()
    def no_gpu_is_held_twice(self):
        held = Counter(
            (node, gpu)
            for job in self.controller.jobs.values()
            if job.holds_resources
            for node, indices in job.gpus.items()
            for gpu in indices
        )
        assert not held or max(held.values()) == 1
        for node in NODES:
            assert set(self.controller.used_gpus(node)) == {gpu for name, gpu in held if name == node}

    @invariant()
    def ids_never_repeat(self):
        assert len(set(self.ids)) == len(self.ids)

    @invariant()
    def a_job_has_all_of_its_gpus_or_none(self):
        for job in self.controller.jobs.values():
            if job.state == State.RUNNING:
                job_request = job.request
                assert len(job.nodes) == job_request.node_count
                assert all(len(job.gpus.get(node, ())) == job_request.gpus_per_node for node in job.nodes)

    def teardown(self):
        """After any sequence, all jobs end and all GPUs become free."""
        for node in NODES:
            self.controller.resume(node, self.now)
        for job in list(self.controller.jobs.values()):
            if job.state not in FINAL_STATES:
                self.controller.cancel(job.id, self.now)
        self.controller.advance_to(self.now + 100)
        assert all(self.controller.used_gpus(node) == () for node in NODES)
        assert all(job.state in FINAL_STATES and not job.flags for job in self.controller.jobs.values())
        self.store.close()


PairTestMachine = WorldMachine.TestCase
PairTestMachine.settings = examples(40, stateful_step_count=30, suppress_health_check=list(HealthCheck))
