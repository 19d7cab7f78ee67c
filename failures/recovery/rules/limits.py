"""Rules that lower the mode of a decision, and the circuit breaker of a cluster. Pure: no rule raises a mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from failures.recovery.rules.remedies import (
    ACTION_TERMS,
    CORDON_ACTIONS,
    RERUN_ACTIONS,
    RESTART_ACTIONS,
    AutomationMode,
    RecoveryAction,
)
from failures.recovery.rules.resizing import RequestChange
from failures.recovery.rules.values import (
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
    """The parts of a decision that are known before its mode is."""

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
    return tuple(limit for rule in LIMIT_RULES if (limit := rule(case)))


def _opt_out_limit(case: DecisionDraft) -> ModeLimit | None:
    off = case.facts.labels.get(OPT_OUT_LABEL) == "off"
    return (AutomationMode.OBSERVE, f"the job opted out with the label {OPT_OUT_LABEL}=off") if off else None


def _expiry_limit(case: DecisionDraft) -> ModeLimit | None:
    if case.now <= case.facts.at + ACTION_TERMS[case.action].expires:
        return None
    return AutomationMode.OBSERVE, f"it failed at {case.facts.at:%d %b %H:%M} UTC, which is too long ago to act on"


def _override_limit(case: DecisionDraft) -> ModeLimit | None:
    for override in case.history.overrides:
        if override.subject == case.facts.job and not override.lifted:
            return AutomationMode.OBSERVE, f"{override.by} has excluded this job from recovery: {override.why}"
    return None


def _confidence_limit(case: DecisionDraft) -> ModeLimit | None:
    if case.facts.confidence >= case.policy.sure:
        return None
    confidence, threshold = case.facts.confidence, case.policy.sure
    return AutomationMode.PROPOSE, f"confidence {confidence:.0%}, threshold {threshold:.0%}"


def _repetition_limit(case: DecisionDraft) -> ModeLimit | None:
    terms, same = ACTION_TERMS[case.action], (case.action, case.facts.job)
    since = case.now - terms.within
    repeats = [action for action in case.history.done if (action.action, action.job) == same and action.at > since]
    count = sum(not _saved_newer_checkpoint(action, case.base) for action in repeats)
    hours = terms.within / timedelta(hours=1)
    return (
        (AutomationMode.PROPOSE, f"“{case.action}” was carried out {count} times within {hours:g} h")
        if count >= terms.most
        else None
    )


def _saved_newer_checkpoint(restart: PastAction, base: SavedCheckpoint | None) -> bool:
    """Whether the job saved a newer checkpoint after this restart, so that the restart is not part of a loop.

    A job on thousands of GPUs meets several broken nodes in an hour. Rollbacks always count: a loss that spikes
    repeatedly needs an operator even if the job saves checkpoints.
    """
    if restart.action not in PLAIN_RESTART_ACTIONS or restart.checkpoint is None or base is None:
        return False
    return base.step > restart.checkpoint


def _no_checkpoint_limit(case: DecisionDraft) -> ModeLimit | None:
    step = max((attempt.step or 0 for attempt in case.history.tries), default=0)
    if not case.restarts or case.base is not None or not step or _restart_is_cheap(case):
        return None
    return AutomationMode.PROPOSE, f"it had reached step {step}, and no checkpoint is known to start from"


def _restart_is_cheap(case: DecisionDraft) -> bool:
    """Whether the job failed before its first save, so that a restart from the beginning repeats only minutes.

    That costs less than waiting for an approval. A job that had loaded a checkpoint has one that was not found, so it
    does not qualify.
    """
    ran = case.facts.ran
    return ran is not None and ran <= case.policy.most_repeated and case.facts.started_from is None


def _resize_consent_limit(case: DecisionDraft) -> ModeLimit | None:
    if not case.change or case.facts.labels.get(RESIZE_OPT_IN_LABEL) == "on":
        return None
    return (
        AutomationMode.PROPOSE,
        f"requests are changed automatically only with the label {RESIZE_OPT_IN_LABEL}=on",
    )


def _batch_size_limit(case: DecisionDraft) -> ModeLimit | None:
    if all(change.keeps_batch for change in case.change):
        return None
    return (
        AutomationMode.PROPOSE,
        "the change may reduce the global batch and affect training, which its owner must approve",
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
    """Why no action on this cluster may run automatically; empty if it may. More actions never clear the reason."""
    since = now - breaker.cordon_window
    nodes = set(adding).union(
        *(action.nodes for action in history.done if action.action in CORDON_ACTIONS and action.at > since)
    )
    if nodes and len(nodes) > breaker.cordoned_share * history.cluster_nodes and len(nodes) > 1:
        minutes = breaker.cordon_window // timedelta(minutes=1)
        share = f"{len(nodes)} of {history.cluster_nodes} nodes would be drained within {minutes} minutes"
        return f"{share}; the limit is {breaker.cordoned_share:.0%}"
    since = now - breaker.restart_window
    restarts = sum(action.action in RERUN_ACTIONS and action.at > since for action in history.done)
    if restarts >= breaker.restarts:
        minutes = breaker.restart_window // timedelta(minutes=1)
        return f"{restarts} jobs were restarted within {minutes} minutes; the limit is {breaker.restarts}"
    return ""
