"""How far a deed may go by itself: everything that takes a mode down, and the breaker of a whole cluster. Pure.

Doubt only ever takes away; no rule here raises what a team allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from failures.recovery.remedies import (
    ACTION_TERMS,
    CORDON_ACTIONS,
    RERUN_ACTIONS,
    RESTART_ACTIONS,
    AutomationMode,
    RecoveryAction,
)
from failures.recovery.resizing import RequestChange
from failures.recovery.values import (
    OPT_OUT_LABEL,
    RESIZE_OPT_IN_LABEL,
    CircuitBreaker,
    FailureFacts,
    FailureHistory,
    ModeLimit,
    PastAction,
    RecoveryPolicy,
    SavedCheckpoint,
)

PLAIN_RESTART_ACTIONS = frozenset({RecoveryAction.RESTART, RecoveryAction.ELSEWHERE, RecoveryAction.TEST})


@dataclass(frozen=True, kw_only=True)
class DecisionDraft:
    """What was decided so far."""

    action: RecoveryAction
    facts: FailureFacts
    history: FailureHistory
    policy: RecoveryPolicy
    base: SavedCheckpoint | None
    drain: frozenset[str]
    now: datetime
    change: tuple[RequestChange, ...] = ()

    @property
    def restarts(self) -> bool:
        return self.action in RESTART_ACTIONS or bool(self.change)


def mode_limits(case: DecisionDraft) -> tuple[ModeLimit, ...]:
    return tuple(found for rule in LIMIT_RULES if (found := rule(case)))


def _opt_out_limit(case: DecisionDraft) -> ModeLimit | None:
    off = case.facts.labels.get(OPT_OUT_LABEL) == "off"
    return (AutomationMode.OBSERVE, f"the job opted out by its label {OPT_OUT_LABEL}=off") if off else None


def _expiry_limit(case: DecisionDraft) -> ModeLimit | None:
    if case.now <= case.facts.at + ACTION_TERMS[case.action].expires:
        return None
    return AutomationMode.OBSERVE, f"it failed at {case.facts.at:%d %b %H:%M} and what was right then may be wrong now"


def _override_limit(case: DecisionDraft) -> ModeLimit | None:
    for order in case.history.orders:
        if order.subject == case.facts.job and not order.lifted:
            return AutomationMode.OBSERVE, f"{order.by} decided about this job: {order.why}"
    return None


def _confidence_limit(case: DecisionDraft) -> ModeLimit | None:
    if case.facts.confidence >= case.policy.sure:
        return None
    needed = f"{case.policy.sure:.0%} are needed to act"
    return AutomationMode.PROPOSE, f"the diagnosis is {case.facts.confidence:.0%} sure, and {needed}"


def _repetition_limit(case: DecisionDraft) -> ModeLimit | None:
    terms, same = ACTION_TERMS[case.action], (case.action, case.facts.job)
    since = case.now - terms.within
    done = [one for one in case.history.done if (one.action, one.job) == same and one.at > since]
    count = sum(not _saved_newer_checkpoint(one, case.base) for one in done)
    hours = terms.within / timedelta(hours=1)
    return (
        (AutomationMode.PROPOSE, f"“{case.action}” was done {count} times within {hours:g} h")
        if count >= terms.most
        else None
    )


def _saved_newer_checkpoint(done: PastAction, base: SavedCheckpoint | None) -> bool:
    """A restart after which the job saved a newer checkpoint is part of no loop: a gang of thousands of GPUs meets
    several broken nodes in an hour. A loss that goes wrong again and again needs a person although it saves."""
    if done.action not in PLAIN_RESTART_ACTIONS or done.checkpoint is None or base is None:
        return False
    return base.step > done.checkpoint


def _no_checkpoint_limit(case: DecisionDraft) -> ModeLimit | None:
    step = max((one.step or 0 for one in case.history.tries), default=0)
    if not case.restarts or case.base is not None or not step or _restart_is_cheap(case):
        return None
    return AutomationMode.PROPOSE, f"it had come to step {step}, and no checkpoint is known to start from"


def _restart_is_cheap(case: DecisionDraft) -> bool:
    """A job that failed before its first save. Repeating minutes costs less than waiting for a person; but a job that
    had loaded a checkpoint has one, and it is only not found."""
    ran = case.facts.ran
    return ran is not None and ran <= case.policy.most_repeated and case.facts.started_from is None


def _resize_consent_limit(case: DecisionDraft) -> ModeLimit | None:
    if not case.change or case.facts.labels.get(RESIZE_OPT_IN_LABEL) == "on":
        return None
    return (
        AutomationMode.PROPOSE,
        f"what a job asks for is changed by itself only where its label says {RESIZE_OPT_IN_LABEL}=on",
    )


def _batch_size_limit(case: DecisionDraft) -> ModeLimit | None:
    if all(one.keeps_batch for one in case.change):
        return None
    return (
        AutomationMode.PROPOSE,
        "its global batch may become smaller, and what it learns with it, which is its owner's to say",
    )


def _circuit_breaker_limit(case: DecisionDraft) -> ModeLimit | None:
    if not case.restarts:
        return None
    why = breaker_trip_reason(case.history, case.policy.breaker, case.now, case.drain)
    return (AutomationMode.PROPOSE, why) if why else None


LIMIT_RULES: tuple[Callable[[DecisionDraft], ModeLimit | None], ...] = (
    _opt_out_limit,
    _expiry_limit,
    _override_limit,
    _confidence_limit,
    _repetition_limit,
    _no_checkpoint_limit,
    _resize_consent_limit,
    _batch_size_limit,
    _circuit_breaker_limit,
)


def breaker_trip_reason(
    history: FailureHistory, breaker: CircuitBreaker, now: datetime, adding: frozenset[str] = frozenset()
) -> str:
    """Why nothing on this cluster may act by itself; empty: it may. More deeds never take this back."""
    since = now - breaker.cordon_window
    nodes = set(adding).union(*(one.nodes for one in history.done if one.action in CORDON_ACTIONS and one.at > since))
    if nodes and len(nodes) > breaker.cordoned_share * history.cluster_nodes and len(nodes) > 1:
        minutes = breaker.cordon_window // timedelta(minutes=1)
        share = f"{len(nodes)} of {history.cluster_nodes} nodes would be taken out within {minutes} minutes"
        return f"{share}; {breaker.cordoned_share:.0%} are allowed"
    since = now - breaker.restart_window
    restarts = sum(one.action in RERUN_ACTIONS and one.at > since for one in history.done)
    if restarts >= breaker.restarts:
        minutes = breaker.restart_window // timedelta(minutes=1)
        return f"{restarts} jobs were restarted within {minutes} minutes; {breaker.restarts} are allowed"
    return ""
