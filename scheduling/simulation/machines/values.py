"""The values of simulated machines: jobs, nodes, and what runs jobs. Frozen, without clock, files or network.

Times are unix seconds of the true time unless stated otherwise. The server of each kind of cluster derives the objects
of its protocol from these values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from jobs.core.gpu_shares import SHARD
from jobs.core.lifecycle import Flag, NodeFlag, State

from .faults import FaultImpact

TERM, KILL = 15, 9


@dataclass(frozen=True, kw_only=True)
class SimulatedJobRequest:
    """The request of a job; it changes only if the job is updated manually."""

    name: str
    user: str
    account: str = ""
    partition: str = ""
    comment: str = ""
    script: str = ""
    workdir: str = "/"
    environment: Mapping[str, str] = field(default_factory=dict)
    required_nodes: tuple[str, ...] = ()
    node_count: int = 1
    gpus_per_node: int = 0
    gpu_shards: int = 0  # of one GPU on each node
    share_gres: str = SHARD  # what these are called
    gpu_model: str = ""
    cpus_per_node: int = 1
    memory_per_node_mb: int = 0
    limit_s: float | None = None
    stdout: str = ""
    held: bool = False


@dataclass(frozen=True, kw_only=True)
class ProcessExit:
    code: int = 0
    signal: int = 0


@dataclass(frozen=True, kw_only=True)
class SpeedChange:
    """The speed of a job from a time on, 1 at the highest clocks of its GPUs."""

    at: float
    speed: float


@dataclass(frozen=True, kw_only=True)
class SimulatedJob:
    """One job. `nodes` and `gpus` stay after its end; `holds_resources` says whether they are still held.

    The stored times are true times, by which the controller schedules. Each has the offset that the cluster's wall
    clock had at that time: the cluster reports the sum, so setting its clock does not change earlier timestamps.
    """

    id: int
    request: SimulatedJobRequest
    submitted_at: float
    state: State = State.PENDING
    flags: frozenset[Flag] = frozenset()
    reason: str = "None"
    nodes: tuple[str, ...] = ()
    gpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    started_at: float = 0.0
    began_at: float = 0.0  # when its nodes were ready and its command started
    ended_at: float = 0.0
    exit: ProcessExit = ProcessExit()
    blows: tuple[FaultImpact, ...] = ()
    speeds: tuple[SpeedChange, ...] = ()  # in order of time
    submit_offset_s: float = 0.0
    start_offset_s: float = 0.0
    end_offset_s: float = 0.0

    @property
    def submit_time(self) -> float:
        return self.submitted_at + self.submit_offset_s

    @property
    def start_time(self) -> float:
        return self.started_at + self.start_offset_s if self.started_at else 0.0

    @property
    def end_time(self) -> float:
        return self.ended_at + self.end_offset_s if self.ended_at else 0.0

    @property
    def is_configuring(self) -> bool:
        return Flag.CONFIGURING in self.flags

    @property
    def is_completing(self) -> bool:
        return Flag.COMPLETING in self.flags

    @property
    def holds_resources(self) -> bool:
        return self.state == State.RUNNING or self.is_completing

    @property
    def time_limit_at(self) -> float | None:
        return None if self.request.limit_s is None else self.started_at + self.request.limit_s


@dataclass(frozen=True, kw_only=True)
class SimulatedNode:
    name: str
    cpus: int
    memory_mb: int
    gpus: int
    shards_per_gpu: int = 0
    share_gres: str = SHARD
    gpu_model: str = ""
    features: tuple[str, ...] = ()
    boot_at: float = 0.0
    drained: bool = False
    down: bool = False
    reason: str = ""
    reason_by: str = ""
    reason_at: float = 0.0
    repair_at: float = 0.0
    power: NodeFlag | None = None  # one of ASLEEP_NODE_FLAGS; None: awake
    power_at: float = 0.0  # when `power` changes by itself
    wakes_again: bool = False  # it was asked to power up while it was powering down
    boot_ordered_twice: bool = (
        False  # asked to power up while it booted: Slurm waits for a second boot, which never comes
    )
    clock_mhz: int | None = None  # that its GPUs were set to since it booted; None: the highest

    @property
    def usable(self) -> bool:
        """Whether jobs may start: at once, or after a boot that they begin."""
        return not (self.down or self.drained) and self.power not in (NodeFlag.POWER_DOWN, NodeFlag.POWERING_DOWN)

    @property
    def runs(self) -> bool:
        """Whether its system is up."""
        return not self.down and self.power in (None, NodeFlag.POWER_DOWN)


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """An executor's report that the processes of a job are gone."""

    job_id: int
    at: float
    state: State
    exit: ProcessExit = ProcessExit()
    reason: str = "None"
    lost_node: str = ""  # the node that went down with the job
    broke: FaultImpact | None = None  # the machine fault that caused it, if any


class EffectRecorder(Protocol):
    """Records when commands really start and when their processes are gone."""

    def record_start(self, job: SimulatedJob, at: float) -> None: ...

    def record_end(self, job: SimulatedJob, at: float, exit_status: ProcessExit) -> None: ...


class NullEffectRecorder:
    """Records nothing; used where effects are not checked."""

    def record_start(self, job: SimulatedJob, at: float) -> None:
        return

    def record_end(self, job: SimulatedJob, at: float, exit_status: ProcessExit) -> None:
        return


class SignalTarget(StrEnum):
    """The processes of a job that get a signal, in Slurm's terms."""

    ALL = "FULL_JOB"
    SHELL = "BATCH_JOB"
    STEPS = "FULL_STEPS_ONLY"  # all but the batch shell


class JobExecutor(Protocol):
    """Runs or simulates jobs for the controller, and never changes the controller's state."""

    def start(self, job: SimulatedJob, now: float) -> None:
        """Start the job. A failed start is reported as an end by the next poll."""
        ...

    def adopt(self, job: SimulatedJob, now: float) -> None:
        """Take over a job that was started before the controller restarted."""
        ...

    def signal(self, job: SimulatedJob, number: int, now: float, aim: SignalTarget = SignalTarget.ALL) -> None: ...

    def apply_fault(self, job: SimulatedJob, now: float) -> None:
        """Apply the job's newest fault or speed to its further course."""
        ...

    def next_end_at(self) -> float:
        """When the next end is due, or None if that is not known in advance."""
        ...

    def poll_ends(self, now: float) -> Sequence[JobEnd]:
        """All ends up to now, each reported once."""
        ...


def build_nodes(
    names: Iterable[str],
    *,
    gpus: int,
    gpu_model: str,
    now: float,
    cpus: int = 128,
    memory_mb: int = 1_024_000,
    shards_per_gpu: int = 0,
) -> Iterator[SimulatedNode]:
    """Nodes in racks of four, two racks per leaf switch and four leaves per pod; feature names give the topology."""
    for i, name in enumerate(names):
        features = (f"rack-r{i // 4 + 1:02d}", f"leaf-l{i // 8 + 1:02d}", f"pod-p{i // 32 + 1}", "nic-hdr200x4")
        yield SimulatedNode(
            name=name,
            cpus=cpus,
            memory_mb=memory_mb,
            gpus=gpus,
            shards_per_gpu=shards_per_gpu,
            gpu_model=gpu_model if gpus else "",
            features=features,
            boot_at=now,
        )
