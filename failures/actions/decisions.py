"""The only code that changes a Decision or an Order. Each verb is one transaction with its Event.

A person who corrects a verdict also says that what was decided rests on the wrong cause: what is not done yet is
withdrawn with that reason, and the loop asks again.
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
from failures.models import Decision, DecisionState, Diagnosis, IncidentState, Order, Sign, Step
from failures.models.decision import OPEN_STATES
from failures.recovery.remedies import AutomationMode, RecoveryAction
from failures.recovery.resizing import (
    MEMORY,
    JobRequest,
    RequestChange,
    RequestChangedMeanwhile,
    apply_changes,
    reverse_changes,
)
from failures.recovery.serialization import to_json_value
from failures.recovery.values import RecoveryDecision
from jobs.actions import jobs as job_actions
from jobs.actions import journal
from jobs.actions import nodes as node_actions
from jobs.actions import recovery as recovery_actions
from jobs.actions.jobs import JobError
from jobs.actions.journal import Author
from jobs.core.lifecycle import State
from jobs.models import Attempt, HoldKind, Job, Node

RECOVERY_AUTHOR = Author(by="recovery")
INCIDENT_REASON_PREFIX = "Recovery of incident"  # how the reasons begin with which it closes and tests nodes
INITIAL_STATES = {
    AutomationMode.OBSERVE: DecisionState.OBSERVED,
    AutomationMode.PROPOSE: DecisionState.PROPOSED,
    AutomationMode.ACT: DecisionState.APPROVED,
}
CLAIM_LEASE = timedelta(seconds=60)
MAX_ACTING_TIME = timedelta(minutes=30)  # with two rounds of tests; then the job is given back to its ending


def record_decision(
    row: Diagnosis | Sign, situation: RecoveryInputs, found: RecoveryDecision, now: datetime
) -> Decision | None:
    """One for each failed attempt (that stands) and for each sign; None where somebody else was faster."""
    try:
        with transaction.atomic():
            return _create_decision(row, situation, found, now)
    except IntegrityError:
        return None


def _create_decision(
    row: Diagnosis | Sign, situation: RecoveryInputs, found: RecoveryDecision, now: datetime
) -> Decision:
    ground = {"diagnosis": row} if isinstance(row, Diagnosis) else {"sign": row}
    inputs = {
        name: sanitize_for_storage(to_json_value(getattr(situation, name))) for name in ("facts", "history", "policy")
    }
    base, words = found.checkpoint, {"pro": found.pro, "con": found.con}
    decision = Decision.objects.create(
        cluster_id=row.cluster_id, incident_id=row.incident_id, attempt=row.attempt, at=now, **ground,
        action=found.action.value, mode=found.mode.value, why=sanitize_for_storage(found.why),
        limits=sanitize_for_storage([[mode.value, why] for mode, why in found.limits]), drain=sorted(found.drain),
        test=sorted(found.test), checkpoint_path=base.path[:1000] if base else "",
        checkpoint_step=base.step if base else None, skip=list(found.skip) if found.skip else None,
        change=sanitize_for_storage(to_json_value(found.change)), undo=found.undo, not_before=found.not_before,
        expires_at=found.expires_at, consumes=found.consumes,
        course=_initial_state(found), due_at=now, **inputs,
        **{name: sanitize_for_storage(list(one)) for name, one in words.items()},
    )  # fmt: skip
    _record_event("decision.made", RECOVERY_AUTHOR, decision, why=decision_summary(decision), to_state=decision.course)
    _postpone_job(decision, now)
    _publish_change(decision)
    return decision


def _initial_state(found: RecoveryDecision) -> str:
    """What nobody can say yes to is no proposal: an end, or advice."""
    if found.restarts or (found.action is RecoveryAction.STOP and found.is_automatic):
        return INITIAL_STATES[found.mode]
    return DecisionState.OBSERVED


def _postpone_job(decision: Decision, now: datetime) -> None:
    """As long as the decision may still come to pass. Who is started again by nobody need not wait for anybody."""
    attempt = decision.attempt
    if attempt is None or attempt.ended_at is None:
        return
    try:
        if decision.course == DecisionState.APPROVED:
            recovery_actions.postpone(attempt, now + MAX_ACTING_TIME, why=f"Recovery: {decision_summary(decision)}")
        elif decision.course == DecisionState.PROPOSED:
            why = f"Proposed: {decision_summary(decision)} Incident {decision.incident_id} waits for somebody's yes."
            recovery_actions.postpone(attempt, decision.expires_at, why=why)
        else:
            decline_job_recovery(decision, RECOVERY_AUTHOR)
    except JobError:
        return  # the rule of its ending, or a person, was there first


def decision_summary(decision: Decision) -> str:
    """What it is, in one line."""
    what = decision.action.capitalize()
    if decision.change:
        what += f": {' and '.join(_describe_change(one) for one in decision.changes)}"
    if decision.checkpoint_step is not None:
        what += f"{',' if decision.change else ''} from step {decision.checkpoint_step}"
    if decision.drain:
        what += f" without {', '.join(decision.drain)}"
    elif decision.test:
        what += f": {', '.join(decision.test)}"
    return f"{what}, because {decision.why}."


def _describe_change(one: RequestChange) -> str:
    words = f"{one.what} {one.becomes}" if one.what == MEMORY else one.becomes
    return f"{words} instead of {one.was}" if one.was else words


def changed_job_fields(decision: Decision, *, back: bool = False) -> dict[str, Any]:
    """The fields of its job as the change leaves them; with `back`, as they were before it. Raises Differs."""
    if decision.attempt is None or not decision.change:
        return {}
    job = Job.objects.select_for_update(of=("self",)).get(pk=decision.attempt.job_id)
    now = JobRequest(command=job.command, environment=job.environment, memory_mb=job.memory_per_node_mb)
    new = apply_changes(reverse_changes(decision.changes) if back else decision.changes, now)
    return {"command": new.command, "environment": dict(new.environment), "memory_per_node_mb": new.memory_mb}


def distrust_newer_checkpoints(decision: Decision) -> None:
    """What it went back behind stays bad: the next failure, of another cause, must not go on from there."""
    if decision.action != RecoveryAction.ROLL_BACK or decision.attempt is None or decision.checkpoint_step is None:
        return
    saved = [(one["path"][:500], one["step"]) for one in decision.facts["checkpoints"]]
    spoiled = {path: step for path, step in saved if step > decision.checkpoint_step}
    recovery_actions.mark_checkpoints_bad(
        decision.attempt, spoiled.items(), author=RECOVERY_AUTHOR, why=_rollback_reason(decision)
    )


def _rollback_reason(decision: Decision) -> str:
    return f"Recovery went back behind it, to step {decision.checkpoint_step}: incident {decision.incident_id}."


def decline_job_recovery(decision: Decision, author: Author, why: str = "", *, hold: bool = False) -> None:
    """The job becomes what its end says, but with `hold` does not run again by itself. Raises JobError where it does
    not wait any more."""
    stops = decision.action == RecoveryAction.STOP and decision.mode == AutomationMode.ACT
    words = why or f"{decision.why[:1].upper()}{decision.why[1:]}."
    if decision.attempt is not None:
        recovery_actions.decline_recovery(decision.attempt, author=author, why=words, hold=hold or stops)


# --- what people say


@transaction.atomic
def approve(decision: Decision, *, author: Author, now: datetime, why: str = "") -> None:
    """One click: it will be carried out as it stands."""
    row = _lock_decision(decision)
    if row.course != DecisionState.PROPOSED:
        raise FailureStateConflict(f"it is {row.course} already")
    if now > row.expires_at:
        raise FailureStateConflict(
            f"it was right until {row.expires_at:%d %b %H:%M} UTC; what was right then may be wrong now"
        )
    _record_answer(row, DecisionState.APPROVED, author, now, why, due_at=now)
    _record_event("decision.approved", author, row, why=why, to_state=DecisionState.APPROVED)
    if row.attempt is not None and row.restarts:
        _ignore_job_error(
            lambda: recovery_actions.postpone(row.attempt, now + MAX_ACTING_TIME, why="Recovery was approved.")
        )
    decision.refresh_from_db()


@transaction.atomic
def decline(decision: Decision, *, author: Author, now: datetime, why: str = "") -> None:
    """The job becomes what its end says."""
    row = _lock_decision(decision)
    if row.course != DecisionState.PROPOSED:
        raise FailureStateConflict(f"it is {row.course} already")
    _record_answer(row, DecisionState.DECLINED, author, now, why, ended_at=now)
    _record_event("decision.declined", author, row, why=why, to_state=DecisionState.DECLINED)
    words = f"{author.by} declined its recovery" + (f": {why}" if why else ".")
    _ignore_job_error(lambda: decline_job_recovery(row, author, words))
    decision.refresh_from_db()


@transaction.atomic
def undo(decision: Decision, *, author: Author, now: datetime, why: str = "") -> None:
    """Nodes that it drained take work again, the job is held if it still waits; recovery leaves both alone until the
    orders are lifted."""
    row = _lock_decision(decision)
    if not row.can_be_undone:
        raise FailureStateConflict(f"it is {row.course}, and there is nothing to undo")
    words = why or f"{author.by} took back “{row.action}” of {row.at:%d %b %H:%M}"
    _record_answer(row, DecisionState.UNDONE, author, now, why, ended_at=now)
    _record_event("decision.undone", author, row, why=words, to_state=DecisionState.UNDONE)
    done = [
        _resume_drained_node(step, author, words, now)
        for step in row.steps.filter(kind=Step.Kind.DRAINED, node__isnull=False)
    ]
    done.append(_hold_undone_job(row, author, words, now))
    Step.objects.create(decision=row, kind=Step.Kind.UNDONE, words=" ".join(one for one in done if one))
    decision.refresh_from_db()


def _resume_drained_node(step: Step, author: Author, why: str, now: datetime) -> str:
    node = Node.objects.get(pk=step.node_id)
    Order.objects.create(cluster_id=node.cluster_id, node=node, by=author.by, why=why, at=now)
    if not node.drain_asked or node.reason_by != RECOVERY_AUTHOR.by:
        return ""  # somebody else has decided about it since
    node_actions.resume(node, author=author, why=why, now=now)
    return f"{node} takes work again."


def _hold_undone_job(row: Decision, author: Author, why: str, now: datetime) -> str:
    """A job that has not gone on yet is held, whatever its end would have made of it; one that has is nobody's to
    stop."""
    if row.attempt is None:
        return ""
    job = Job.objects.get(pk=row.attempt.job_id)
    Order.objects.create(cluster_id=row.cluster_id, job=job, by=author.by, why=why, at=now)
    if job.state != State.PENDING:
        return f"{job} is {job.state}."
    said = _restore_job_request(row, job, author, why)
    if row.action == RecoveryAction.ROLL_BACK:
        recovery_actions.unmark_bad_checkpoints(row.attempt, author=author, why=why, judged=_rollback_reason(row))
    if job.recover_by is not None:
        decline_job_recovery(row, author, why, hold=True)
        job.refresh_from_db()
    elif job.hold == HoldKind.NONE:
        job_actions.hold(job, author=author, why=why)
    return f"{job} is held.{said}" if job.state == State.PENDING else f"{job} is {job.state}, as its end says.{said}"


def _restore_job_request(row: Decision, job: Job, author: Author, why: str) -> str:
    """What was changed for it is changed back, unless somebody has changed it since."""
    if not row.steps.filter(kind=Step.Kind.RESTARTED).exists() or not row.change:
        return ""
    try:
        recovery_actions.change_job_request(job, changed_job_fields(row, back=True), author=author, why=why)
    except RequestChangedMeanwhile as changed:
        return f" What it asks for stays: {changed}."
    return " It asks for what it asked for before."


@transaction.atomic
def lift_order(order: Order, *, author: Author, now: datetime) -> None:
    """Recovery may decide about its subject again."""
    if not Order.objects.standing().filter(pk=order.pk).update(lifted_at=now, lifted_by=author.by):
        raise FailureStateConflict("somebody lifted it already")
    order.refresh_from_db()
    where = {"job_id": order.job_id, "node_id": order.node_id, "cluster_id": order.cluster_id}
    journal.new_event("order.lifted", author, why=order.why, **where).save()
    live.publish_on_commit("failures")


def _record_answer(row: Decision, course: str, author: Author, now: datetime, why: str, **fields: Any) -> None:
    said = {"said_by": author.by, "said_at": now, "said_why": sanitize_for_storage(why)[:1000]}
    Decision.objects.filter(pk=row.pk).update(course=course, **said, **fields)
    _publish_change(row)


def _ignore_job_error(act: Callable[[], None]) -> None:
    try:
        with transaction.atomic():
            act()
    except JobError:
        return  # somebody let it go meanwhile


@transaction.atomic
def correct_diagnosis(row: Diagnosis, root_cause: str, *, author: Author, now: datetime, note: str = "") -> None:
    """A person knows better why it failed, or confirms it; what rests on another cause is not to be done any more."""
    failure_actions.correct_verdict(row, root_cause, author=author, now=now, note=note)
    for decision in row.decisions.standing():
        _withdraw_decision(_lock_decision(decision), row, author, now)


def _withdraw_decision(decision: Decision, row: Diagnosis, author: Author, now: datetime) -> None:
    """Who carries it out holds the lock until his step is written, and then finds that it is not his any more."""
    if decision.facts["cause"] == row.root_cause or not _can_withdraw(decision):
        return
    why = f"{author.by} corrected the diagnosis from {decision.facts['cause']} to {row.root_cause}."
    done = [f"{step.kind} {step.node or ''}".strip() for step in decision.steps.select_related("node")]
    outcome = f"{why} What was done before that stays: {', '.join(done)}." if done else why
    _record_answer(
        decision, DecisionState.WITHDRAWN, author, now, "", ended_at=now, outcome=sanitize_for_storage(outcome)
    )
    _record_event("decision.withdrawn", author, decision, why=outcome, to_state=DecisionState.WITHDRAWN)


def _can_withdraw(decision: Decision) -> bool:
    """Nothing was done about the job, and nobody has said no to it."""
    if decision.course == DecisionState.OBSERVED:
        return decision.incident.state != IncidentState.RESOLVED
    if decision.course not in OPEN_STATES:
        return False
    return not decision.steps.filter(kind__in=(Step.Kind.RESTARTED, Step.Kind.ENDED)).exists()


# --- what the loop does


def claim(decision: Decision, now: datetime) -> Decision | None:
    """Ours for a while; counted before anything is done. The number of tries is the fence."""
    taken = Decision.objects.due(now).filter(pk=decision.pk, tries=decision.tries)
    began = decision.began_at or now
    if not taken.update(
        course=DecisionState.ACTING, tries=decision.tries + 1, due_at=now + CLAIM_LEASE, began_at=began
    ):
        return None
    decision.refresh_from_db()
    return decision


def require_claim(decision: Decision) -> None:
    """Locked until the step is written: who takes the decision back waits for that, or was first and it is not made."""
    rows = Decision.objects.select_for_update(of=("self",)).only("pk")
    if rows.filter(pk=decision.pk, tries=decision.tries, course=DecisionState.ACTING).first() is None:
        raise FailureStateConflict(f"decision {decision.pk} was taken back, or is carried out by somebody else")


@transaction.atomic
def finish_decision(decision: Decision, course: str, outcome: str, now: datetime) -> bool:
    ended = {"course": course, "outcome": sanitize_for_storage(outcome), "ended_at": now}
    if not Decision.objects.filter(pk=decision.pk, tries=decision.tries, course=DecisionState.ACTING).update(**ended):
        return False
    decision.refresh_from_db()
    _record_event(f"decision.{course}", RECOVERY_AUTHOR, decision, why=outcome, to_state=course)
    _publish_change(decision)
    return True


def count_error(decision: Decision) -> int:
    """How often it has raised by now."""
    Decision.objects.filter(pk=decision.pk).update(errors=F("errors") + 1)
    decision.refresh_from_db()
    return decision.errors


def wait_until(decision: Decision, until: datetime, outcome: str) -> None:
    mine = Decision.objects.filter(pk=decision.pk, tries=decision.tries, course=DecisionState.ACTING)
    if mine.exclude(outcome=outcome).update(outcome=outcome, due_at=until):
        _publish_change(decision)
    else:
        mine.update(due_at=until)


def add_faulty_nodes(decision: Decision, names: Sequence[str]) -> None:
    """The test found them: they count among the nodes that were closed."""
    mine = Decision.objects.filter(pk=decision.pk, tries=decision.tries, course=DecisionState.ACTING)
    mine.update(drain=sorted({*decision.drain, *names}))
    decision.refresh_from_db()


def expire_proposals(now: datetime) -> int:
    """What nobody said yes to in time is never done."""
    late = Decision.objects.filter(course=DecisionState.PROPOSED, expires_at__lte=now).select_related("attempt__job")
    return sum(_expire_decision(row, "Nobody approved it in time.", now) for row in late[:200])


def expire_sign_proposals(sign: Sign, why: str, now: datetime) -> None:
    """What was proposed because of a sign that has passed is not to be done any more."""
    for row in Decision.objects.filter(sign=sign, course=DecisionState.PROPOSED).select_related("attempt__job"):
        _expire_decision(row, why, now)


@transaction.atomic
def _expire_decision(row: Decision, why: str, now: datetime) -> bool:
    over = {"course": DecisionState.EXPIRED, "ended_at": now, "outcome": why}
    if not Decision.objects.filter(pk=row.pk, course=DecisionState.PROPOSED).update(**over):
        return False
    _record_event("decision.expired", RECOVERY_AUTHOR, row, to_state=DecisionState.EXPIRED, why=why)
    _publish_change(row)
    return True


def _lock_decision(decision: Decision) -> Decision:
    rows = Decision.objects.select_for_update(of=("self",)).select_related("attempt__job", "incident", "sign__node")
    return rows.get(pk=decision.pk)


def record_step(decision: Decision, kind: str, words: str, node: Node | None = None) -> None:
    Step.objects.create(decision=decision, kind=kind, node=node, words=sanitize_for_storage(words))


def _record_event(what: str, author: Author, decision: Decision, **fields: Any) -> None:
    detail = {"incident": decision.incident_id, "decision": decision.pk, "action": decision.action}
    if decision.attempt_id is None:
        node = Node.objects.get(signs__decision=decision)
        journal.node_event(what, author, node, detail=detail, **fields).save()
        return
    attempt = Attempt.objects.select_related("job").get(pk=decision.attempt_id)
    journal.job_event(what, author, attempt.job, attempt=attempt, detail=detail, **fields).save()


def _publish_change(decision: Decision) -> None:
    of_job = [f"job:{decision.attempt.job.public_id}"] if decision.attempt else []
    live.publish_on_commit("failures", f"incident:{decision.incident_id}", *of_job)
