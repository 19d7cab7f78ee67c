"""The state of a drill's jobs: identity, nodes, checkpoints. Only the simulation changes it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import timedelta

from jobs.core.lifecycle import JobKind
from scheduling.engine.job import EngineJob, RequestGroup
from scheduling.engine.resources import GpuPlacement
from scheduling.simulation.drill.values import JobFlaw

GANG_JOB = "pretrain-123b"
CHECKPOINTING_KINDS = frozenset({JobKind.PRETRAIN, JobKind.SFT, JobKind.MLLM})
MIX_STEP_S = 10.0


@dataclass(kw_only=True)
class DrillCheckpoint:
    step: int
    at: float
    whole: bool = False
    loss_defect: str = ""  # "nan" or "spike" if its weights are bad


@dataclass(kw_only=True)
class AttemptLife:
    """One attempt, for the ledger."""

    promised: float
    base: int
    number: int = 0  # among all attempts of the drill
    nodes: tuple[int, ...] = ()
    places: GpuPlacement = ()
    first_step: float | None = None
    ended: float | None = None
    keeps_work: bool = False
    cause: str = ""
    after: str = ""
    stalls: list[tuple[float, float]] = field(default_factory=list)
    hangs: list[tuple[float, float]] = field(default_factory=list)
    slows: list[tuple[float, float, float]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def time_of_step(self, step: int) -> float:
        """When the attempt had completed this step, at the earliest when its GPUs were allocated."""
        at = bisect_right(self.steps, step)
        return self.times[at - 1] if at else self.promised


@dataclass(kw_only=True)
class DrillJob:
    name: str
    team: str
    kind: JobKind
    gpus: int
    submitted: float
    need_s: float
    group: RequestGroup
    number: int
    flaw: JobFlaw | None = None
    planned_s: float = 0.0  # run time that its user planned; more than it needs if it does not complete
    job: EngineJob | None = None  # while the job waits or runs
    nodes: tuple[int, ...] = ()  # of the present attempt, or of the last
    run: int = 0  # changes with each attempt; actions planned for an earlier value are void
    waiting: bool = False
    running: bool = False
    over: bool = False
    handed_over: bool = False
    dying: bool = False
    silent_since: float | None = None
    step: int = 0
    base: int = 0  # the step it started from
    saved: list[DrillCheckpoint] = field(default_factory=list)
    skips: list[tuple[int, int]] = field(default_factory=list)
    bad_data: list[tuple[int, int, str]] = field(default_factory=list)
    loss_defect: str = ""
    bug: tuple[int, str] | None = None  # the step at which the program fails, and the reason
    lives: list[AttemptLife] = field(default_factory=list)

    @property
    def is_gang(self) -> bool:
        return self.name == GANG_JOB

    @property
    def current_attempt(self) -> AttemptLife:
        return self.lives[-1]

    @property
    def saves(self) -> bool:
        return self.kind in CHECKPOINTING_KINDS

    def total_run_time(self, now: float) -> timedelta:
        """The total run time of all attempts, including their start-up."""
        return timedelta(
            seconds=sum((now if life.ended is None else life.ended) - life.promised for life in self.lives)
        )

    def newest(self, step: int | None) -> DrillCheckpoint | None:
        """The newest complete checkpoint, or the one of the given step."""
        whole = [row for row in self.saved if row.whole and (step is None or row.step == step)]
        return max(whole, key=lambda row: row.step, default=None)

    def is_step_skipped(self, step: int) -> bool:
        return any(low <= step <= high for low, high in self.skips)

    def data_defect(self, step: int) -> str:
        """How the data of this step damage the weights; empty if they do not."""
        if self.is_step_skipped(step):
            return ""
        return next((how for low, high, how in self.bad_data if low <= step <= high), "")
