"""What a small cluster is made of: requests, jobs, nodes, and the values that go in and out of its controller.

Frozen values only; they know no clock, no file and no network. Times are unix seconds of the cluster's own wall clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from jobs.lifecycle import Flag, State

from .troubles import Blow, Trouble

TERM, KILL = 15, 9

# Slurm's numbers for what it refuses.
BAD_CONFIGURATION, UNKNOWN_JOB, UNKNOWN_NODE, ALREADY_DONE, BAD_NODE_STATE = 2014, 2017, 2018, 2021, 2028
BAD_FAULT = 2030  # ours: Slurm has no faults to order


class Refusal(Exception):
    """What the controller will not do, with Slurm's number for it."""

    def __init__(self, number: int, words: str) -> None:
        super().__init__(words)
        self.number, self.words = number, words


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long the controller takes for its own part."""

    configure_s: float = 1.0
    complete_s: float = 0.5  # the epilog: the GPUs are held a moment longer than the job runs
    kill_wait_s: float = 5.0
    min_job_age_s: float = 300.0  # how long an ended job is remembered; the default is that of Slurm's MinJobAge


@dataclass(frozen=True, kw_only=True)
class Request:
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
class Exit:
    code: int = 0
    signal: int = 0


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job as it stands. `nodes` and `gpus` stay after its end; whether they are held is `holds`.

    The moments are true ones, by which the controller plans. Beside each lies the offset that the cluster's wall clock
    had then: what the cluster reports is the sum, and setting its clock does not change what was stamped before.
    """

    id: int
    request: Request
    submitted_at: float
    state: State = State.PENDING
    flags: frozenset[Flag] = frozenset()
    reason: str = "None"
    nodes: tuple[str, ...] = ()
    gpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    started_at: float = 0.0
    began_at: float = 0.0  # when its nodes were ready and its command began
    ended_at: float = 0.0
    exit: Exit = Exit()
    blows: tuple[Blow, ...] = ()
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
    def configuring(self) -> bool:
        return Flag.CONFIGURING in self.flags

    @property
    def completing(self) -> bool:
        return Flag.COMPLETING in self.flags

    @property
    def holds(self) -> bool:
        return self.state == State.RUNNING or self.completing

    @property
    def ends_by(self) -> float | None:
        return None if self.request.limit_s is None else self.started_at + self.request.limit_s


@dataclass(frozen=True, kw_only=True)
class Node:
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
class Clock:
    """What must survive besides jobs, nodes and troubles, so that no id and no fault is drawn twice."""

    next_id: int = 1
    faults: int = 0
    next_fault_at: float = 0.0
    offset_s: float = 0.0  # how far the wall clock that the cluster reports by is ahead of the true time


@dataclass(frozen=True, kw_only=True)
class Picture:
    """The whole world at rest: what a store gives back after a restart."""

    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    clock: Clock = Clock()


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What is new since the last time; every value whole, so that writing it twice does no harm."""

    jobs: tuple[Job, ...] = ()
    nodes: tuple[Node, ...] = ()
    forgotten: tuple[Job, ...] = ()  # as they stood at last
    troubles: tuple[Trouble, ...] = ()
    clock: Clock | None = None

    def __bool__(self) -> bool:
        return bool(self.jobs or self.nodes or self.forgotten or self.troubles or self.clock)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What the hands report: the processes of a job are gone."""

    job_id: int
    at: float
    state: State
    exit: Exit = Exit()
    reason: str = "None"
    lost_node: str = ""  # the node that went down with it
    broke: Blow | None = None  # what of the machine had broken under it, where it was that


class Effects(Protocol):
    """What is told when a command really begins and when its processes are gone."""

    def started(self, job: Job, at: float) -> None: ...

    def ended(self, job: Job, at: float, ended: Exit) -> None: ...


class NoEffects:
    """For worlds that nobody judges."""

    def started(self, job: Job, at: float) -> None:
        return

    def ended(self, job: Job, at: float, ended: Exit) -> None:
        return


class Aim(StrEnum):
    """Who of a job gets a signal, in Slurm's words."""

    ALL = "FULL_JOB"
    SHELL = "BATCH_JOB"
    STEPS = "FULL_STEPS_ONLY"  # all but the batch shell


class Hands(Protocol):
    """What makes a job happen. They never touch the world; they are told, and asked."""

    def start(self, job: Job, now: float) -> None:
        """Begin it. A start that fails is an end, reported by the next poll."""
        ...

    def adopt(self, job: Job, now: float) -> None:
        """Take over a job that was started before the controller came back."""
        ...

    def signal(self, job: Job, number: int, now: float, aim: Aim = Aim.ALL) -> None: ...

    def struck(self, job: Job, now: float) -> None:
        """The job got another blow; it goes on differently from here."""
        ...

    def next_at(self) -> float | None:
        """When the next end is due, where that is known beforehand."""
        ...

    def poll(self, now: float) -> Sequence[Ended]:
        """Whatever ended up to now, each end once."""
        ...


def plan_nodes(
    names: Iterable[str], *, gpus: int, gpu_model: str, now: float, cpus: int = 128, memory_mb: int = 1_024_000
) -> Iterator[Node]:
    """Nodes in racks of four, a leaf switch per two racks, a pod per four leaves: topology by the names of features."""
    for i, name in enumerate(names):
        features = (f"rack-r{i // 4 + 1:02d}", f"leaf-l{i // 8 + 1:02d}", f"pod-p{i // 32 + 1}", "nic-hdr200x4")
        yield Node(
            name=name,
            cpus=cpus,
            memory_mb=memory_mb,
            gpus=gpus,
            gpu_model=gpu_model if gpus else "",
            features=features,
            boot_at=now,
        )
