"""Nodes of a Kubernetes cluster: what their objects say in our states, flags and reasons. Pure.

| object | our node |
|---|---|
| Ready is True | IDLE, MIXED or ALLOCATED, by the GPUs that pods hold |
| Ready is False | DOWN, with the kubelet's message |
| Ready is Unknown, or missing | DOWN and NOT_RESPONDING: the kubelet is silent |
| `acme/power` is down | POWERING_DOWN, then POWERED_DOWN once it is not Ready; the cordon is no drain |
| `acme/power` is up | POWERING_UP, until it is Ready and opened (`driving.driver`) |
| cordoned | DRAIN, with the reason that Acme gave, if it was Acme |
| another condition is True | FAIL, with the condition's message: pressure, or a finding of node-problem-detector |
| a taint that evicts pods and explains nothing of the above | DRAIN, with the taint's key |

Taints with the effect NoSchedule alone mean nothing here: many sites reserve their GPU nodes with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acmeweb.common.errors import MalformedResponse
from jobs.core.lifecycle import NodeFlag, NodeState, node_state_for_usage

from ..base import BackendNode
from .fields import mapping_at, mappings_at, require_text, text_at, texts_at
from .pods import Pod
from .resources import cpu_count, gpu_counts, gpu_total, memory_mb, mig_slices

MAX_NODE_NAME_LENGTH = 64  # characters, as in the database column
MAX_GPU_MODEL_LENGTH = 40  # characters, as in the database column
MAX_REASON_LENGTH = 1000
READY = "Ready"
DRAIN_ANNOTATION = "acme/drain-reason"
POWER_ANNOTATION = "acme/power"  # "down" or "up": Acme lets the node sleep, or wakes it up
HEALTHY_WHEN_TRUE = frozenset({READY, "EtcdIsVoter"})  # the latter is K3s'
OWN_TAINTS = "node.kubernetes.io/"  # set by Kubernetes for conditions and cordons, which are read themselves
PRODUCT_LABELS = (
    *("nvidia.com/gpu.product", "amd.com/gpu.product-name", "beta.amd.com/gpu.product-name"),
    *("gpu.intel.com/product", "cloud.google.com/gke-accelerator", "cloud.google.com/gke-tpu-accelerator"),
    "k8s.amazonaws.com/accelerator",
)
# Our level of the topology → the labels that name it, the first present one counts. They are set by NVIDIA's topograph,
# by cloud providers, and in the examples of Kueue; there is no label of Kubernetes itself below the zone.
TOPOLOGY_LABELS = {
    "rack": (
        *(
            "topology.kubernetes.io/rack",
            "rack",
            "cloud.provider.com/topology-rack",
            "network.topology.nvidia.com/accelerator",
        ),
        *("cloud.google.com/gce-topology-subblock", "topology.k8s.aws/network-node-layer-3"),
    ),
    "leaf": (
        "topology.kubernetes.io/leaf",
        "network.topology.nvidia.com/leaf",
        "topology.k8s.aws/network-node-layer-2",
    ),
    "pod": (
        *("topology.kubernetes.io/pod", "network.topology.nvidia.com/spine", "cloud.provider.com/topology-block"),
        *("cloud.google.com/gce-topology-block", "topology.k8s.aws/network-node-layer-1"),
        "topology.kubernetes.io/zone",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What a node's object says. The state of a usable node depends on the pods too."""

    name: str
    usable: bool  # it runs pods, or sleeps
    is_ready: bool
    power: str  # `POWER_ANNOTATION`
    flags: frozenset[str]
    reason: str
    cpus: int
    memory_mb: int
    gpus: int  # with MIG slices
    mig_slices: Mapping[str, int]  # by profile
    gpu_model: str
    features: tuple[str, ...]


def read_node(item: Mapping[str, Any]) -> NodeReport:
    """Raises MalformedResponse."""
    name = require_text(item, "metadata", "name")
    if len(name) > MAX_NODE_NAME_LENGTH:
        raise MalformedResponse(f"metadata.name has more than {MAX_NODE_NAME_LENGTH} characters")
    labels, resources = texts_at(item, "metadata", "labels"), mapping_at(item, "status", "allocatable")
    is_ready, power = _ready_condition(item).get("status") == "True", _power(item)
    flags, reasons = _flags_and_reasons(item, power)
    return NodeReport(
        name=name,
        usable=is_ready or bool(power),
        is_ready=is_ready,
        power=power,
        flags=frozenset(flags),
        reason="; ".join([*reasons, *_broken_gpus(item)])[:MAX_REASON_LENGTH],
        cpus=cpu_count(resources.get("cpu")),
        memory_mb=memory_mb(resources.get("memory")),
        gpus=gpu_total(resources),
        mig_slices=mig_slices(resources),
        gpu_model=_gpu_model(labels),
        features=tuple(_topology_features(labels)),
    )


def backend_node(report: NodeReport, pods: Sequence[Pod]) -> BackendNode:
    """The node with the state that its live pods give it.

    What pods of DaemonSets and other services request is not offered to jobs: the kubelet would reject a job that
    requests all CPUs of the node.
    """
    services = [pod for pod in pods if not pod.gpus and not pod.owner.key]
    held = sum(pod.gpus for pod in pods)
    return BackendNode(
        name=report.name,
        state=node_state_for_usage(report.gpus, held, held > 0) if report.usable else NodeState.DOWN,
        flags=report.flags,
        reason=report.reason,
        cpus=max(0, math.floor(report.cpus - sum(pod.cpus for pod in services))),
        memory_mb=max(0, report.memory_mb - sum(pod.memory_mb for pod in services)),
        gpus=report.gpus,
        mig_slices=report.mig_slices,
        gpu_model=report.gpu_model,
        features=report.features,
    )


def _ready_condition(item: Mapping[str, Any]) -> Mapping[str, Any]:
    conditions = mappings_at(item, "status", "conditions")
    return next((condition for condition in conditions if condition.get("type") == READY), {})


def _power(item: Mapping[str, Any]) -> str:
    power = text_at(item, "metadata", "annotations", POWER_ANNOTATION)
    return power if power in ("down", "up") else ""


def _flags_and_reasons(item: Mapping[str, Any], power: str) -> tuple[set[str], list[str]]:
    flags: set[str] = set()
    reasons: list[str] = []
    ready = _ready_condition(item)
    is_ready = ready.get("status") == "True"
    if power:
        asleep = NodeFlag.POWERING_DOWN if is_ready else NodeFlag.POWERED_DOWN
        flags.add(NodeFlag.POWERING_UP if power == "up" else asleep)
    elif not is_ready:
        reasons.append(_condition_text(ready) or "the node has no condition Ready")
        if ready.get("status") != "False":
            flags.add(NodeFlag.NOT_RESPONDING)
    for condition in mappings_at(item, "status", "conditions"):
        if condition.get("status") == "True" and condition.get("type") not in HEALTHY_WHEN_TRUE:
            flags.add(NodeFlag.FAIL)
            reasons.append(_condition_text(condition))
    if closing := [*_cordon(item, power), *_evicting_taints(item)]:
        flags.add(NodeFlag.DRAIN)
        reasons += closing
    return flags, reasons


def _condition_text(condition: Mapping[str, Any]) -> str:
    """`KernelDeadlock: task blocked for more than 120 s`"""
    texts = (text_at(condition, "type"), text_at(condition, "message") or text_at(condition, "reason"))
    return ": ".join(text for text in texts if text)


def _cordon(item: Mapping[str, Any], power: str) -> list[str]:
    reason = text_at(item, "metadata", "annotations", DRAIN_ANNOTATION)
    if mapping_at(item, "spec").get("unschedulable") is not True or (power and not reason):
        return []
    return [reason or "cordoned"]


def cordon_patch(reason: str) -> dict[str, Any]:
    """What `kubectl cordon` does, with a reason that tells our cordons from those of others."""
    return {"metadata": {"annotations": {DRAIN_ANNOTATION: reason}}, "spec": {"unschedulable": True}}


def uncordon_patch() -> dict[str, Any]:
    """Open the node, also one that did not wake up."""
    return {
        "metadata": {"annotations": {DRAIN_ANNOTATION: None, POWER_ANNOTATION: None}},
        "spec": {"unschedulable": None},
    }


def power_patch(power: str) -> dict[str, Any]:
    """Mark the node as asleep ("down") or waking ("up"). It stays cordoned until it is awake."""
    return {"metadata": {"annotations": {POWER_ANNOTATION: power}}, "spec": {"unschedulable": True}}


def awake_patch(*, drained: bool) -> dict[str, Any]:
    """End the sleep of a node; it accepts pods, unless it is drained."""
    opened: dict[str, Any] = {} if drained else {"spec": {"unschedulable": None}}
    return {"metadata": {"annotations": {POWER_ANNOTATION: None}}, **opened}


def _evicting_taints(item: Mapping[str, Any]) -> Iterable[str]:
    for taint in mappings_at(item, "spec", "taints"):
        key = text_at(taint, "key")
        if taint.get("effect") == "NoExecute" and not key.startswith(OWN_TAINTS):
            yield f"taint {key}"


def _broken_gpus(item: Mapping[str, Any]) -> Iterable[str]:
    """GPUs that the device plugin withdrew: in the capacity, but not allocatable."""
    capacity, usable = (gpu_counts(mapping_at(item, "status", name)) for name in ("capacity", "allocatable"))
    for resource, count in sorted(capacity.items()):
        if usable.get(resource, 0) < count:
            yield f"{usable.get(resource, 0)} of {count} {resource} are healthy"


def _gpu_model(labels: Mapping[str, str]) -> str:
    return next((labels[name] for name in PRODUCT_LABELS if labels.get(name)), "").strip()[:MAX_GPU_MODEL_LENGTH]


def _topology_features(labels: Mapping[str, str]) -> Iterable[str]:
    for level, names in TOPOLOGY_LABELS.items():
        if value := next((labels[name] for name in names if labels.get(name)), ""):
            yield f"{level}-{value}"
