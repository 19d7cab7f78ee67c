"""What a small cluster is made of: requests, jobs, nodes, and the values that go in and out of its controller.

Frozen values only; they know no clock, no file and no network. Times are unix seconds of the cluster's own wall clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from jobs.core.lifecycle import Flag, State

from .faults import ClusterFault, FaultImpact

TERM, KILL = 15, 9

# Slurm's numbers for what it refuses.
BAD_CONFIGURATION, UNKNOWN_JOB, UNKNOWN_NODE, JOB_ALREADY_ENDED, BAD_NODE_STATE = 2014, 2017, 2018, 2021, 2028
BAD_FAULT = 2030  # ours: Slurm has no faults to order


class SlurmError(Exception):
    """What the controller will not do, with Slurm's number for it."""

    def __init__(self, number: int, words: str) -> None:
        super().__init__(words)
        self.number, self.words = number, words


@dataclass(frozen=True, kw_only=True)
class ControllerTiming:
    """How long the controller takes for its own part."""

    configure_s: float = 1.0
    complete_s: float = 0.5  # the epilog: the GPUs are held a moment longer than the job runs
    kill_wait_s: float = 5.0
    min_job_age_s: float = 300.0  # how long an ended job is remembered; the default is that of Slurm's MinJobAge


@dataclass(frozen=True, kw_only=True)
class SlurmJobRequest:
    """What was asked; it never changes, except where a job is updated by hand."""

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
class SlurmJob:
    """One job as it stands. `nodes` and `gpus` stay after its end; whether they are held is `holds`.

    The moments are true ones, by which the controller plans. Beside each lies the offset that the cluster's wall clock
    had then: what the cluster reports is the sum, and setting its clock does not change what was stamped before.
    """

    id: int
    request: SlurmJobRequest
    submitted_at: float
    state: State = State.PENDING
    flags: frozenset[Flag] = frozenset()
    reason: str = "None"
    nodes: tuple[str, ...] = ()
    gpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    started_at: float = 0.0
    began_at: float = 0.0  # when its nodes were ready and its command began
    ended_at: float = 0.0
    exit: ProcessExit = ProcessExit()
    blows: tuple[FaultImpact, ...] = ()
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
class SlurmNode:
    name: str
    cpus: int
    memory_mb: int
    gpus: int
    gpu_model: str = ""
    features: tuple[str, ...] = ()
    boot_at: float = 0.0
    drained: bool = False
    down: bool = False
    reason: str = ""
    reason_by: str = ""
    reason_at: float = 0.0
    repair_at: float = 0.0

    @property
    def usable(self) -> bool:
        return not (self.down or self.drained)


@dataclass(frozen=True, kw_only=True)
class ControllerState:
    """What must survive besides jobs, nodes and troubles, so that no id and no fault is drawn twice."""

    next_id: int = 1
    faults: int = 0
    next_fault_at: float = 0.0
    offset_s: float = 0.0  # how far the wall clock that the cluster reports by is ahead of the true time


@dataclass(frozen=True, kw_only=True)
class SimulatorSnapshot:
    """The whole world at rest: what a store gives back after a restart."""

    nodes: tuple[SlurmNode, ...]
    jobs: tuple[SlurmJob, ...] = ()
    troubles: tuple[ClusterFault, ...] = ()
    clock: ControllerState = ControllerState()


@dataclass(frozen=True, kw_only=True)
class StateChanges:
    """What is new since the last time; every value whole, so that writing it twice does no harm."""

    jobs: tuple[SlurmJob, ...] = ()
    nodes: tuple[SlurmNode, ...] = ()
    forgotten: tuple[SlurmJob, ...] = ()  # as they stood at last
    troubles: tuple[ClusterFault, ...] = ()
    clock: ControllerState | None = None

    def __bool__(self) -> bool:
        return bool(self.jobs or self.nodes or self.forgotten or self.troubles or self.clock)


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """What the hands report: the processes of a job are gone."""

    job_id: int
    at: float
    state: State
    exit: ProcessExit = ProcessExit()
    reason: str = "None"
    lost_node: str = ""  # the node that went down with it
    broke: FaultImpact | None = None  # what of the machine had broken under it, where it was that


class EffectRecorder(Protocol):
    """What is told when a command really begins and when its processes are gone."""

    def started(self, job: SlurmJob, at: float) -> None: ...

    def ended(self, job: SlurmJob, at: float, ended: ProcessExit) -> None: ...


class NullEffectRecorder:
    """For worlds that nobody judges."""

    def started(self, job: SlurmJob, at: float) -> None:
        return

    def ended(self, job: SlurmJob, at: float, ended: ProcessExit) -> None:
        return


class SignalTarget(StrEnum):
    """Who of a job gets a signal, in Slurm's words."""

    ALL = "FULL_JOB"
    SHELL = "BATCH_JOB"
    STEPS = "FULL_STEPS_ONLY"  # all but the batch shell


class JobExecutor(Protocol):
    """What makes a job happen. They never touch the world; they are told, and asked."""

    def start(self, job: SlurmJob, now: float) -> None:
        """Begin it. A start that fails is an end, reported by the next poll."""
        ...

    def adopt(self, job: SlurmJob, now: float) -> None:
        """Take over a job that was started before the controller came back."""
        ...

    def signal(self, job: SlurmJob, number: int, now: float, aim: SignalTarget = SignalTarget.ALL) -> None: ...

    def apply_fault(self, job: SlurmJob, now: float) -> None:
        """The job got another blow; it goes on differently from here."""
        ...

    def next_end_at(self) -> float | None:
        """When the next end is due, where that is known beforehand."""
        ...

    def poll_ends(self, now: float) -> Sequence[JobEnd]:
        """Whatever ended up to now, each end once."""
        ...


def build_nodes(
    names: Iterable[str], *, gpus: int, gpu_model: str, now: float, cpus: int = 128, memory_mb: int = 1_024_000
) -> Iterator[SlurmNode]:
    """Nodes in racks of four, a leaf switch per two racks, a pod per four leaves: topology by the names of features."""
    for i, name in enumerate(names):
        features = (f"rack-r{i // 4 + 1:02d}", f"leaf-l{i // 8 + 1:02d}", f"pod-p{i // 32 + 1}", "nic-hdr200x4")
        yield SlurmNode(
            name=name,
            cpus=cpus,
            memory_mb=memory_mb,
            gpus=gpus,
            gpu_model=gpu_model if gpus else "",
            features=features,
            boot_at=now,
        )
