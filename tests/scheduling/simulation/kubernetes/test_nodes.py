"""Nodes that fail: silent kubelets, lost machines, GPUs that fall off, and the pods on them."""

from __future__ import annotations

import pytest

from scheduling.simulation.kubernetes.api.errors import ApiError
from scheduling.simulation.kubernetes.api.requests import MERGE_PATCH
from scheduling.simulation.kubernetes.objects import condition_of, value_at
from scheduling.simulation.machines.faults import FaultKind, FaultModel

from .make import client

A, B = "kalos-001", "kalos-002"
UNREACHABLE = "node.kubernetes.io/unreachable"


def node(api, name: str = A) -> dict:
    return api.call("GET", f"/api/v1/nodes/{name}")


def ready(api, name: str = A) -> str:
    return condition_of(node(api, name), "Ready")["status"]


def taints(api, name: str = A) -> list[tuple[str, str]]:
    return [(one["key"], one["effect"]) for one in value_at(node(api, name), "spec", "taints", default=[])]


def test_nodes_show_their_hardware():
    found = node(client())

    assert found["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert found["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-80GB"
    assert found["metadata"]["labels"]["network.topology.nvidia.com/leaf"] == "l01"
    assert condition_of(found, "Ready")["reason"] == "KubeletReady"


def test_leases_are_renewed():
    api = client()
    lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/kalos-001"

    times = {api.after(10).call("GET", lease)["spec"]["renewTime"] for _ in range(5)}

    assert len(times) == 5


def test_node_with_a_silent_kubelet_becomes_not_ready_after_the_grace_period():
    api = client()
    api.cluster.set_kubelet(A, False, api.now)

    assert ready(api.after(39)) == "True"
    assert ready(api.after(12)) == "Unknown"
    assert taints(api) == [(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]
    assert ready(api, B) == "True"


def test_pods_of_a_silent_node_are_deleted_after_their_toleration_and_wait_for_the_kubelet():
    api = client()
    api.create_pod(node=A, seconds=10_000)
    api.cluster.set_kubelet(A, False, api.after(5).now)

    assert condition_of(api.after(60).pod(), "Ready")["status"] == "False"
    assert "deletionTimestamp" not in api.after(200).pod()["metadata"]
    evicted = api.after(100).pod()
    assert condition_of(evicted, "DisruptionTarget")["reason"] == "DeletionByTaintManager"
    assert api.after(3600).pod()["metadata"]["deletionTimestamp"]

    api.cluster.set_kubelet(A, True, api.now)
    assert api.after(1).pod() is None
    assert (ready(api), taints(api)) == ("True", [])


def test_shorter_toleration_evicts_earlier():
    api = client()
    toleration = {"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 10}
    api.create_pod(node=A, seconds=10_000, tolerations=[toleration])
    api.cluster.set_kubelet(A, False, api.after(5).now)

    assert "deletionTimestamp" in api.after(70).pod()["metadata"]


def test_containers_of_a_silent_kubelet_go_on_and_their_end_is_reported_later():
    api = client()
    api.create_pod(node=A, seconds=20)
    api.cluster.set_kubelet(A, False, api.after(5).now)

    assert api.after(60).pod()["status"]["phase"] == "Running"
    api.cluster.set_kubelet(A, True, api.now)

    ended = api.after(0).pod()["status"]
    assert ended["phase"] == "Succeeded"
    assert ended["containerStatuses"][0]["state"]["terminated"]["finishedAt"] == "2027-01-15T08:00:21Z"


def test_machine_that_dies_takes_its_pods_with_it_and_reports_them_after_its_boot():
    api = client()
    api.create_pod(node=A, seconds=10_000)
    fault = api.after(5).cluster.inject_fault(FaultKind.DEATH, api.now, node=A)
    assert api.pod()["status"]["phase"] == "Running"

    api.after(60)
    assert ready(api) == "Unknown"
    api.cluster.repair(A, api.now)

    state = api.after(1).pod()["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (state["exitCode"], state["reason"]) == (137, "ContainerStatusUnknown")
    assert (ready(api), fault.kind) == ("True", FaultKind.DEATH)


def test_machine_that_dies_boots_by_itself_after_its_repair():
    api = client()
    api.cluster.inject_fault(FaultKind.DEATH, api.now, node=A)

    assert ready(api.after(100)) == "Unknown"
    assert ready(api.after(8000)) == "True"


def test_gpu_that_falls_off_is_not_allocatable_and_fails_its_program():
    api = client()
    api.create_pod(node=A, gpus=2, seconds=10_000)
    api.create_pod("other", node=A, gpus=2, seconds=10_000)

    api.after(5).cluster.inject_fault(FaultKind.OFF_BUS, api.now, node=A, gpu=0)

    status = node(api)["status"]
    assert (status["capacity"]["nvidia.com/gpu"], status["allocatable"]["nvidia.com/gpu"]) == ("8", "7")
    api.after(10)
    assert (api.pod()["status"]["phase"], api.pod("other")["status"]["phase"]) == ("Failed", "Running")
    api.create_pod("large", node=A, gpus=6)
    assert api.after(1).pod("large")["status"]["reason"] == "UnexpectedAdmissionError"

    api.cluster.repair(A, api.now)
    assert node(api)["status"]["allocatable"]["nvidia.com/gpu"] == "8"


def test_pods_get_no_gpu_that_is_broken():
    api = client()
    api.cluster.inject_fault(FaultKind.OFF_BUS, api.now, node=A, gpu=1)
    api.create_pod(node=A, gpus=2, seconds=10_000)

    api.after(30)

    assert api.pod()["status"]["phase"] == "Running"
    assert [one.gpus for one in api.cluster.kubelets.runtimes.all()] == [(0, 2)]


def test_fault_in_a_pod_hits_its_program_only():
    api = client()
    api.create_pod(node=A, gpus=2, seconds=10_000)
    api.create_pod("other", node=A, gpus=2, seconds=10_000)

    api.after(5).cluster.inject_pod_fault(FaultKind.OUT_OF_MEMORY, "default", "train", api.now)

    api.after(30)
    assert (api.pod()["status"]["phase"], api.pod("other")["status"]["phase"]) == ("Failed", "Running")


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (FaultKind.ECC, {"node": "nothing"}),
        (FaultKind.ECC, {"node": A, "gpu": 8}),
    ],
)
def test_fault_without_a_target_is_refused(kind, target):
    api = client()

    with pytest.raises(ApiError):
        api.cluster.inject_fault(kind, api.now, **target)


def test_pods_of_a_deleted_node_are_removed():
    api = client()
    api.create_pod(node=A, seconds=10_000)
    api.after(5).call("DELETE", f"/api/v1/nodes/{A}")

    assert api.after(1).pod() is None
    assert A not in [one["metadata"]["name"] for one in api.call("GET", "/api/v1/nodes")["items"]]


def test_taint_without_execution_leaves_pods_alone_and_with_it_deletes_them():
    api = client()
    api.create_pod(node=A, seconds=10_000)
    api.after(5)
    for effect, present in (("NoSchedule", True), ("NoExecute", False)):
        taint = {"spec": {"taints": [{"key": "broken", "effect": effect}]}}
        api.call("PATCH", f"/api/v1/nodes/{A}", taint, patch_type=MERGE_PATCH)
        assert (api.after(2).pod() is not None) is present


def test_drawn_faults_depend_on_the_seed_only():
    def story(seed: int) -> list:
        api = client(faults=FaultModel(per_node_day=24, seed=seed))
        api.after(20_000)
        return [(one.kind, one.node, one.at) for one in api.cluster.faults]

    assert story(1) == story(1) != story(2)
