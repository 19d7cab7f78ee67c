"""Nodes as their kubelets report them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from jobs.core.gpu_shares import MIG_RESOURCE_PREFIX
from scheduling.simulation.kubernetes.objects import JsonObject, timestamp, value_at, with_condition
from scheduling.simulation.kubernetes.values import GPU_RESOURCE, Machine
from scheduling.simulation.machines.faults import XID_OF_FAULT, ClusterFault
from scheduling.simulation.machines.values import SimulatedNode

PRODUCTS = {
    "a100": "NVIDIA-A100-SXM4-80GB",
    "a800": "NVIDIA-A800-SXM4-80GB",
    "h100": "NVIDIA-H100-80GB-HBM3",
    "h200": "NVIDIA-H200",
}
HEALTHY = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
)
MAX_PODS = 110
# Features of a machine (rack-r01, leaf-l01, pod-p1) and the labels that show them
TOPOLOGY_LABELS = {
    "leaf": "network.topology.nvidia.com/leaf",
    "pod": "network.topology.nvidia.com/spine",
    "rack": "topology.kubernetes.io/rack",
}


def new_node(machine: Machine) -> JsonObject:
    """The node as its kubelet registers it."""
    return {"metadata": {"name": machine.node.name, "labels": node_labels(machine)}, "spec": {}}


def node_labels(machine: Machine) -> dict[str, str]:
    node = machine.node
    labels = {
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/os": "linux",
    }
    for feature in node.features:
        kind, _, value = feature.partition("-")
        if kind in TOPOLOGY_LABELS:
            labels[TOPOLOGY_LABELS[kind]] = value
    if node.gpu_model:
        labels |= {
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.count": str(node.gpus),
            "nvidia.com/gpu.product": product_of(node.gpu_model),
        }
    if machine.mig_slices:
        labels["nvidia.com/mig.strategy"] = "mixed"
    return labels


def product_of(model: str) -> str:
    return PRODUCTS.get(model, f"NVIDIA-{model.upper()}")


def unhealthy_gpus(name: str, faults: Iterable[ClusterFault], now: float) -> frozenset[int]:
    """The GPUs that the device plugin reports as unhealthy: those with an Xid that a program cannot cause."""
    return frozenset(
        fault.gpu for fault in faults if fault.node == name and fault.kind in XID_OF_FAULT and fault.is_active_at(now)
    )


def node_status(node: JsonObject, machine: Machine, broken: int, now: float, version: str) -> JsonObject:
    """All fields of the status that a kubelet writes."""
    hardware = machine.node
    capacity = {
        "cpu": str(hardware.cpus),
        "ephemeral-storage": "1Ti",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        "memory": f"{hardware.memory_mb}Mi",
        "pods": str(MAX_PODS),
    }
    gpus = hardware.gpus
    slices = {f"{MIG_RESOURCE_PREFIX}{profile}": str(count) for profile, count in machine.mig_slices.items()}
    more = slices | ({GPU_RESOURCE: str(gpus)} if gpus else {})
    free = slices | ({GPU_RESOURCE: str(max(gpus - broken, 0))} if gpus else {})
    return {
        "capacity": {**capacity, **more},
        "allocatable": {**capacity, **free},
        "conditions": _conditions(node, now),
        "addresses": [
            {"type": "InternalIP", "address": node_ip(hardware.name)},
            {"type": "Hostname", "address": hardware.name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": _node_info(hardware, version),
    }


def node_ip(name: str) -> str:
    digest = blake2b(name.encode(), digest_size=2).digest()
    return f"172.20.{digest[0]}.{max(digest[1] % 255, 1)}"


def _conditions(node: JsonObject, now: float) -> list[JsonObject]:
    conditions = value_at(node, "status", "conditions", default=[])
    heartbeat = timestamp(now)
    for kind, reason, message in HEALTHY:
        conditions = with_condition(
            conditions, kind, "False", now, reason=reason, message=message, lastHeartbeatTime=heartbeat
        )
    ready = {"reason": "KubeletReady", "message": "kubelet is posting ready status", "lastHeartbeatTime": heartbeat}
    return with_condition(conditions, "Ready", "True", now, **ready)


def _node_info(hardware: SimulatedNode, version: str) -> JsonObject:
    digest = blake2b(hardware.name.encode(), digest_size=16).hexdigest()
    boot = blake2b(f"{hardware.name}:{hardware.boot_at}".encode(), digest_size=16).hexdigest()
    return {
        "machineID": digest,
        "systemUUID": _uuid(digest),
        "bootID": _uuid(boot),
        "kernelVersion": "5.15.0-105-generic",
        "osImage": "Ubuntu 22.04.4 LTS",
        "containerRuntimeVersion": "containerd://1.7.27",
        "kubeletVersion": version,
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": "amd64",
    }


def _uuid(text: str) -> str:
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
