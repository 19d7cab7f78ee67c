"""What a drill is made of: its plan, what breaks, and what an answer may see of it. Frozen values.

Two sides share these and nothing else. The stage knows a `Fault`; who answers is shown `Ended` and `Beat`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from failures.incidents.circumstances import NodeStateChange
from failures.recovery.checkpoints import DirectoryListing
from jobs.core.lifecycle import JobKind

DRILL_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)  # of every drill; logs and decisions need a date


def virtual_time(at: float) -> datetime:
    return DRILL_EPOCH + timedelta(seconds=at)


@dataclass(frozen=True, kw_only=True)
class DrillPlan:
    """The datacenter of the drill. Where no source is named the figure is ours, and each can be set."""

    hours: float = 24.0
    seed: int = 1
    nodes: int = 302  # Kalos, of the Acme study
    gpus_per_node: int = 8
    gang_nodes: int = 256  # 2,048 GPUs, its 123B job
    step_s: float = 10.0  # 4 million tokens of a 123B model on so many A100 at half their peak
    restart_s: float = 180.0  # processes, communicators and loading; 129 s of it as a load of a 405B model took
    stall_s: float = 2.0  # that a checkpoint blocks training
    persist_s: float = 60.0  # until it lies in remote storage; 51 s were measured for a 405B model
    checkpoint_s: float = 1800.0  # of the jobs beside it
    evaluate_steps: int = 720  # the gang stands still for an evaluation so often
    evaluate_s: float = 90.0
    watchdog_s: float = 600.0  # after which NCCL itself ends a job that hangs
    test_round_s: float = 30.0  # a round of pairs, as jobs: started, run and told
    human_s: tuple[float, float] = (600.0, 3600.0)  # until a person has come, found it and mended it
    spares: int = 4
    cooldown_h: float = 2.0  # nothing breaks any more, and what is open may come to its end

    @property
    def end_s(self) -> float:
        return self.hours * 3600

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"seren-{number:03}" for number in range(self.nodes))


@dataclass(frozen=True, kw_only=True)
class DrillFault:
    """The truth of something that breaks. `place` and `gpu` choose whom, `lasts_s` is how long it stays if nobody
    mends it, and `sticks` whether it hits whoever comes next."""

    number: int
    at: float
    kind: str
    node: int
    gpu: int
    lasts_s: float
    factor: float = 1.0  # how much slower a slow one is
    sticks: bool = False


@dataclass(frozen=True, kw_only=True)
class JobFlaw:
    """What a job brings along: it fails so `after_s` of work, and again and again unless it `passes`."""

    reason: str
    after_s: float
    passes: bool


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """A step that a trainer reports."""

    at: float
    step: int
    seconds: float
    tokens: float
    squares: float
    loss: float
    grad_norm: float


@dataclass(frozen=True, kw_only=True)
class FailedAttempt:
    """An attempt that failed, as the record has it."""

    job: str
    team: str
    kind: JobKind
    at: datetime
    state: str
    log: str
    exit_code: int | None
    nodes: frozenset[str]
    step: int | None
    started_from: int | None
    shelf: DirectoryListing
    ran: timedelta  # all of its attempts together
    news: tuple[NodeStateChange, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
