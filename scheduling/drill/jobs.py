"""The jobs of a drill, as they stand: who they are, where they run, what is saved. Changed by the stage alone."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import timedelta

from jobs.core.lifecycle import JobKind
from scheduling.drill.values import JobFlaw
from scheduling.engine.engine import EngineJob, RequestGroup

GANG_JOB = "pretrain-123b"
CHECKPOINTING_KINDS = frozenset({JobKind.PRETRAIN, JobKind.SFT, JobKind.MLLM})
MIX_STEP_S = 10.0


@dataclass(kw_only=True)
class DrillCheckpoint:
    step: int
    at: float
    whole: bool = False
    loss_defect: str = ""  # how the weights in it are bad, if they are
    damaged: bool = False


@dataclass(kw_only=True)
class AttemptLife:
    """One attempt, for the ledger."""

    promised: float
    base: int
    nodes: tuple[int, ...] = ()
    first_step: float | None = None
    ended: float | None = None
    kept: bool = False
    cause: str = ""
    after: str = ""
    stalls: list[tuple[float, float]] = field(default_factory=list)
    hangs: list[tuple[float, float]] = field(default_factory=list)
    slows: list[tuple[float, float, float]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def reached(self, step: int) -> float:
        """When it had completed this step; its promise, where it came later than that step."""
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
    ask: RequestGroup
    number: int
    flaw: JobFlaw | None = None
    job: EngineJob | None = None  # while it waits or runs
    nodes: tuple[int, ...] = ()  # of the present attempt, or of the last
    run: int = 0  # which attempt; what was planned for an earlier one is void
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
    bug: tuple[int, str] | None = None  # at which step the program fails, and with which words
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

    def ran(self, now: float) -> timedelta:
        """How long all of its attempts ran, start-up included."""
        return timedelta(
            seconds=sum((now if life.ended is None else life.ended) - life.promised for life in self.lives)
        )

    def newest(self, step: int | None) -> DrillCheckpoint | None:
        """The checkpoint of a step, or of the newest that is whole."""
        whole = [one for one in self.saved if one.whole and (step is None or one.step == step)]
        return max(whole, key=lambda one: one.step, default=None)

    def is_step_skipped(self, step: int) -> bool:
        return any(low <= step <= high for low, high in self.skips)

    def met(self, step: int) -> str:
        """How the data of this step spoil the weights, if they do."""
        if self.is_step_skipped(step):
            return ""
        return next((how for low, high, how in self.bad_data if low <= step <= high), "")
