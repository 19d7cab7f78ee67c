"""What becomes of a job when an attempt of it ends. A table a person can read; nothing is changed here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from jobs.lifecycle import FAILURES, FINAL, MOVES, PLATFORM_ENDS, Flag, Kind, State

RECOVERY_LABEL = "acme-recovery"  # of a job: `off` opts out, `on` asks for it where it is not usual
TRAINING = frozenset({Kind.PRETRAIN, Kind.SFT, Kind.MLLM})
# A time limit is what its owner asked for; everything else may have been somebody's fault
RECOVERABLE = FAILURES - {State.TIMEOUT, State.DEADLINE}


@dataclass(frozen=True, kw_only=True)
class Next:
    """The job's new state. A job that goes back to the queue keeps its place there."""

    state: State
    flags: tuple[Flag, ...] = ()
    spends_budget: bool = False
    why: str


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a cluster says that an attempt ended."""

    state: State
    at: datetime
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""

    @property
    def sentence(self) -> str:
        if self.state == State.FAILED and self.signal:
            return f"Its command was ended by signal {self.signal}."
        if self.state == State.FAILED and self.exit_code:
            return f"Its command ended with exit code {self.exit_code}."
        return MOVES.get((State.RUNNING, self.state), f"The cluster reports {self.state}.")


def after(ended: Ended, *, wanted: str, budget: int) -> Next:
    """`wanted` is what somebody asked the attempt to become ("" for nobody), `budget` the requeues that are left."""
    if ended.state == State.COMPLETED:
        return Next(state=State.COMPLETED, why=ended.sentence)
    if wanted == State.CANCELLED:
        return Next(state=State.CANCELLED, why="It was stopped as asked.")
    if wanted == State.PENDING:
        return Next(state=State.PENDING, flags=(Flag.REQUEUED,), why="It was requeued as asked.")
    if wanted == State.TIMEOUT:
        return Next(state=State.TIMEOUT, why=MOVES[State.RUNNING, State.TIMEOUT])
    if wanted == State.FAILED:
        return Next(state=State.FAILED, why="Recovery ended it.")
    if wanted == State.PREEMPTED:
        return _back_or(State.PREEMPTED, budget, spends=False, why="It gave way to other work")
    if ended.state in PLATFORM_ENDS:
        return _back_or(ended.state, budget, spends=True, why="The platform failed under it")
    return Next(state=ended.state, why=ended.sentence)


def _back_or(end: State, budget: int, *, spends: bool, why: str) -> Next:
    if budget > 0:
        return Next(
            state=State.PENDING, flags=(Flag.REQUEUED,), spends_budget=spends, why=f"{why}; it waits for a new start."
        )
    return Next(state=end, why=f"{why}, and its requeue budget is spent.")


@dataclass(frozen=True, kw_only=True)
class Work:
    """What of a job says whether recovery looks after it."""

    kind: str
    labels: Mapping[str, object]
    saves: bool
    may_requeue: bool

    def is_recoverable(self, ended: Ended) -> bool:
        said = self.labels.get(RECOVERY_LABEL)
        usual = self.kind in TRAINING or self.saves
        looked_after = said != "off" and self.may_requeue and (usual or said == "on")
        return looked_after and ended.state in RECOVERABLE


def waits_for_recovery(becomes: Next, modes: Collection[str]) -> bool:
    """Whether recovery decides before this rule does. A job that goes on by itself is taken from its queue only where
    recovery may act without asking anybody."""
    return "act" in modes or (becomes.state in FINAL and "propose" in modes)


def to_recover(ended: Ended) -> Next:
    return Next(
        state=State.PENDING,
        flags=(Flag.RECOVERING,),
        why=f"{ended.sentence} What is done about it is being decided.",
    )


def held(why: str) -> Next:
    """It would go on ending like this, so it waits for a person."""
    return Next(state=State.PENDING, flags=(Flag.REQUEUE_HOLD,), spends_budget=True, why=why)


def outcome_unknown(why: str) -> Next:
    """Its cluster forgot it, and nothing shows how it ended. It may have succeeded, so it must not start again before
    a person has recorded the outcome."""
    return Next(state=State.PENDING, flags=(Flag.OUTCOME_UNKNOWN,), why=why)


def refused(why: str) -> Next:
    """The cluster would not take it. Asking again would be refused again, so it waits for a person."""
    return Next(
        state=State.PENDING, flags=(Flag.REQUEUE_HOLD, Flag.LAUNCH_FAILED), why=f"The cluster refused it: {why}"
    )


def misplaced(why: str) -> Next:
    """The cluster cannot take it there just now, and that is not the job's fault."""
    return Next(
        state=State.PENDING,
        flags=(Flag.REQUEUED,),
        why=f"Its nodes could not take it any more; it waits for others. The cluster said: {why}",
    )
