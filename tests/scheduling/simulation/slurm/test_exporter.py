"""Telemetry of simulated GPUs, parsed by the parser for real exporters."""

from __future__ import annotations

from scheduling.backends import telemetry
from scheduling.simulation.machines import dcgm_exporter
from scheduling.simulation.machines.faults import FaultKind
from scheduling.simulation.machines.scripts.play import SimulatedExecutor
from tests.scheduling.simulation.machines.make import NODES, NOW, request

from .make import controller


def reading(cluster, now):
    samples = dcgm_exporter.simulated_samples(cluster, SimulatedExecutor().run_of_job, seed=3, now=now)
    return telemetry.parse(dcgm_exporter.exporter_page(samples))


def busy(kind: str, seconds: float = 1000.0):
    cluster = controller()
    hints = {"ACME_KIND": kind, "SIM_DURATION_S": str(seconds), "SIM_END": "COMPLETED"}
    cluster.submit(request(NODES[0], environment=hints), NOW)
    cluster.advance_to(NOW + 100)
    return cluster


def test_page_contains_every_gpu_with_its_identity():
    seen = reading(controller(), NOW)

    assert (len(seen.gpus), seen.unreadable_lines) == (32, 0)
    assert len({gpu.uuid for gpu in seen.gpus}) == 32
    assert seen.gpus[0].model == "NVIDIA A100"


def test_same_time_gives_the_same_page():
    assert reading(busy("pretrain"), NOW + 100) == reading(busy("pretrain"), NOW + 100)
    assert reading(busy("pretrain"), NOW + 100) != reading(busy("pretrain"), NOW + 120)


def test_pretraining_load_is_high_and_an_idle_gpu_has_none():
    gpus = reading(busy("pretrain"), NOW + 100).by_place

    assert gpus[NODES[0], 0].util_percent > 90
    assert gpus[NODES[0], 0].sm_active_ratio > 0.6
    assert gpus[NODES[0], 7].util_percent == 0
    assert gpus[NODES[0], 7].power_w < 100 < gpus[NODES[0], 0].power_w


def test_evaluation_has_phases_with_an_idle_gpu():
    cluster = busy("evaluation", 1000)

    phases = [reading(cluster, NOW + at).by_place[NODES[0], 0].util_percent for at in (100, 500, 900)]

    assert phases[0] < 10 < phases[1] > 10 > phases[2]


def test_node_that_is_down_has_no_telemetry():
    cluster = controller()
    cluster.set_down(NODES[0], "test", "ada", NOW)

    assert NODES[0] not in {gpu.node for gpu in reading(cluster, NOW).gpus}


def test_device_error_stays_on_its_gpu_until_the_node_boots():
    cluster = controller()
    cluster.submit(request(NODES[0], seconds=5, end="FAILED:1:nvlink_error", gpus_per_node=2), NOW)
    cluster.advance_to(NOW + 20)

    assert reading(cluster, NOW + 20).by_place[NODES[0], 0].last_xid == 74
    cluster.set_down(NODES[0], "reboot", "ada", NOW + 30)
    cluster.resume(NODES[0], NOW + 40)
    assert reading(cluster, NOW + 40).by_place[NODES[0], 0].last_xid == 0


# --- counters


def page_with_fault(kind, after=30.0, gpu=2):
    cluster = controller()
    cluster.inject_fault(kind, NOW + 60, node=NODES[0], gpu=gpu)
    at = NOW + 60 + after
    samples = dcgm_exporter.simulated_samples(cluster, SimulatedExecutor().run_of_job, seed=3, now=at)
    return telemetry.parse(dcgm_exporter.exporter_page(samples, dcgm_exporter.nic_ports(cluster, now=at)))


def test_cluster_without_faults_has_no_error_counters():
    seen = telemetry.parse(
        dcgm_exporter.exporter_page(
            dcgm_exporter.simulated_samples(controller(), SimulatedExecutor().run_of_job, seed=3, now=NOW),
            dcgm_exporter.nic_ports(controller(), now=NOW),
        )
    )

    assert seen.unreadable_lines == 0 and not seen.nics_down
    assert {name for gpu in seen.gpus for name, value in gpu.counted.items() if value} <= {"ecc_sbe"}


def test_ecc_error_is_counted_with_a_pending_row_remap():
    mine = page_with_fault(FaultKind.ECC).by_place[NODES[0], 2].counted

    assert (mine["ecc_dbe"], mine["rows_pending"], mine["remap_failed"]) == (1, 1, 0)
    assert not page_with_fault(FaultKind.ECC).by_place[NODES[0], 3].counted["ecc_dbe"]


def test_link_error_hot_gpu_and_fabric_fault_appear_at_their_place():
    assert page_with_fault(FaultKind.NVLINK).by_place[NODES[0], 2].counted["nvlink_crc"] >= 1000
    assert page_with_fault(FaultKind.SLOW).by_place[NODES[0], 2].counted["slowed"] == 0x40
    assert page_with_fault(FaultKind.FABRIC).nics_down == {NODES[0]: ("mlx5_0:1",)}
    assert not page_with_fault(FaultKind.FABRIC, after=200.0).nics_down
