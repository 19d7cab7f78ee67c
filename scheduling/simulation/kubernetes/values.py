"""The state of a simulated Kubernetes cluster besides its objects: machines, pods that run, executions. Pure.

A machine is a node of the simulated machine room (`machines.values.SimulatedNode`) with its kubelet. An execution is
what the executor runs: one program on the GPUs of one or several pods. So faults, plans, logs and telemetry are the
same for a cluster that speaks Slurm and for one that speaks Kubernetes. Times are unix seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from jobs.core.gpu_shares import slice_devices
from scheduling.simulation.machines.faults import ClusterFault
from scheduling.simulation.machines.values import SimulatedJob, SimulatedNode

from .objects import JsonObject, ObjectKey
from .store import StoreChanges

GPU_RESOURCE = "nvidia.com/gpu"


@dataclass(frozen=True, kw_only=True)
class ClusterTiming:
    """Durations of the control plane and of the kubelets; the defaults are those of Kubernetes."""

    lease_s: float = 10.0  # between two renewals of a node's lease
    node_grace_s: float = 40.0  # a node without renewals for so long is NotReady
    node_check_s: float = 5.0
    container_start_s: float = 1.0  # sandbox, image and container
    pod_backoff_s: float = 10.0  # doubles with every failure
    most_backoff_s: float = 300.0
    event_ttl_s: float = 3600.0
    compact_s: float = 300.0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A node's hardware and its kubelet. A machine that is down runs nothing and has no kubelet."""

    node: SimulatedNode
    kubelet: bool = True
    mig_slices: Mapping[str, int] = field(default_factory=dict)  # by profile; of GPUs that are not among `node.gpus`

    @property
    def slices(self) -> dict[int, str]:
        """The profiles of its MIG slices, which are numbered after its GPUs."""
        return slice_devices(self.node.gpus + sum(self.mig_slices.values()), self.mig_slices)

    @property
    def reports(self) -> bool:
        return self.kubelet and not self.node.down


class PodStep(StrEnum):
    CREATING = "creating"
    PULL_FAILED = "pull failed"
    RUNNING = "running"
    BACKOFF = "backoff"  # its container ended and will be restarted
    ENDED = "ended"
    REJECTED = "rejected"


@dataclass(frozen=True, kw_only=True)
class ContainerEnd:
    code: int
    reason: str
    started_at: float
    finished_at: float


@dataclass(frozen=True, kw_only=True)
class PodRuntime:
    """A pod as its kubelet knows it. The pod's status is computed from it."""

    uid: str
    namespace: str
    name: str
    node: str
    step: PodStep
    created_at: float
    next_at: float = 0.0  # of the step after this one; 0 if nothing is due by itself
    gpus: tuple[int, ...] = ()
    execution: int = 0
    started_at: float = 0.0
    restarts: int = 0
    pull_failures: int = 0
    end: ContainerEnd | None = None  # of the last container
    reason: str = ""  # why the kubelet rejected or failed the pod as a whole
    message: str = ""

    @property
    def key(self) -> ObjectKey:
        return ObjectKey("pods", self.namespace, self.name)

    @property
    def holds_resources(self) -> bool:
        return self.step not in (PodStep.ENDED, PodStep.REJECTED)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """A program that runs in one pod, or in all pods of a gang. `job` is its form for the executor."""

    job: SimulatedJob
    pods: tuple[str, ...]  # uids in order of rank
    stopping: tuple[str, ...] = ()  # those whose containers were told to stop

    @property
    def id(self) -> int:
        return self.job.id


@dataclass(frozen=True, kw_only=True)
class ClusterClock:
    """Counters that must survive a restart, so that no id and no fault is drawn twice."""

    next_execution: int = 1
    faults: int = 0
    next_fault_at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ClusterSnapshot:
    """The whole state, as stored and restored."""

    machines: tuple[Machine, ...]
    objects: tuple[tuple[ObjectKey, JsonObject], ...] = ()
    version: int = 1
    pods: tuple[PodRuntime, ...] = ()
    executions: tuple[Execution, ...] = ()
    faults: tuple[ClusterFault, ...] = ()
    clock: ClusterClock = ClusterClock()


@dataclass(frozen=True, kw_only=True)
class ClusterChanges:
    """Everything that changed since the last call, as complete values; None stands for a deletion."""

    objects: StoreChanges = field(default_factory=StoreChanges)
    machines: tuple[Machine, ...] = ()
    pods: dict[str, PodRuntime | None] = field(default_factory=dict)
    executions: dict[int, Execution | None] = field(default_factory=dict)
    faults: tuple[ClusterFault, ...] = ()
    clock: ClusterClock | None = None
    effects: tuple[str, ...] = ()  # lines for the effects file

    def __bool__(self) -> bool:
        values = (self.objects, self.machines, self.pods, self.executions, self.faults, self.effects)
        return any(values) or self.clock is not None
