"""The only code that changes a Decision or a ManualOverride. Each function is one transaction that also records an
Event.

If a user corrects a diagnosis, the decisions based on the wrong cause are withdrawn unless they were carried out, and
the recovery loop decides again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F

from acmeweb.common import live
from failures.actions import incidents as failure_actions
from failures.actions.incidents import FailureStateConflict, sanitize_for_storage
from failures.actions.recovery_inputs import RecoveryInputs
from failures.models import Anomaly, Decision, DecisionState, Diagnosis, IncidentState, ManualOverride, RecoveryStep
from failures.models.decision import OPEN_STATES
from failures.recovery.rules.remedies import AutomationMode, RecoveryAction
from failures.recovery.rules.resizing import (
    MEMORY,
    JobRequest,
    RequestChange,
    RequestChangedMeanwhile,
    apply_changes,
    reverse_changes,
)
from failures.recovery.rules.serialization import to_json_value
from failures.recovery.rules.values import RecoveryDecision
from jobs.actions import jobs as job_actions
from jobs.actions import journal
from jobs.actions import nodes as node_actions
from jobs.actions import recovery as recovery_actions
from jobs.actions.jobs import JobError
from jobs.actions.journal import Author
from jobs.actions.wake import request_recovery
from jobs.core.lifecycle import State
from jobs.models import Attempt, HoldKind, Job, Node

RECOVERY_AUTHOR = Author(by="recovery")
INCIDENT_REASON_PREFIX = "Recovery of incident"  # start of the reasons with which recovery drains and tests nodes
INITIAL_STATES = {
    AutomationMode.OBSERVE: DecisionState.OBSERVED,
    AutomationMode.PROPOSE: DecisionState.PROPOSED,
    AutomationMode.ACT: DecisionState.APPROVED,
}
CLAIM_LEASE = timedelta(seconds=60)
MAX_ACTING_TIME = timedelta(
    minutes=30
)  # includes two rounds of tests; after this the job keeps the state in which it ended


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
    _record_event(
        "decision.created", RECOVERY_AUTHOR, decision, why=decision_summary(decision), to_state=decision.state
    )
    _postpone_job(decision, now)
    _publish_change(decision)
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
    except JobError:
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


def changed_job_fields(decision: Decision, *, back: bool = False) -> dict[str, Any]:
    """The job's fields after the change, or before it with `back`. Raises RequestChangedMeanwhile."""
    if decision.attempt is None or not decision.change:
        return {}
    job = Job.objects.select_for_update(of=("self",)).get(pk=decision.attempt.job_id)
    now = JobRequest(command=job.command, environment=job.environment, memory_mb=job.memory_per_node_mb)
    new = apply_changes(reverse_changes(decision.changes) if back else decision.changes, now)
    return {"command": new.command, "environment": dict(new.environment), "memory_per_node_mb": new.memory_mb}


def distrust_newer_checkpoints(decision: Decision) -> None:
    """Mark checkpoints newer than a rollback as bad, so that later restarts do not resume from them."""
    if decision.action != RecoveryAction.ROLL_BACK or decision.attempt is None or decision.checkpoint_step is None:
        return
    saved = [(checkpoint["path"][:500], checkpoint["step"]) for checkpoint in decision.facts["checkpoints"]]
    newer = {path: step for path, step in saved if step > decision.checkpoint_step}
    recovery_actions.mark_checkpoints_bad(
        decision.attempt, newer.items(), author=RECOVERY_AUTHOR, why=_rollback_reason(decision)
    )


def _rollback_reason(decision: Decision) -> str:
    return f"Recovery rolled back to step {decision.checkpoint_step} (incident {decision.incident_id})."


def decline_job_recovery(decision: Decision, author: Author, why: str = "", *, hold: bool = False) -> None:
    """Return the job to the state in which it ended; with `hold`, it does not run again automatically.

    Raises JobError if the job is no longer waiting for recovery.
    """
    stops = decision.action == RecoveryAction.STOP and decision.mode == AutomationMode.ACT
    words = why or _as_sentence(decision.why)
    if decision.attempt is not None:
        recovery_actions.decline_recovery(decision.attempt, author=author, why=words, hold=hold or stops)


# --- actions of users


@transaction.atomic
def approve(decision: Decision, *, author: Author, now: datetime, why: str = "") -> None:
    """Approve a proposal; the recovery loop carries it out unchanged."""
    row = _lock_decision(decision)
    if row.state != DecisionState.PROPOSED:
        raise FailureStateConflict(f"the decision is already {row.state}")
    if now > row.expires_at:
        raise FailureStateConflict(f"the proposal expired at {row.expires_at:%d %b %H:%M} UTC")
    _record_answer(row, DecisionState.APPROVED, author, now, why, due_at=now)
    _record_event("decision.approved", author, row, why=why, to_state=DecisionState.APPROVED)
    if row.attempt is not None and row.restarts:
        _ignore_job_error(
            lambda: recovery_actions.postpone(row.attempt, now + MAX_ACTING_TIME, why="Recovery was approved.")
        )
    decision.refresh_from_db()


@transaction.atomic
def decline(decision: Decision, *, author: Author, now: datetime, why: str = "") -> None:
    """Decline a proposal; the job keeps the state in which it ended."""
    row = _lock_decision(decision)
    if row.state != DecisionState.PROPOSED:
        raise FailureStateConflict(f"the decision is already {row.state}")
    _record_answer(row, DecisionState.DECLINED, author, now, why, ended_at=now)
    _record_event("decision.declined", author, row, why=why, to_state=DecisionState.DECLINED)
    words = f"{author.by} declined its recovery" + (f": {why}" if why else ".")
    _ignore_job_error(lambda: decline_job_recovery(row, author, words))
    decision.refresh_from_db()


@transaction.atomic
def undo(decision: Decision, *, author: Author, now: datetime, why: str = "") -> None:
    """Undo a decision: resume the drained nodes and hold the job if it is pending.

    Recovery does not act on the nodes and the job until the overrides are lifted.
    """
    row = _lock_decision(decision)
    if not row.can_be_undone:
        raise FailureStateConflict(f"the decision is {row.state}; there is nothing to undo")
    words = why or f"{author.by} undid “{row.action}” of {row.at:%d %b %H:%M} UTC"
    _record_answer(row, DecisionState.UNDONE, author, now, why, ended_at=now)
    _record_event("decision.undone", author, row, why=words, to_state=DecisionState.UNDONE)
    notes = [
        _resume_drained_node(step, author, words, now)
        for step in row.steps.filter(kind=RecoveryStep.Kind.DRAINED, node__isnull=False)
    ]
    notes.append(_hold_undone_job(row, author, words, now))
    RecoveryStep.objects.create(
        decision=row, kind=RecoveryStep.Kind.UNDONE, text=" ".join(note for note in notes if note)
    )
    decision.refresh_from_db()


def _resume_drained_node(step: RecoveryStep, author: Author, why: str, now: datetime) -> str:
    node = Node.objects.get(pk=step.node_id)
    ManualOverride.objects.create(cluster_id=node.cluster_id, node=node, by=author.by, why=why, at=now)
    if not node.drain_requested or node.reason_by != RECOVERY_AUTHOR.by:
        return ""  # another user or loop has drained it since
    node_actions.resume(node, author=author, why=why, now=now)
    return f"{node} accepts jobs again."


def _hold_undone_job(row: Decision, author: Author, why: str, now: datetime) -> str:
    """Hold the job if it is pending; a job that has started again keeps running. Returns a sentence about it."""
    if row.attempt is None:
        return ""
    job = Job.objects.get(pk=row.attempt.job_id)
    ManualOverride.objects.create(cluster_id=row.cluster_id, job=job, by=author.by, why=why, at=now)
    if job.state != State.PENDING:
        return f"{job} is {job.state}."
    note = _restore_job_request(row, job, author, why)
    if row.action == RecoveryAction.ROLL_BACK:
        recovery_actions.unmark_bad_checkpoints(row.attempt, author=author, why=why, judged=_rollback_reason(row))
    if job.recover_by is not None:
        decline_job_recovery(row, author, why, hold=True)
        job.refresh_from_db()
    elif job.hold == HoldKind.NONE:
        job_actions.hold(job, author=author, why=why)
    return f"{job} is held.{note}" if job.state == State.PENDING else f"{job} has ended: {job.state}.{note}"


def _restore_job_request(row: Decision, job: Job, author: Author, why: str) -> str:
    """Restore the request that recovery changed, unless it was changed again since. Returns a sentence about it."""
    if not row.steps.filter(kind=RecoveryStep.Kind.RESTARTED).exists() or not row.change:
        return ""
    try:
        recovery_actions.change_job_request(job, changed_job_fields(row, back=True), author=author, why=why)
    except RequestChangedMeanwhile as changed:
        return f" Its request was not restored: {changed}."
    return " Its previous request was restored."


@transaction.atomic
def lift_override(override: ManualOverride, *, author: Author, now: datetime) -> None:
    """Lift an override: recovery may act on its job or node again."""
    if not ManualOverride.objects.active().filter(pk=override.pk).update(lifted_at=now, lifted_by=author.by):
        raise FailureStateConflict("the override is already lifted")
    override.refresh_from_db()
    where = {"job_id": override.job_id, "node_id": override.node_id, "cluster_id": override.cluster_id}
    journal.new_event("override.lifted", author, why=override.why, **where).save()
    live.publish_on_commit("failures")


def _record_answer(row: Decision, state: str, author: Author, now: datetime, why: str, **fields: Any) -> None:
    answer = {"answered_by": author.by, "answered_at": now, "answer_reason": sanitize_for_storage(why)[:1000]}
    Decision.objects.filter(pk=row.pk).update(state=state, **answer, **fields)
    _publish_change(row)
    request_recovery()


def _ignore_job_error(act: Callable[[], None]) -> None:
    try:
        with transaction.atomic():
            act()
    except JobError:
        return  # the job was released meanwhile


@transaction.atomic
def correct_diagnosis(row: Diagnosis, root_cause: str, *, author: Author, now: datetime, note: str = "") -> None:
    """Confirm or correct a diagnosis, and withdraw the decisions that rest on another cause."""
    failure_actions.correct_verdict(row, root_cause, author=author, now=now, note=note)
    for decision in row.decisions.not_withdrawn():
        _withdraw_decision(_lock_decision(decision), row, author, now)


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
    _record_answer(
        decision, DecisionState.WITHDRAWN, author, now, "", ended_at=now, outcome=sanitize_for_storage(outcome)
    )
    _record_event("decision.withdrawn", author, decision, why=outcome, to_state=DecisionState.WITHDRAWN)


def _can_withdraw(decision: Decision) -> bool:
    """Whether the decision is open and nothing was done to the job yet."""
    if decision.state == DecisionState.OBSERVED:
        return decision.incident.state != IncidentState.RESOLVED
    if decision.state not in OPEN_STATES:
        return False
    return not decision.steps.filter(kind__in=(RecoveryStep.Kind.RESTARTED, RecoveryStep.Kind.ENDED)).exists()


# --- actions of the recovery loop


def claim(decision: Decision, now: datetime) -> Decision | None:
    """Claim a due decision for a limited time; None if another worker has it.

    `tries` is counted before any work and serves as the fencing token.
    """
    due_row = Decision.objects.due(now).filter(pk=decision.pk, tries=decision.tries)
    began = decision.began_at or now
    if not due_row.update(
        state=DecisionState.ACTING, tries=decision.tries + 1, due_at=now + CLAIM_LEASE, began_at=began
    ):
        return None
    decision.refresh_from_db()
    return decision


def require_claim(decision: Decision) -> None:
    """Lock the decision until the step is written, so that an undo either waits for the step or prevents it.

    Raises FailureStateConflict if the claim was lost.
    """
    rows = Decision.objects.select_for_update(of=("self",)).only("pk")
    if rows.filter(pk=decision.pk, tries=decision.tries, state=DecisionState.ACTING).first() is None:
        raise FailureStateConflict(f"decision {decision.pk} was withdrawn or is being carried out by another worker")


@transaction.atomic
def finish_decision(decision: Decision, state: str, outcome: str, now: datetime) -> bool:
    fields = {"state": state, "outcome": sanitize_for_storage(outcome), "ended_at": now}
    if not Decision.objects.filter(pk=decision.pk, tries=decision.tries, state=DecisionState.ACTING).update(**fields):
        return False
    decision.refresh_from_db()
    _record_event(f"decision.{state}", RECOVERY_AUTHOR, decision, why=outcome, to_state=state)
    _publish_change(decision)
    return True


def count_error(decision: Decision) -> int:
    """The number of errors so far, including this one."""
    Decision.objects.filter(pk=decision.pk).update(errors=F("errors") + 1)
    decision.refresh_from_db()
    return decision.errors


def wait_until(decision: Decision, until: datetime, outcome: str) -> None:
    claimed = Decision.objects.filter(pk=decision.pk, tries=decision.tries, state=DecisionState.ACTING)
    if claimed.exclude(outcome=outcome).update(outcome=outcome, due_at=until):
        _publish_change(decision)
    else:
        claimed.update(due_at=until)


def add_faulty_nodes(decision: Decision, names: Sequence[str]) -> None:
    """Add nodes that failed the test to the drained nodes of the decision."""
    claimed = Decision.objects.filter(pk=decision.pk, tries=decision.tries, state=DecisionState.ACTING)
    claimed.update(drain=sorted({*decision.drain, *names}))
    decision.refresh_from_db()


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
    _record_event("decision.expired", RECOVERY_AUTHOR, row, to_state=DecisionState.EXPIRED, why=why)
    _publish_change(row)
    return True


def _lock_decision(decision: Decision) -> Decision:
    rows = Decision.objects.select_for_update(of=("self",)).select_related("attempt__job", "incident", "anomaly__node")
    return rows.get(pk=decision.pk)


def record_step(decision: Decision, kind: str, text: str, node: Node | None = None) -> None:
    RecoveryStep.objects.create(decision=decision, kind=kind, node=node, text=sanitize_for_storage(text))


def _record_event(what: str, author: Author, decision: Decision, **fields: Any) -> None:
    detail = {"incident": decision.incident_id, "decision": decision.pk, "action": decision.action}
    if decision.attempt_id is None:
        node = Node.objects.get(anomalies__decision=decision)
        journal.node_event(what, author, node, detail=detail, **fields).save()
        return
    attempt = Attempt.objects.select_related("job").get(pk=decision.attempt_id)
    journal.job_event(what, author, attempt.job, attempt=attempt, detail=detail, **fields).save()


def _publish_change(decision: Decision) -> None:
    of_job = [f"job:{decision.attempt.job.public_id}"] if decision.attempt else []
    live.publish_on_commit("failures", f"incident:{decision.incident_id}", *of_job)
