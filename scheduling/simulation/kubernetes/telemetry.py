"""GPU telemetry as the DCGM exporters of the nodes give it, with labels of the pod that holds each GPU. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from jobs.core.gpu_shares import WHOLE_GPU, profile_milli
from scheduling.simulation.machines.dcgm_exporter import (
    GpuSample,
    MigInstance,
    exporter_page,
    nic_ports,
    simulated_samples,
    slice_samples,
)
from scheduling.simulation.machines.faults import ClusterFault
from scheduling.simulation.machines.scripts.play import SimulatedRun
from scheduling.simulation.machines.values import SimulatedJob, SimulatedNode

from .cluster import KubernetesCluster
from .kubelets.gangs import main_container


class _MachineRoom:
    """Some nodes of the cluster with the programs on them."""

    def __init__(self, cluster: KubernetesCluster, names: Iterable[str]) -> None:
        self.nodes: Mapping[str, SimulatedNode] = {name: cluster.machine(name).node for name in names}
        self.faults: Sequence[ClusterFault] = cluster.faults
        self._jobs: dict[str, list[SimulatedJob]] = {}
        for execution in cluster.executions:
            for name in execution.job.nodes:
                self._jobs.setdefault(name, []).append(execution.job)

    def jobs_on(self, node: str) -> Iterable[SimulatedJob]:
        return self._jobs.get(node, ())


def telemetry_page(
    cluster: KubernetesCluster, play: Callable[[SimulatedJob], SimulatedRun], *, seed: int, now: float, node: str = ""
) -> str:
    """The page of one exporter, or of all together. Raises ApiError for a node that does not exist."""
    names = [node] if node else [machine.node.name for machine in cluster.machines]
    room = _MachineRoom(cluster, names)
    samples = simulated_samples(room, play, seed=seed, now=now)
    slices = (
        sample
        for name, node in room.nodes.items()
        if node.runs
        for sample in slice_samples(node, _instances(cluster, room, name), play, seed=seed, now=now)
    )
    return exporter_page([*_labeled(cluster, names, samples), *slices], nic_ports(room, now=now))


def _instances(cluster: KubernetesCluster, room: _MachineRoom, node: str) -> list[MigInstance]:
    """The MIG slices of a node, filled into as few GPUs as possible."""
    machine = cluster.machine(node)
    labels = {device: labels for (_, device), labels in _holders(cluster, node)}
    users = {device: job for job in room.jobs_on(node) for device in job.gpus.get(node, ())}
    instances: list[MigInstance] = []
    gpu, number, used = machine.node.gpus, 0, 0
    for device, profile in machine.slices.items():
        if used + profile_milli(profile) > WHOLE_GPU:
            gpu, number, used = gpu + 1, 0, 0
        instances.append(
            MigInstance(gpu=gpu, number=number, profile=profile, job=users.get(device), labels=labels.get(device, {}))
        )
        number, used = number + 1, used + profile_milli(profile)
    return instances


def _labeled(cluster: KubernetesCluster, names: Iterable[str], samples: Iterable[GpuSample]) -> Iterator[GpuSample]:
    holders = {place: labels for name in names for place, labels in _holders(cluster, name)}
    return (replace(one, labels=holders.get((one.node, one.gpu), {})) for one in samples)


def _holders(cluster: KubernetesCluster, node: str) -> Iterator[tuple[tuple[str, int], dict[str, str]]]:
    for runtime in cluster.kubelets.runtimes.on_node(node):
        pod = cluster.store.get(runtime.key)
        if pod is None or not runtime.holds_resources:
            continue
        labels = {
            "container": str(main_container(pod)["name"]),
            "namespace": runtime.namespace,
            "pod": runtime.name,
        }
        yield from (((node, gpu), labels) for gpu in runtime.gpus)
