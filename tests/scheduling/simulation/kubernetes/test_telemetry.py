"""GPU telemetry with the labels of pods, so that a reader knows which GPUs a pod holds."""

from __future__ import annotations

import re

import pytest

from scheduling.backends import telemetry
from scheduling.power.rules.clock_curves import model_speed
from scheduling.simulation.kubernetes.api.errors import ApiError
from scheduling.simulation.kubernetes.telemetry import telemetry_page
from scheduling.simulation.machines.clocks import lowered_clocks
from scheduling.simulation.machines.faults import FaultKind
from scheduling.simulation.machines.scripts.play import SimulatedExecutor
from tests.patience import until

from .make import client, container, pod, snapshot
from .running import KubernetesProcess

A, B = "kalos-001", "kalos-002"
PODS = "/api/v1/namespaces/default/pods"
LABELS = re.compile(
    r'DCGM_FI_DEV_GPU_UTIL\{gpu="(\d+)".*hostname="([^"]+)"(?:,container="(.*)",namespace="(.*)",pod="(.*)")?\}'
)


def page(api, node: str = "") -> str:
    return telemetry_page(api.cluster, SimulatedExecutor().run_of_job, seed=1, now=api.now, node=node)


def holders(text: str) -> dict[tuple[str, int], tuple]:
    return {(found[2], int(found[1])): found.groups()[2:] for found in LABELS.finditer(text)}


def test_gpus_have_the_labels_of_the_pod_that_holds_them():
    api = client()
    api.create_pod("first", node=A, gpus=2, seconds=1000)
    api.create_pod("second", node=A, gpus=1, seconds=10)

    found = holders(page(api.after(5)))
    later = holders(page(api.after(60)))

    assert len(found) == 32
    assert [found[A, gpu] for gpu in range(4)] == [
        ("main", "default", "first"),
        ("main", "default", "first"),
        ("main", "default", "second"),
        (None, None, None),
    ]
    assert (later[A, 0][2], later[A, 2][2]) == ("first", None)


def test_load_and_faults_are_those_of_the_machine_room():
    api = client()
    api.create_pod(node=A, gpus=1, seconds=1000)
    api.after(30).cluster.inject_fault(FaultKind.ECC, api.now, node=B, gpu=3)

    read = telemetry.parse(page(api))

    assert read.by_place[A, 0].util_percent > 80 and read.by_place[A, 1].util_percent < 5
    assert (read.by_place[B, 3].last_xid, read.by_place[B, 2].last_xid, read.unreadable_lines) == (48, 0, 0)


def test_mig_slices_have_values_of_their_own_and_the_labels_of_their_pod():
    api = client(snapshot=snapshot(gpus=2, mig_slices={"1g.10gb": 7, "3g.40gb": 1}))
    limits = {"resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}
    api.create_pod("score", node=A, gpus=0, containers=[container(0, 1000, **limits)])
    api.after(30)

    slices = [one for one in telemetry.parse(page(api, A)).gpus if one.mig_profile]

    assert [(one.gpu, one.instance, one.mig_profile) for one in slices] == [
        *((2, number, "1g.10gb") for number in range(7)),
        (3, 0, "3g.40gb"),
    ]
    held, idle = slices[0], slices[1]
    assert (held.pod, idle.pod) == ("default/score", "")
    assert held.engine_active_ratio > 0.8 and idle.engine_active_ratio < 0.05
    assert idle.memory_used_mib < held.memory_used_mib < 10 * 1024
    assert held.util_percent is None and held.power_w == idle.power_w  # of the whole GPU


def test_machine_that_is_down_has_no_exporter():
    api = client()
    api.cluster.power_off(A, api.now)

    assert {node for node, _ in holders(page(api))} == {B, "kalos-003", "kalos-004"}
    assert A not in page(api, A)
    assert {node for node, _ in holders(page(api, B))} == {B}


def test_server_gives_the_page_of_all_nodes_or_of_one(tmp_path):
    with KubernetesProcess(tmp_path / "kalos", "--nodes", "2") as process:
        process.call("POST", PODS, pod(node=A, gpus=1, seconds=600))
        until(lambda: 'pod="train"' in process.client.get("/metrics").text)

        assert len(holders(process.client.get(f"/metrics/{B}").text)) == 8
        assert process.client.get("/metrics/none").status_code == 404


def test_clocks_change_power_and_speed_of_programs_until_the_machine_boots():
    api = client()
    api.create_pod(node=A, gpus=8, seconds=1000)
    api.after(30)
    before = telemetry.parse(page(api)).by_place[A, 0].power_w

    api.cluster.set_clocks({A: 288}, api.now)

    (execution,) = api.cluster.executions
    assert [change.speed for change in execution.job.speeds] == [model_speed(288, "a100")]
    assert telemetry.parse(page(api)).by_place[A, 0].power_w < 0.6 * before
    api.cluster.power_off(A, api.now)
    api.cluster.repair(A, api.now)
    assert lowered_clocks(machine.node for machine in api.cluster.machines) == {}


def test_program_that_starts_on_a_slow_machine_is_slow():
    api = client()
    api.cluster.set_clocks({A: 288}, api.now)
    api.create_pod(node=A, gpus=1, seconds=100)
    api.after(150)

    (execution,) = api.cluster.executions

    assert execution.job.speeds[0].at == execution.job.began_at


def test_clocks_of_a_machine_that_is_down_are_refused():
    api = client()
    api.cluster.power_off(A, api.now)

    with pytest.raises(ApiError, match="does not respond"):
        api.cluster.set_clocks({B: 288, A: 288}, api.now)

    assert lowered_clocks(machine.node for machine in api.cluster.machines) == {}
