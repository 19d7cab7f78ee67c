"""Faults of the simulated cluster: which jobs they hit, and where they appear."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random
from signal import SIGUSR1, SIGUSR2

import pytest

from failures.detection import stacks
from failures.diagnosis import lines
from failures.diagnosis.parsers import gpu_events
from jobs.core.lifecycle import JobKind, NodeState, State
from scheduling.backends import telemetry
from scheduling.simulation.machines import dcgm_exporter
from scheduling.simulation.machines.failure_reasons import FailureFamily, draw_reason
from scheduling.simulation.machines.faults import FAULT_WEIGHTS, FaultKind, FaultModel
from scheduling.simulation.machines.scripts import kernel_log
from scheduling.simulation.machines.scripts.job_output import lines_until as log_lines
from scheduling.simulation.machines.scripts.job_output import plan_log
from scheduling.simulation.machines.scripts.logs import JobLogWriter, KernelLogWriter, output_path
from scheduling.simulation.machines.scripts.play import SimulatedExecutor
from scheduling.simulation.slurm.controller import ClusterController
from scheduling.simulation.slurm.store import StateStore
from scheduling.simulation.slurm.values import SlurmError
from tests.scheduling.simulation.machines.make import NODES, NOW, request

from .make import controller, snapshot

A, B = NODES[:2]


def busy(*nodes: str, seconds: float = 10_000.0, **changed):
    """A controller in which one training job has run for a minute."""
    cluster = controller()
    job = cluster.submit(request(*(nodes or (A,)), seconds=seconds, **changed), NOW)
    cluster.advance_to(NOW + 60)
    return cluster, job.id


def job_lines(cluster: ClusterController, job_id: int, until: float = inf) -> list[str]:
    job = cluster.jobs[job_id]
    return log_lines(plan_log(job, SimulatedExecutor().run_of_job(job)), 0, until)


def reading(cluster: ClusterController, now: float):
    samples = dcgm_exporter.simulated_samples(cluster, SimulatedExecutor().run_of_job, seed=0, now=now)
    return telemetry.parse(dcgm_exporter.exporter_page(samples)).by_place


@pytest.mark.parametrize(
    ("kind", "xid"), [(FaultKind.ECC, 48), (FaultKind.NVLINK, 74), (FaultKind.OFF_BUS, 79), (FaultKind.FABRIC, None)]
)
def test_hardware_fault_ends_the_job_and_appears_in_the_kernel_log(kind, xid):
    cluster, job = busy(A, B)

    cluster.inject_fault(kind, NOW + 61, node=A, gpu=1)
    cluster.advance_to(NOW + 70)

    ended = cluster.jobs[job]
    assert (ended.state, ended.exit.code, ended.reason) == (State.FAILED, 1, "NonZeroExitCode")
    kernel = kernel_log.kernel_log_lines(cluster.nodes[A], cluster.faults, now=NOW + 100)
    seen = [event.code for line in kernel if (event := gpu_events.parse_gpu_event(lines.parse(0, line)))]
    assert (xid in seen) if xid else (seen == [] and "Link DOWN" in kernel[0])
    assert kernel_log.kernel_log_lines(cluster.nodes[B], cluster.faults, now=NOW + 100) == []


def test_telemetry_agrees_with_the_kernel_log():
    cluster, _ = busy(A)
    for kind, gpu in ((FaultKind.ECC, 0), (FaultKind.NVLINK, 1), (FaultKind.OFF_BUS, 5)):
        cluster.inject_fault(kind, NOW + 61, node=A, gpu=gpu)

    seen, page = (
        reading(cluster, NOW + 62),
        dcgm_exporter.exporter_page(
            dcgm_exporter.simulated_samples(cluster, SimulatedExecutor().run_of_job, seed=0, now=NOW + 62)
        ),
    )

    assert (seen[A, 0].last_xid, seen[A, 1].last_xid, seen[A, 2].last_xid) == (48, 74, 0)
    assert (A, 5) not in seen
    assert 'DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="0"' in page and page.count("# TYPE") == len(dcgm_exporter.GPU_METRICS)


def test_faulty_gpu_fails_later_jobs_until_the_node_is_repaired():
    cluster, first = busy(A, gpus_per_node=8)
    cluster.inject_fault(FaultKind.NVLINK, NOW + 61, node=A, gpu=3)
    cluster.advance_to(NOW + 80)

    second = cluster.submit(request(A, gpus_per_node=8, seconds=500), NOW + 81)
    cluster.advance_to(NOW + 100)
    cluster.drain(A, "sick", "ada", NOW + 101)
    cluster.resume(A, NOW + 102)
    third = cluster.submit(request(A, gpus_per_node=8, seconds=500), NOW + 103)
    cluster.advance_to(NOW + 130)

    assert [cluster.jobs[job].state for job in (first, second.id)] == [State.FAILED] * 2
    assert cluster.jobs[third.id].state == State.RUNNING
    assert cluster.faults[0].jobs == (first, second.id)


def test_hanging_job_prints_nothing_and_does_not_end_by_itself():
    cluster, job = busy(A, seconds=100)

    cluster.inject_fault(FaultKind.HANG, NOW + 61, node=A)
    cluster.advance_to(NOW + 5_000)

    assert cluster.jobs[job].state == State.RUNNING
    assert len(job_lines(cluster, job, 70)) == len(job_lines(cluster, job, 5_000))
    spinning = reading(cluster, NOW + 5_000)[A, 0]
    assert spinning.util_percent > 95 and spinning.sm_active_ratio < 0.1
    cluster.cancel(job, NOW + 5_001)
    cluster.advance_to(NOW + 5_010)
    assert cluster.jobs[job].state == State.CANCELLED


def test_slow_gpu_slows_its_job_and_has_a_low_clock():
    cluster, job = busy(A, seconds=1_000)
    before = reading(cluster, NOW + 60)[A, 0]

    cluster.inject_fault(FaultKind.SLOW, NOW + 61, node=A, gpu=0)

    hot = reading(cluster, NOW + 90)[A, 0]
    assert hot.temperature_c > before.temperature_c + 20
    cluster.advance_to(NOW + 1_100)
    assert cluster.jobs[job].state == State.RUNNING
    rates = [
        float(line.split("tokens/s/gpu ")[1].split()[0]) for line in job_lines(cluster, job, 500) if "tokens/s" in line
    ]
    assert rates[-1] < 0.6 * rates[0]
    cluster.advance_to(NOW + 2_000)
    assert cluster.jobs[job].state == State.COMPLETED


def test_storage_outage_fails_many_jobs_for_one_cause():
    cluster = controller()
    ids = [cluster.submit(request(node, gpus_per_node=1, seconds=9_000), NOW).id for node in NODES for _ in range(6)]
    cluster.advance_to(NOW + 60)

    fault = cluster.inject_fault(FaultKind.STORAGE, NOW + 61)
    cluster.advance_to(NOW + 70)

    failed = {job for job in ids if cluster.jobs[job].state == State.FAILED}
    assert failed == set(fault.jobs) and len(failed) > len(ids) / 2
    assert all(kernel_log.kernel_log_lines(node, cluster.faults, now=NOW + 70) for node in cluster.nodes.values())


def test_loss_spike_appears_in_the_log_and_ends_no_job():
    cluster, job = busy(A, seconds=1_000)

    cluster.inject_fault(FaultKind.LOSS, NOW + 300, node=A)

    losses = [float(line.split("loss ")[1].split()[0]) for line in job_lines(cluster, job, 500) if "| loss" in line]
    assert losses[-1] > 2 * min(losses)
    assert cluster.jobs[job].state == State.RUNNING


def test_failed_node_is_repaired_and_logs_its_boot():
    cluster, job = busy(A)

    fault = cluster.inject_fault(FaultKind.DEATH, NOW + 61, node=A)

    assert cluster.jobs[job].state == State.NODE_FAIL
    assert cluster.node_state(A)[0] == NodeState.DOWN
    cluster.advance_to(fault.until + 1)
    assert cluster.node_state(A)[0] == NodeState.IDLE
    assert "Linux version" in kernel_log.kernel_log_lines(cluster.nodes[A], cluster.faults, now=fault.until + 1)[-1]


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ({"node": "nowhere"}, "'nowhere' does not exist"),
        ({"node": A, "gpu": 8}, "has no GPU 8"),
        ({"node": B}, "is down"),
    ],
)
def test_invalid_fault_target_is_named(where, sentence):
    cluster = controller()
    cluster.set_down(B, "test", "ada", NOW)

    with pytest.raises(SlurmError, match=sentence):
        cluster.inject_fault(FaultKind.ECC, NOW, **where)


def test_faults_and_their_impacts_survive_a_restart():
    store, cluster = StateStore(":memory:"), ClusterController(snapshot(), SimulatedExecutor(), NOW)
    store.begin(snapshot())
    job = cluster.submit(request(A, B, seconds=10_000), NOW)
    cluster.advance_to(NOW + 60)
    cluster.inject_fault(FaultKind.NVLINK, NOW + 61, node=A, gpu=0)
    store.write(cluster.take_changes())

    again = ClusterController(store.load(), SimulatedExecutor(), NOW + 62)
    for one in (cluster, again):
        one.advance_to(NOW + 100)

    assert again.take_snapshot() == cluster.take_snapshot()
    assert again.jobs[job.id].state == State.FAILED
    store.close()


def test_faults_are_drawn_by_their_weights():
    drawn = Counter(FaultModel(seed=1).kind(number) for number in range(4_000))

    for kind, weight in FAULT_WEIGHTS.items():
        assert drawn[kind] / 4_000 == pytest.approx(weight / sum(FAULT_WEIGHTS.values()), abs=0.02)


def test_year_of_faults_leaves_the_controller_consistent():
    cluster, states = controller(faults=FaultModel(per_node_day=20, seed=3)), set()
    for hour in range(40):
        for node in NODES:
            cluster.submit(request(node, seconds=3_000), NOW + hour * 3_600)
        cluster.advance_to(NOW + hour * 3_600 + 3_599)
        changes = cluster.take_changes()
        states |= {job.state for job in (*changes.jobs, *changes.forgotten)}

    assert len({fault.kind for fault in cluster.faults}) > 4
    assert states >= {State.COMPLETED, State.FAILED}


def test_large_jobs_fail_by_hardware_and_small_ones_by_scripts():
    def families(gpus: int) -> Counter:
        dice = Random(7)
        return Counter(draw_reason(dice, JobKind.PRETRAIN, gpus).family for _ in range(500))

    assert families(1)[FailureFamily.SCRIPT] > 300
    assert families(1024)[FailureFamily.INFRASTRUCTURE] > families(1)[FailureFamily.INFRASTRUCTURE]


def test_kernel_logs_are_rewritten_after_a_crash(tmp_path):
    cluster, _ = busy(A)
    cluster.inject_fault(FaultKind.ECC, NOW + 61, node=A, gpu=0)

    first = KernelLogWriter(tmp_path).write(cluster.nodes.values(), cluster.faults, NOW + 62)
    content = (tmp_path / "kernel" / f"{A}.log").read_text()
    again = KernelLogWriter(tmp_path).write(cluster.nodes.values(), cluster.faults, NOW + 5_000)

    assert (first, again) == (1, 1)
    assert "Xid (PCI:0000:0f:00): 48" in content
    assert (tmp_path / "kernel" / f"{A}.log").read_text() == content


# --- stack dumps


def hanging_job(root, **environment):
    """A job of eight ranks with a log file that has hung for a minute."""
    book = JobLogWriter(root)
    cluster = ClusterController(snapshot(), SimulatedExecutor(stage=book), NOW)
    job_request = request(A, B, seconds=10_000.0, stdout=str(root / "job.log"))
    job_request = replace(job_request, environment={**job_request.environment, **environment})
    job = cluster.submit(job_request, NOW)
    cluster.advance_to(NOW + 60)
    cluster.inject_fault(FaultKind.HANG, NOW + 61, node=B)
    cluster.advance_to(NOW + 120)
    book.write(NOW + 120)
    return cluster, book, cluster.jobs[job.id]


def rank_positions(root, job):
    return stacks.rank_positions(stacks.parse_stacks(Path(output_path(job, root)).read_text()))


def test_ranks_of_a_hanging_job_print_their_stacks(tmp_path):
    cluster, _, job = hanging_job(tmp_path, ACME_STACKS_SIGNAL="USR2")

    cluster.signal(job.id, SIGUSR2, NOW + 130)

    places = rank_positions(tmp_path, job)
    assert sorted(places) == list(range(8)) and stacks.summarize_stacks(places, 8).sentences
    assert sum(place.name == "all_reduce" for place in places.values()) >= 7
    assert cluster.jobs[job.id].state == State.RUNNING


@pytest.mark.parametrize(("environment", "number"), [({}, SIGUSR2), ({"ACME_STACKS_SIGNAL": "USR2"}, SIGUSR1)])
def test_simulated_job_ignores_unexpected_signals(tmp_path, environment, number):
    cluster, _, job = hanging_job(tmp_path, **environment)

    cluster.signal(job.id, number, NOW + 130)

    assert rank_positions(tmp_path, job) == {}


def test_stacks_in_a_log_do_not_disturb_its_lines_after_a_restart(tmp_path):
    cluster, _, job = hanging_job(tmp_path, ACME_STACKS_SIGNAL="USR2")
    cluster.signal(job.id, SIGUSR2, NOW + 130)
    before = Path(output_path(job, tmp_path)).read_text()

    again = JobLogWriter(tmp_path)
    again.resume_job_log(job, SimulatedExecutor().run_of_job(job))
    again.write(NOW + 500)

    assert Path(output_path(job, tmp_path)).read_text() == before
