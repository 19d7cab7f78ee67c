"""Decides what happens to a job when one of its attempts ends. Returns decisions; nothing is changed here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from jobs.core.lifecycle import FAILURE_STATES, FINAL_STATES, PLATFORM_FAILURES, TRANSITIONS, Flag, JobKind, State

RECOVERY_LABEL = "acme-recovery"  # job label: `off` disables recovery, `on` enables it for kinds that do not use it
TRAINING_KINDS = frozenset({JobKind.PRETRAIN, JobKind.SFT, JobKind.MLLM})
# The end of an attempt, where the sentence in TRANSITIONS is about the job
END_SENTENCES = {
    State.NODE_FAIL: "One of its nodes failed.",
    State.BOOT_FAIL: "Its nodes did not boot.",
    State.PREEMPTED: "It was preempted.",
}
# The job's owner chose the time limit and the deadline. All other failures may be caused by the platform
RECOVERABLE_STATES = FAILURE_STATES - {State.TIMEOUT, State.DEADLINE}


@dataclass(frozen=True, kw_only=True)
class JobTransition:
    """The job's new state. A job that returns to the queue keeps its place there."""

    state: State
    flags: tuple[Flag, ...] = ()
    spends_budget: bool = False
    why: str


@dataclass(frozen=True, kw_only=True)
class AttemptEnd:
    """How an attempt ended, as the cluster reports it."""

    state: State
    at: datetime
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""

    @property
    def sentence(self) -> str:
        """Describe the end for the event log and the job page."""
        # The signal first: shells report 128 + signal as exit code, which is harder to read
        if self.state == State.FAILED and self.signal:
            return f"Its command was ended by signal {self.signal}."
        if self.state == State.FAILED and self.exit_code:
            return f"Its command ended with exit code {self.exit_code}."
        job_sentence = TRANSITIONS.get((State.RUNNING, self.state), f"The cluster reports {self.state}.")
        return END_SENTENCES.get(self.state, job_sentence)


def has_ended_before(ended: AttemptEnd, stop_at: datetime | None) -> bool:
    """Return whether the attempt ended by itself before this time limit or deadline. If its cluster reported the end
    late, Acme has stopped it for the limit nevertheless. The end of an attempt that was stopped is CANCELLED."""
    return stop_at is not None and ended.at < stop_at and ended.state not in (State.CANCELLED, State.UNKNOWN)


def transition_after_end(ended: AttemptEnd, *, requested: str, budget: int) -> JobTransition:
    """Return what the job becomes after this end.

    `requested` is the state that a user or a loop requested with a stop, "" without such a request. `budget` is the
    number of requeues that remain.
    """
    # A job that completed before a requested stop took effect stays completed
    if ended.state == State.COMPLETED:
        return JobTransition(state=State.COMPLETED, why=ended.sentence)
    if requested == State.CANCELLED:
        return JobTransition(state=State.CANCELLED, why="Stopped on request.")
    if requested == State.PENDING:
        return JobTransition(state=State.PENDING, flags=(Flag.REQUEUED,), why="Requeued on request.")
    if requested == State.TIMEOUT:
        return JobTransition(state=State.TIMEOUT, why=TRANSITIONS[State.RUNNING, State.TIMEOUT])
    if requested == State.DEADLINE:
        return JobTransition(state=State.DEADLINE, why=TRANSITIONS[State.RUNNING, State.DEADLINE])
    if requested == State.FAILED:
        return JobTransition(state=State.FAILED, why="Stopped by recovery.")
    if requested == State.PREEMPTED:
        # A preemption consumes no requeue, because the job is not responsible for it
        return _requeue_or_end(State.PREEMPTED, budget, spends=False, why="Preempted by other work")
    if ended.state in PLATFORM_FAILURES:
        return _requeue_or_end(ended.state, budget, spends=True, why="Platform failure")
    return JobTransition(state=ended.state, why=ended.sentence)


def _requeue_or_end(end: State, budget: int, *, spends: bool, why: str) -> JobTransition:
    if budget > 0:
        return JobTransition(state=State.PENDING, flags=(Flag.REQUEUED,), spends_budget=spends, why=f"{why}; requeued.")
    return JobTransition(state=end, why=f"{why}; no requeues remain.")


@dataclass(frozen=True, kw_only=True)
class RecoveryEligibility:
    """The properties of a job that decide whether recovery handles its failures."""

    kind: str
    labels: Mapping[str, object]
    saves: bool
    may_requeue: bool

    def is_recoverable(self, ended: AttemptEnd) -> bool:
        preference = self.labels.get(RECOVERY_LABEL)
        is_default = self.kind in TRAINING_KINDS or self.saves
        is_enabled = preference != "off" and self.may_requeue and (is_default or preference == "on")
        return is_enabled and ended.state in RECOVERABLE_STATES


def waits_for_recovery(transition: JobTransition, modes: Collection[str]) -> bool:
    """Return whether recovery decides before the rules in this module apply. A job that would be requeued waits for
    recovery only where recovery may act without approval."""
    return "act" in modes or (transition.state in FINAL_STATES and "propose" in modes)


def transition_to_recovery(ended: AttemptEnd) -> JobTransition:
    """Keep the job pending until recovery has decided."""
    return JobTransition(
        state=State.PENDING,
        flags=(Flag.RECOVERING,),
        why=f"{ended.sentence} Waiting for a recovery decision.",
    )


def transition_to_hold(why: str) -> JobTransition:
    """Hold the job until a user releases it: another attempt would end in the same way."""
    return JobTransition(state=State.PENDING, flags=(Flag.REQUEUE_HOLD,), spends_budget=True, why=why)


def transition_to_unknown(why: str) -> JobTransition:
    """Hold a job whose attempt the cluster no longer knows. It may have succeeded, so it must not start again before a
    user has recorded the outcome."""
    return JobTransition(state=State.PENDING, flags=(Flag.OUTCOME_UNKNOWN,), why=why)


def transition_after_refusal(why: str) -> JobTransition:
    """Hold a job that the cluster rejected. A second submission would be rejected too, so a user must look at it."""
    return JobTransition(
        state=State.PENDING, flags=(Flag.REQUEUE_HOLD, Flag.LAUNCH_FAILED), why=f"The cluster rejected the job: {why}"
    )


def transition_after_misplacement(why: str) -> JobTransition:
    """Requeue a job whose nodes became unavailable before it started. That is not the job's fault."""
    return JobTransition(
        state=State.PENDING,
        flags=(Flag.REQUEUED,),
        why=f"The allocated nodes are no longer available; requeued for other nodes. The cluster reported: {why}",
    )
