"""What becomes of a job when an attempt of it ends. A table a person can read; nothing is changed here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from jobs.core.lifecycle import FAILURE_STATES, FINAL_STATES, PLATFORM_FAILURES, TRANSITIONS, Flag, JobKind, State

RECOVERY_LABEL = "acme-recovery"  # of a job: `off` opts out, `on` asks for it where it is not usual
TRAINING_KINDS = frozenset({JobKind.PRETRAIN, JobKind.SFT, JobKind.MLLM})
# A time limit is what its owner asked for; everything else may have been somebody's fault
RECOVERABLE_STATES = FAILURE_STATES - {State.TIMEOUT, State.DEADLINE}


@dataclass(frozen=True, kw_only=True)
class JobTransition:
    """The job's new state. A job that goes back to the queue keeps its place there."""

    state: State
    flags: tuple[Flag, ...] = ()
    spends_budget: bool = False
    why: str


@dataclass(frozen=True, kw_only=True)
class AttemptEnd:
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
        return TRANSITIONS.get((State.RUNNING, self.state), f"The cluster reports {self.state}.")


def transition_after_end(ended: AttemptEnd, *, wanted: str, budget: int) -> JobTransition:
    """`wanted` is what somebody asked the attempt to become ("" for nobody), `budget` the requeues that are left."""
    if ended.state == State.COMPLETED:
        return JobTransition(state=State.COMPLETED, why=ended.sentence)
    if wanted == State.CANCELLED:
        return JobTransition(state=State.CANCELLED, why="It was stopped as asked.")
    if wanted == State.PENDING:
        return JobTransition(state=State.PENDING, flags=(Flag.REQUEUED,), why="It was requeued as asked.")
    if wanted == State.TIMEOUT:
        return JobTransition(state=State.TIMEOUT, why=TRANSITIONS[State.RUNNING, State.TIMEOUT])
    if wanted == State.FAILED:
        return JobTransition(state=State.FAILED, why="Recovery ended it.")
    if wanted == State.PREEMPTED:
        return _requeue_or_end(State.PREEMPTED, budget, spends=False, why="It gave way to other work")
    if ended.state in PLATFORM_FAILURES:
        return _requeue_or_end(ended.state, budget, spends=True, why="The platform failed under it")
    return JobTransition(state=ended.state, why=ended.sentence)


def _requeue_or_end(end: State, budget: int, *, spends: bool, why: str) -> JobTransition:
    if budget > 0:
        return JobTransition(
            state=State.PENDING, flags=(Flag.REQUEUED,), spends_budget=spends, why=f"{why}; it waits for a new start."
        )
    return JobTransition(state=end, why=f"{why}, and its requeue budget is spent.")


@dataclass(frozen=True, kw_only=True)
class RecoveryEligibility:
    """What of a job says whether recovery looks after it."""

    kind: str
    labels: Mapping[str, object]
    saves: bool
    may_requeue: bool

    def is_recoverable(self, ended: AttemptEnd) -> bool:
        said = self.labels.get(RECOVERY_LABEL)
        usual = self.kind in TRAINING_KINDS or self.saves
        looked_after = said != "off" and self.may_requeue and (usual or said == "on")
        return looked_after and ended.state in RECOVERABLE_STATES


def waits_for_recovery(becomes: JobTransition, modes: Collection[str]) -> bool:
    """Whether recovery decides before this rule does. A job that goes on by itself is taken from its queue only where
    recovery may act without asking anybody."""
    return "act" in modes or (becomes.state in FINAL_STATES and "propose" in modes)


def transition_to_recovery(ended: AttemptEnd) -> JobTransition:
    return JobTransition(
        state=State.PENDING,
        flags=(Flag.RECOVERING,),
        why=f"{ended.sentence} What is done about it is being decided.",
    )


def transition_to_hold(why: str) -> JobTransition:
    """It would go on ending like this, so it waits for a person."""
    return JobTransition(state=State.PENDING, flags=(Flag.REQUEUE_HOLD,), spends_budget=True, why=why)


def transition_to_unknown(why: str) -> JobTransition:
    """Its cluster forgot it, and nothing shows how it ended. It may have succeeded, so it must not start again before
    a person has recorded the outcome."""
    return JobTransition(state=State.PENDING, flags=(Flag.OUTCOME_UNKNOWN,), why=why)


def transition_after_refusal(why: str) -> JobTransition:
    """The cluster would not take it. Asking again would be refused again, so it waits for a person."""
    return JobTransition(
        state=State.PENDING, flags=(Flag.REQUEUE_HOLD, Flag.LAUNCH_FAILED), why=f"The cluster refused it: {why}"
    )


def transition_after_misplacement(why: str) -> JobTransition:
    """The cluster cannot take it there just now, and that is not the job's fault."""
    return JobTransition(
        state=State.PENDING,
        flags=(Flag.REQUEUED,),
        why=f"Its nodes could not take it any more; it waits for others. The cluster said: {why}",
    )
