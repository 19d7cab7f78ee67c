"""The values of a drill: its plan, its faults, and what a strategy sees of them. Frozen.

Simulation and strategy share only these. The simulation knows a `DrillFault`; a strategy sees `FailedAttempt` and
`StepReport`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from failures.incidents.circumstances import NodeStateChange
from failures.recovery.rules.checkpoints import DirectoryListing
from jobs.core.lifecycle import JobKind

DRILL_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)  # of every drill; logs and decisions need a date


def virtual_time(at: float) -> datetime:
    return DRILL_EPOCH + timedelta(seconds=at)


@dataclass(frozen=True, kw_only=True)
class DrillPlan:
    """The simulated datacenter. Figures without a source are assumptions; each can be set."""

    hours: float = 24.0
    seed: int = 1
    nodes: int = 302  # Kalos in the Acme study
    gpus_per_node: int = 8
    site: str = "seren"  # prefix of the names of the nodes
    first_node: int = 0  # in the names of the nodes
    gang_nodes: int = 256  # 2,048 GPUs: its 123B job
    step_s: float = 10.0  # 4 million tokens of a 123B model on this many A100 at half their peak
    restart_s: float = 180.0  # processes, communicators, and 129 s of loading as measured for a 405B model
    stall_s: float = 2.0  # for which a checkpoint blocks training
    persist_s: float = 60.0  # until it is in remote storage; measured for a 405B model: 51 s
    checkpoint_s: float = 1800.0  # interval of the other jobs
    start_s: float = 60.0  # until the other jobs complete their first step
    evaluate_steps: int = 720  # steps between evaluations, during which the gang does not train
    evaluate_s: float = 90.0
    watchdog_s: float = 600.0  # until NCCL ends a hanging job
    test_round_s: float = 30.0  # a round of pair tests, from submission to result
    human_s: tuple[float, float] = (600.0, 3600.0)  # until an operator has come, found the fault and fixed it
    spares: int = 4
    cooldown_h: float = 2.0  # time without faults at the end, for open cases to finish

    @property
    def end_s(self) -> float:
        return self.hours * 3600

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"{self.site}-{number:03}" for number in range(self.first_node, self.first_node + self.nodes))


@dataclass(frozen=True, kw_only=True)
class DrillFault:
    """A fault.

    `node` and `gpu` are its place, `lasts_s` is its duration without repair, and with `sticks` it also hits later jobs.
    """

    number: int
    at: float
    kind: str
    node: int
    gpu: int
    lasts_s: float
    factor: float = 1.0  # by which a slow node is slower
    sticks: bool = False


@dataclass(frozen=True, kw_only=True)
class NodeClosure:
    """A reason for which a node stops accepting jobs, or the end of this reason: down, cordon, repair, test."""

    node: int
    at: float
    why: str
    closes: bool


@dataclass(frozen=True, kw_only=True)
class JobFlaw:
    """A job's own flaw: it fails after `after_s` of work, and again after each restart unless it `passes`."""

    reason: str
    after_s: float
    passes: bool


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """A step as reported by a training program."""

    at: float
    step: int
    seconds: float
    tokens: float
    squares: float
    loss: float
    grad_norm: float


@dataclass(frozen=True, kw_only=True)
class FailedAttempt:
    """An attempt that failed, as recorded by the control plane."""

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
    ran: timedelta  # total of all attempts
    news: tuple[NodeStateChange, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
