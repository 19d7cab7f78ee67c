"""Record decisions, and what users answer to them. Each function is one transaction that also records an Event.

Only this module and `steps` change a Decision or a ManualOverride. If a user corrects a diagnosis, the decisions based
on the wrong cause are withdrawn unless they were carried out, and the recovery loop decides again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction

from acmeweb.common import live
from acmeweb.common.errors import ClaimLost, StateConflict
from failures.actions import incidents as failure_actions
from failures.actions.incidents import sanitize_for_storage
from failures.models import Anomaly, Decision, DecisionState, Diagnosis, IncidentState, ManualOverride, RecoveryStep
from failures.models.decision import OPEN_STATES
from failures.recovery.reads import RecoveryInputs
from failures.recovery.rules.remedies import AutomationMode, RecoveryAction
from failures.recovery.rules.resizing import MEMORY, RequestChange
from failures.recovery.rules.serialization import to_json_value
from failures.recovery.rules.values import RecoveryDecision
from jobs.actions import journal
from jobs.actions import recovery as recovery_actions
from jobs.actions.journal import Author
from jobs.actions.wake import request_recovery
from jobs.models import Attempt, Node

RECOVERY_AUTHOR = Author(by="recovery")
INCIDENT_REASON_PREFIX = "Recovery of incident"  # start of the reasons with which recovery drains and tests nodes
INITIAL_STATES = {
    AutomationMode.OBSERVE: DecisionState.OBSERVED,
    AutomationMode.PROPOSE: DecisionState.PROPOSED,
    AutomationMode.ACT: DecisionState.APPROVED,
}
# Includes two rounds of tests; after this the job keeps the state in which it ended
MAX_ACTING_TIME = timedelta(minutes=30)


def record_decision(
    row: Diagnosis | Anomaly, situation: RecoveryInputs, recovery: RecoveryDecision, now: datetime
) -> Decision | None:
    """The recorded decision. None if another worker was faster: each failed attempt or anomaly has at most one."""
    try:
        with transaction.atomic():
            return _create_decision(row, situation, recovery, now)
    except IntegrityError:
        return None


def _create_decision(
    row: Diagnosis | Anomaly, situation: RecoveryInputs, recovery: RecoveryDecision, now: datetime
) -> Decision:
    ground = {"diagnosis": row} if isinstance(row, Diagnosis) else {"anomaly": row}
    decision = Decision.objects.create(
        cluster_id=row.cluster_id, incident_id=row.incident_id, attempt=row.attempt, at=now, due_at=now,
        state=_initial_state(recovery), **ground, **decision_fields(situation, recovery),
    )  # fmt: skip
    record_event("decision.created", RECOVERY_AUTHOR, decision, why=decision_summary(decision), to_state=decision.state)
    _postpone_job(decision, now)
    publish_change(decision)
    return decision


def decision_fields(situation: RecoveryInputs, recovery: RecoveryDecision) -> dict[str, Any]:
    """The columns of a decision that hold its inputs and its content."""
    inputs = {
        name: sanitize_for_storage(to_json_value(getattr(situation, name))) for name in ("facts", "history", "policy")
    }
    base, sentences = recovery.checkpoint, {"pro": recovery.pro, "con": recovery.con}
    return {
        "action": recovery.action.value, "mode": recovery.mode.value, "why": sanitize_for_storage(recovery.why),
        "limits": sanitize_for_storage([[mode.value, why] for mode, why in recovery.limits]),
        "drain": sorted(recovery.drain), "test": sorted(recovery.test),
        "checkpoint_path": base.path[:1000] if base else "", "checkpoint_step": base.step if base else None,
        "skip": list(recovery.skip) if recovery.skip else None,
        "change": sanitize_for_storage(to_json_value(recovery.change)), "undo": recovery.undo,
        "not_before": recovery.not_before, "expires_at": recovery.expires_at, "consumes_retry": recovery.consumes_retry,
        **inputs, **{name: sanitize_for_storage(list(values)) for name, values in sentences.items()},
    }  # fmt: skip


def _initial_state(recovery: RecoveryDecision) -> str:
    """The state of a new decision. Only actions that can be approved are proposed; advice is only recorded."""
    if recovery.restarts or (recovery.action is RecoveryAction.STOP and recovery.is_automatic):
        return INITIAL_STATES[recovery.mode]
    return DecisionState.OBSERVED


def _postpone_job(decision: Decision, now: datetime) -> None:
    """Keep the job pending while the decision may still be carried out, and release it otherwise."""
    attempt = decision.attempt
    if attempt is None or attempt.ended_at is None:
        return
    try:
        if decision.state == DecisionState.APPROVED:
            recovery_actions.postpone(attempt, now + MAX_ACTING_TIME, why=f"Recovery: {decision_summary(decision)}")
        elif decision.state == DecisionState.PROPOSED:
            reason = f"Approval needed in incident {decision.incident_id}: {decision_summary(decision)}"
            recovery_actions.postpone(attempt, decision.expires_at, why=reason)
        else:
            decline_job_recovery(decision, RECOVERY_AUTHOR)
    except ClaimLost:
        return  # the retry rule or a user has changed the job meanwhile


def decision_summary(decision: Decision) -> str:
    """The decision and its reason in one line."""
    what = decision.action.capitalize()
    if decision.change:
        what += f": {' and '.join(_describe_change(change) for change in decision.changes)}"
    if decision.checkpoint_step is not None:
        what += f"{',' if decision.change else ''} from step {decision.checkpoint_step}"
    if decision.drain:
        what += f" without {', '.join(decision.drain)}"
    elif decision.test:
        nodes = ", ".join(decision.test)
        tested = f" while {nodes} {'is' if len(decision.test) == 1 else 'are'} tested"
        what += f": {nodes}" if decision.action == RecoveryAction.TEST else tested
    return f"{what}. {_as_sentence(decision.why)}"


def _as_sentence(text: str) -> str:
    """The text as a sentence. Unlike capitalize(), this keeps the case of names."""
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}."


def _describe_change(change: RequestChange) -> str:
    words = f"{change.field} {change.after}" if change.field == MEMORY else change.after
    return f"{words} instead of {change.before}" if change.before else words


def decline_job_recovery(decision: Decision, author: Author, why: str = "", *, hold: bool = False) -> None:
    """Return the job to the state in which it ended; with `hold`, it does not run again automatically.

    Raises ClaimLost if the job is no longer waiting for recovery.
    """
    stops = decision.action == RecoveryAction.STOP and decision.mode == AutomationMode.ACT
    words = why or _as_sentence(decision.why)
    if decision.attempt is not None:
        recovery_actions.decline_recovery(decision.attempt, author=author, why=words, hold=hold or stops)


# --- actions of users


@transaction.atomic
def approve(decision: Decision, *, author: Author, now: datetime, why: str = "") -> None:
    """Approve a proposal; the recovery loop carries it out unchanged."""
    row = lock_decision(decision)
    if row.state != DecisionState.PROPOSED:
        raise StateConflict(f"the decision is already {row.state}")
    if now > row.expires_at:
        raise StateConflict(f"the proposal expired at {row.expires_at:%d %b %H:%M} UTC")
    record_answer(row, DecisionState.APPROVED, author, now, why, due_at=now)
    record_event("decision.approved", author, row, why=why, to_state=DecisionState.APPROVED)
    if row.attempt is not None and row.restarts:
        _ignore_job_error(
            lambda: recovery_actions.postpone(row.attempt, now + MAX_ACTING_TIME, why="Recovery was approved.")
        )
    decision.refresh_from_db()


@transaction.atomic
def decline(decision: Decision, *, author: Author, now: datetime, why: str = "") -> None:
    """Decline a proposal; the job keeps the state in which it ended."""
    row = lock_decision(decision)
    if row.state != DecisionState.PROPOSED:
        raise StateConflict(f"the decision is already {row.state}")
    record_answer(row, DecisionState.DECLINED, author, now, why, ended_at=now)
    record_event("decision.declined", author, row, why=why, to_state=DecisionState.DECLINED)
    words = f"{author.by} declined its recovery" + (f": {why}" if why else ".")
    _ignore_job_error(lambda: decline_job_recovery(row, author, words))
    decision.refresh_from_db()


@transaction.atomic
def lift_override(override: ManualOverride, *, author: Author, now: datetime) -> None:
    """Lift an override: recovery may act on its job or node again."""
    if not ManualOverride.objects.active().filter(pk=override.pk).update(lifted_at=now, lifted_by=author.by):
        raise StateConflict("the override is already lifted")
    override.refresh_from_db()
    where = {"job_id": override.job_id, "node_id": override.node_id, "cluster_id": override.cluster_id}
    journal.new_event("override.lifted", author, why=override.why, **where).save()
    live.publish_on_commit("failures")


@transaction.atomic
def correct_diagnosis(row: Diagnosis, root_cause: str, *, author: Author, now: datetime, note: str = "") -> None:
    """Confirm or correct a diagnosis, and withdraw the decisions that rest on another cause."""
    failure_actions.correct_verdict(row, root_cause, author=author, now=now, note=note)
    for decision in row.decisions.not_withdrawn():
        _withdraw_decision(lock_decision(decision), row, author, now)


def _withdraw_decision(decision: Decision, row: Diagnosis, author: Author, now: datetime) -> None:
    """Withdraw a decision if it rests on another cause.

    The caller holds the lock of the row. A worker that is carrying the decision out keeps the lock until its step is
    written, and loses its claim afterwards.
    """
    if decision.facts["cause"] == row.root_cause or not _can_withdraw(decision):
        return
    why = f"{author.by} corrected the diagnosis from {decision.facts['cause']} to {row.root_cause}."
    steps = [f"{step.kind} {step.node or ''}".strip() for step in decision.steps.select_related("node")]
    outcome = f"{why} These steps were already carried out: {', '.join(steps)}." if steps else why
    record_answer(
        decision, DecisionState.WITHDRAWN, author, now, "", ended_at=now, outcome=sanitize_for_storage(outcome)
    )
    record_event("decision.withdrawn", author, decision, why=outcome, to_state=DecisionState.WITHDRAWN)


def _can_withdraw(decision: Decision) -> bool:
    """Whether the decision is open and nothing was done to the job yet."""
    if decision.state == DecisionState.OBSERVED:
        return decision.incident.state != IncidentState.RESOLVED
    if decision.state not in OPEN_STATES:
        return False
    return not decision.steps.filter(kind__in=(RecoveryStep.Kind.RESTARTED, RecoveryStep.Kind.ENDED)).exists()


# --- proposals that expire


def expire_proposals(now: datetime) -> int:
    """Expire the proposals that were not approved in time. Returns how many."""
    late = Decision.objects.filter(state=DecisionState.PROPOSED, expires_at__lte=now).select_related("attempt__job")
    return sum(_expire_decision(row, "It was not approved in time.", now) for row in late[:200])


def expire_anomaly_proposals(anomaly: Anomaly, why: str, now: datetime) -> None:
    """Expire the proposals that were made because of an anomaly that has ended."""
    for row in Decision.objects.filter(anomaly=anomaly, state=DecisionState.PROPOSED).select_related("attempt__job"):
        _expire_decision(row, why, now)


@transaction.atomic
def _expire_decision(row: Decision, why: str, now: datetime) -> bool:
    fields = {"state": DecisionState.EXPIRED, "ended_at": now, "outcome": why}
    if not Decision.objects.filter(pk=row.pk, state=DecisionState.PROPOSED).update(**fields):
        return False
    record_event("decision.expired", RECOVERY_AUTHOR, row, to_state=DecisionState.EXPIRED, why=why)
    publish_change(row)
    return True


# --- also used by the steps


def lock_decision(decision: Decision) -> Decision:
    rows = Decision.objects.select_for_update(of=("self",)).select_related("attempt__job", "incident", "anomaly__node")
    return rows.get(pk=decision.pk)


def record_answer(row: Decision, state: str, author: Author, now: datetime, why: str, **fields: Any) -> None:
    answer = {"answered_by": author.by, "answered_at": now, "answer_reason": sanitize_for_storage(why)[:1000]}
    Decision.objects.filter(pk=row.pk).update(state=state, **answer, **fields)
    publish_change(row)
    request_recovery()


def _ignore_job_error(act: Callable[[], None]) -> None:
    try:
        with transaction.atomic():
            act()
    except ClaimLost:
        return  # the job was released meanwhile


def record_event(what: str, author: Author, decision: Decision, **fields: Any) -> None:
    detail = {"incident": decision.incident_id, "decision": decision.pk, "action": decision.action}
    if decision.attempt_id is None:
        node = Node.objects.get(anomalies__decision=decision)
        journal.node_event(what, author, node, detail=detail, **fields).save()
        return
    attempt = Attempt.objects.select_related("job").get(pk=decision.attempt_id)
    journal.job_event(what, author, attempt.job, attempt=attempt, detail=detail, **fields).save()


def publish_change(decision: Decision) -> None:
    of_job = [f"job:{decision.attempt.job.public_id}"] if decision.attempt else []
    live.publish_on_commit("failures", f"incident:{decision.incident_id}", *of_job)
