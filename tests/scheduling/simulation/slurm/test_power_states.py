"""Nodes of the simulated cluster that sleep and wake up, as a slurmctld with SuspendProgram and ResumeProgram."""

from __future__ import annotations

import pytest

from jobs.core.lifecycle import Flag, NodeFlag, NodeState, State
from scheduling.simulation.machines import dcgm_exporter
from scheduling.simulation.machines.faults import FaultKind
from scheduling.simulation.machines.scripts.play import SimulatedExecutor
from scheduling.simulation.slurm.controller import ClusterController
from scheduling.simulation.slurm.store import StateStore
from scheduling.simulation.slurm.values import SlurmError
from tests.scheduling.simulation.machines.make import NODES, NOW, request

from .make import after, controller, snapshot

A, B = NODES[:2]
SUSPEND_S, BOOT_S, RESUME_TIMEOUT_S = 10, 60, 300


def flags(cluster, seconds, name=A):
    cluster.advance_to(NOW + seconds)
    return cluster.node_state(name)[1]


def asleep(*names):
    cluster = controller()
    for name in names:
        cluster.power_down(name, NOW)
    cluster.advance_to(NOW + SUSPEND_S)
    return cluster


def test_idle_node_falls_asleep_and_boots():
    cluster = controller()
    cluster.power_down(A, NOW)

    assert flags(cluster, 0) == {NodeFlag.POWERING_DOWN}
    assert flags(cluster, SUSPEND_S) == {NodeFlag.POWERED_DOWN}
    cluster.power_up(A, NOW + 100)
    assert flags(cluster, 100) == {NodeFlag.POWERING_UP, NodeFlag.NOT_RESPONDING}
    assert cluster.node_state(A)[0] == NodeState.IDLE
    assert flags(cluster, 100 + BOOT_S) == frozenset()
    assert cluster.nodes[A].boot_at == NOW + 100 + BOOT_S


def test_busy_node_finishes_its_jobs_and_starts_no_others_before_it_sleeps():
    cluster = controller()
    running = cluster.submit(request(A, seconds=50), NOW)
    cluster.advance_to(NOW)
    cluster.power_down(A, NOW + 1)
    waiting = cluster.submit(request(A), NOW + 2)

    assert flags(cluster, 40) == {NodeFlag.POWER_DOWN}
    assert (cluster.jobs[running.id].state, cluster.jobs[waiting.id].reason) == (State.RUNNING, "ReqNodeNotAvail")
    assert after(cluster, 55, running).state == State.COMPLETED
    assert NodeFlag.POWERING_DOWN in flags(cluster, 55)


def test_power_up_keeps_a_busy_node_awake():
    cluster = controller()
    cluster.submit(request(A, seconds=50), NOW)
    cluster.advance_to(NOW)
    cluster.power_down(A, NOW + 1)

    cluster.power_up(A, NOW + 2)

    assert flags(cluster, 100) == frozenset()


def test_job_wakes_its_nodes_and_its_time_begins_after_the_boot():
    cluster = asleep(A)
    gang = cluster.submit(request(A, B, seconds=100, limit_s=130.0), NOW + 20)

    job = after(cluster, 21, gang)

    assert (job.state, job.flags) == (State.RUNNING, {Flag.CONFIGURING})
    assert NodeFlag.POWERING_UP in cluster.node_state(A)[1]
    job = after(cluster, 20 + BOOT_S + 1, gang)
    assert (job.flags, job.started_at) == (frozenset(), NOW + 20 + BOOT_S)
    assert after(cluster, 20 + BOOT_S + 102, gang).state == State.COMPLETED


def test_node_that_is_asked_to_wake_while_it_falls_asleep_boots_afterwards():
    cluster = controller()
    cluster.power_down(A, NOW)

    cluster.power_up(A, NOW + 1)

    assert NodeFlag.POWERING_UP in flags(cluster, SUSPEND_S)
    assert flags(cluster, SUSPEND_S + BOOT_S) == frozenset()


def test_node_that_is_asked_to_wake_while_it_boots_is_down_as_it_does_not_boot_twice():
    cluster = asleep(A)
    cluster.power_up(A, NOW + 20)

    cluster.power_up(A, NOW + 21)

    assert NodeFlag.POWERING_UP in flags(cluster, 21 + BOOT_S)
    flags(cluster, 21 + RESUME_TIMEOUT_S)
    assert (cluster.node_state(A)[0], cluster.nodes[A].reason) == (NodeState.DOWN, "ResumeTimeout reached")


def test_job_that_starts_on_a_booting_node_waits_for_that_boot():
    cluster = asleep(A)
    first = cluster.submit(request(A, seconds=100), NOW + 20)
    cluster.advance_to(NOW + 21)
    second = cluster.submit(request(A, seconds=100), NOW + 25)

    job = after(cluster, 20 + BOOT_S + 1, second)

    assert flags(cluster, 20 + BOOT_S + 1) == frozenset()
    assert (job.state, cluster.jobs[first.id].state) == (State.RUNNING, State.RUNNING)


def test_node_that_does_not_wake_is_down_until_it_is_resumed():
    cluster = asleep(A)
    job = cluster.submit(request(A), NOW + 20)
    cluster.inject_fault(FaultKind.NO_WAKE, NOW + 20, node=A)

    assert after(cluster, 20 + RESUME_TIMEOUT_S, job).state == State.NODE_FAIL
    assert (cluster.node_state(A)[0], cluster.nodes[A].reason) == (NodeState.DOWN, "ResumeTimeout reached")
    with pytest.raises(SlurmError):
        cluster.power_down(A, NOW + 400)
    cluster.resume(A, NOW + 400)
    cluster.advance_to(NOW + 400)
    assert cluster.node_state(A) == (NodeState.IDLE, frozenset())


def test_sleeping_node_has_no_telemetry():
    cluster = asleep(A)

    samples = dcgm_exporter.simulated_samples(cluster, SimulatedExecutor().run_of_job, seed=0, now=NOW + 30)
    ports = dcgm_exporter.nic_ports(cluster, now=NOW + 30)

    assert {sample.node for sample in samples} == {port.node for port in ports} == set(NODES[1:])


@pytest.mark.parametrize("at", [5.0, 50.0, 100.0])
def test_node_goes_on_sleeping_or_waking_after_a_restart_of_the_controller(tmp_path, at):
    cluster, store = controller(), StateStore(tmp_path / "cluster.sqlite3")
    store.begin(snapshot())
    cluster.power_down(A, NOW)
    cluster.submit(request(A), NOW + 60)
    cluster.advance_to(NOW + at)
    store.write(cluster.take_changes())

    restarted = ClusterController(store.load(), SimulatedExecutor(), NOW + at)

    for seconds in (at, 70, 119, 121, 130):
        assert flags(restarted, max(seconds, at)) == flags(cluster, max(seconds, at))
    assert restarted.jobs[1].state == State.RUNNING
    store.close()
