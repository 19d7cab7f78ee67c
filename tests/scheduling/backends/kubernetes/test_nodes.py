"""States, flags, reasons and topology of nodes."""

import pytest

from acmeweb.common.errors import MalformedResponse
from jobs.core.lifecycle import NodeFlag, NodeState
from scheduling.backends.kubernetes.nodes import backend_node, read_node
from scheduling.backends.kubernetes.ownership import KEY_LABEL, OwnerMapping
from scheduling.backends.kubernetes.pods import read_pod
from scheduling.loops.observe.observations import topology
from tests.scheduling.backends.kubernetes.objects import condition, node, pod

READY, UNREADY = condition("Ready"), condition("Ready", "False", reason="KubeletNotReady", message="runtime is down")
SILENT = condition("Ready", "Unknown", message="Kubelet stopped posting node status.")
DEADLOCK = condition("KernelDeadlock", message="task stuck")


def reported(item, held=0, pods=()):
    gpu_pods = [pod("train", on="n1", gpus=held)] if held else []
    return backend_node(read_node(item), [read_pod(one, OwnerMapping()) for one in (*gpu_pods, *pods)])


def test_requests_of_services_are_not_offered_to_jobs():
    services = [pod(name, on="n1", gpus=0) for name in ("device-plugin", "exporter")]
    own = pod("eval", on="n1", gpus=0, labels={KEY_LABEL: "j1.1"})

    assert reported(node()).cpus == 64
    assert reported(node(), pods=[*services, own]).cpus == 60
    assert reported(node(), held=8, pods=services).cpus == 60


@pytest.mark.parametrize(
    ("item", "state", "flags", "reason"),
    [
        (node(), NodeState.IDLE, set(), ""),
        (node(conditions=[UNREADY]), NodeState.DOWN, set(), "Ready: runtime is down"),
        (
            node(conditions=[SILENT]),
            NodeState.DOWN,
            {NodeFlag.NOT_RESPONDING},
            "Ready: Kubelet stopped posting node status.",
        ),
        (
            node(conditions=[]),
            NodeState.DOWN,
            {NodeFlag.NOT_RESPONDING},
            "the node has no condition Ready",
        ),
        (node(spec={"unschedulable": True}), NodeState.IDLE, {NodeFlag.DRAIN}, "cordoned"),
        (node(conditions=[READY, DEADLOCK]), NodeState.IDLE, {NodeFlag.FAIL}, "KernelDeadlock: task stuck"),
        (node(conditions=[READY, condition("DiskPressure", "False")]), NodeState.IDLE, set(), ""),
        (node(conditions=[READY, condition("EtcdIsVoter")]), NodeState.IDLE, set(), ""),
        (
            node(spec={"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}),
            NodeState.IDLE,
            set(),
            "",
        ),
        (
            node(spec={"taints": [{"key": "broken", "effect": "NoExecute"}]}),
            NodeState.IDLE,
            {NodeFlag.DRAIN},
            "taint broken",
        ),
        (
            node(spec={"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]}),
            NodeState.IDLE,
            set(),
            "",
        ),
        (
            node(gpus=6, capacity={"nvidia.com/gpu": "8"}),
            NodeState.IDLE,
            set(),
            "6 of 8 nvidia.com/gpu are healthy",
        ),
    ],
    ids=[
        *("ready", "unready", "silent", "no condition", "cordoned", "node problem", "no pressure", "etcd member"),
        *("dedicated", "evicting taint", "taint of Kubernetes", "broken GPUs"),
    ],
)
def test_node_state_follows_from_conditions_taints_and_cordon(item, state, flags, reason):
    seen = reported(item)

    assert (seen.state, seen.flags, seen.reason) == (state, flags, reason)


@pytest.mark.parametrize(("held", "state"), [(0, NodeState.IDLE), (3, NodeState.MIXED), (8, NodeState.ALLOCATED)])
def test_node_load_follows_from_the_gpus_that_pods_hold(held, state):
    assert reported(node(), held).state == state


def test_node_has_its_size_model_and_topology():
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H200",
        "topology.kubernetes.io/zone": "z1",
        "network.topology.nvidia.com/leaf": "l03",
        "rack": "r-01",
    }

    seen = reported(node(labels=labels))

    assert (seen.gpus, seen.cpus, seen.memory_mb, seen.gpu_model) == (8, 64, 2**20, "NVIDIA-H200")
    assert topology(seen.features) == {"rack": "r-01", "leaf": "l03", "pod": "z1"}


def test_mig_slices_are_devices_with_a_profile():
    resources = {"nvidia.com/mig-3g.40gb": "2", "nvidia.com/mig-1g.10gb.me": "1", "nvidia.com/gpu": "6"}

    seen = reported(node(allocatable=resources, labels={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}))

    assert (seen.gpus, seen.gpu_model) == (9, "NVIDIA-A100-SXM4-80GB")
    assert seen.mig_slices == {"3g.40gb": 2, "1g.10gb.me": 1}


def test_impossible_numbers_of_mig_slices_are_not_offered():
    resources = {f"nvidia.com/mig-{part}g.10gb": "4096" for part in (1, 2)}

    seen = reported(node(allocatable=resources))

    assert (seen.gpus, seen.mig_slices) == (4096, {})


@pytest.mark.parametrize("name", ["", None, 7, "n" * 65])
def test_node_without_a_usable_name_cannot_be_read(name):
    item = node()
    item["metadata"]["name"] = name

    with pytest.raises(MalformedResponse, match=r"metadata\.name"):
        read_node(item)


@pytest.mark.parametrize("junk", [None, 5, "text", [], [None, 5], {"a": {}}])
def test_malformed_parts_of_a_node_are_ignored(junk):
    item = {"metadata": {"name": "n1", "labels": junk}, "spec": junk, "status": junk}

    assert reported(item).state == NodeState.DOWN


def powered(item, power, **annotations):
    item["metadata"]["annotations"] = {"acme/power": power, **annotations}
    item["spec"]["unschedulable"] = True
    return item


@pytest.mark.parametrize(
    ("item", "flags"),
    [
        (powered(node(), "down"), {NodeFlag.POWERING_DOWN}),
        (powered(node(conditions=[SILENT]), "down"), {NodeFlag.POWERED_DOWN}),
        (powered(node(conditions=[SILENT]), "up"), {NodeFlag.POWERING_UP}),
        (
            powered(node(conditions=[SILENT]), "down", **{"acme/drain-reason": "fan"}),
            {NodeFlag.POWERED_DOWN, NodeFlag.DRAIN},
        ),
    ],
    ids=("falls-asleep", "asleep", "boots", "drained"),
)
def test_node_that_sleeps_is_neither_down_nor_drained(item, flags):
    seen = reported(item)

    assert (seen.state, set(seen.flags)) == (NodeState.IDLE, flags)


def test_annotation_with_another_value_means_nothing():
    assert reported(powered(node(), "sideways")).flags == {NodeFlag.DRAIN}
