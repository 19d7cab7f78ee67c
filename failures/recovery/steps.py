"""The steps of a decision: carry them out one by one, and undo them.

Each step is one transaction that also writes its row and its Events. It locks the decision and checks the claim, so an
undo or a withdrawal either waits for the step or prevents it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from django.db import transaction
from django.db.models import F, QuerySet

from acmeweb.common.errors import ClaimLost, StateConflict
from failures.actions.incidents import sanitize_for_storage
from failures.models import Decision, DecisionState, ManualOverride, RecoveryStep
from failures.recovery import decisions
from failures.recovery.decisions import INCIDENT_REASON_PREFIX, RECOVERY_AUTHOR
from failures.recovery.rules.remedies import RecoveryAction
from failures.recovery.rules.resizing import JobRequest, apply_changes, reverse_changes
from jobs.actions import jobs as job_actions
from jobs.actions import nodes as node_actions
from jobs.actions import recovery as recovery_actions
from jobs.actions import stop
from jobs.actions.journal import Author
from jobs.actions.one_row import ORDINARY_ERRORS
from jobs.actions.wake import request_turn
from jobs.core.lifecycle import State
from jobs.core.slurm_notation import format_count
from jobs.models import Allocation, Attempt, DrainMode, HoldKind, Job, Node

log = logging.getLogger(__name__)

CLAIM_LEASE = timedelta(seconds=60)
MAX_STEP_ERRORS = 5
STEP_RETRY_INTERVAL = timedelta(seconds=2)
IDLE_NODE_WAIT = timedelta(seconds=30)
# Drained nodes with these causes are good if they pass the pair test
TEST_CLEARED_CAUSES = frozenset({"NodeFailure", "SlurmNodeFail", "NetworkError", "CUDAError"})


class NodeTestProgress(Protocol):
    """A pair test of nodes, as far as recovery waits for it."""

    nodes: list[str]
    partners: list[str]
    round: int
    ended_at: datetime | None
    faulty: list[str]
    sentence: str


# Drains the nodes and starts their pair test; the same decision always gets the same test. Only clusters can run tests
StartNodeTest = Callable[..., NodeTestProgress]


def advance_decision(decision: Decision, start_test: StartNodeTest, now: datetime) -> bool:
    """Claim the decision and make its next step. Return whether it has ended. An error affects only this decision."""
    claimed = claim(decision, now)
    if claimed is None:
        return False
    try:
        return _carry_out(claimed, start_test, now)
    except ClaimLost as conflict:
        log.info("%s was not carried out: %s", claimed, conflict)
        return False
    except Exception as error:
        log.error("%s could not be carried out: %s", claimed, error, exc_info=not isinstance(error, ORDINARY_ERRORS))
        message = f"{type(error).__name__}: {error}"[:1000]
        if _count_error(claimed) >= MAX_STEP_ERRORS:
            _finish(claimed, DecisionState.FAILED, message, now)
            return False
        return _wait_until(claimed, now + STEP_RETRY_INTERVAL * claimed.errors, message)


def _carry_out(decision: Decision, start_test: StartNodeTest, now: datetime) -> bool:
    """Make the next step. Return whether the decision has ended."""
    attempt = decision.attempt
    if attempt is not None and attempt.ended_at is None:
        return _end_attempt(attempt, decision, now)
    if attempt is not None and decision.anomaly_id and attempt.stop_state != State.FAILED:
        return _finish(decision, DecisionState.DONE, "The attempt ended by itself before.", now)
    for node in Node.objects.filter(cluster=decision.cluster_id, name__in=decision.drain).order_by("name"):
        _drain_node(decision, node, now)
    if attempt is None and (busy := _jobs_on_drained_nodes(decision)):
        outcome = f"Waiting for {format_count(busy, 'job')} to end before the node test."
        return _wait_until(decision, now + IDLE_NODE_WAIT, outcome)
    test = _start_or_get_test(decision, start_test, now)
    if test is not None and test.ended_at is None and decision.action == RecoveryAction.TEST:
        return _wait_until(decision, now + STEP_RETRY_INTERVAL, f"Pair test running, round {test.round}.")
    if test is not None and test.faulty:
        _add_faulty_nodes(decision, test.faulty)
    state, job = _act_on_job(decision, now) if attempt is not None else (DecisionState.DONE, "")
    outcome = " ".join(text for text in (test.sentence if test else "", job) if text)
    return _finish(decision, state, outcome, now)


def _end_attempt(attempt: Attempt, decision: Decision, now: datetime) -> bool:
    """End the running attempt before the other steps. The cluster decides when it has ended."""
    if not attempt.stop_state:
        with transaction.atomic():
            require_claim(decision)
            why = f"{decision.facts['cause']}: {decision.why}."
            stop.stop_for_recovery(attempt, author=RECOVERY_AUTHOR, why=why, saves=decision.anomaly_id is not None)
        request_turn(decision.cluster_id)
    elif attempt.stop_state != State.FAILED:
        outcome = f"The attempt is already being ended: {attempt.stop_reason}"
        return _finish(decision, DecisionState.DONE, outcome, now)
    return _wait_until(decision, now + STEP_RETRY_INTERVAL, "The attempt is being ended.")


@transaction.atomic
def _drain_node(decision: Decision, node: Node, now: datetime) -> None:
    """Drain the node once. If a user resumes it afterwards, it is not drained again. A node that is already drained
    keeps its reason and its mode; a maintenance only drains it for a time."""
    require_claim(decision)
    if node.drain_requested and not node.maintenance_id:
        return
    if decision.steps.filter(kind=RecoveryStep.Kind.DRAINED, node=node).exists():
        return
    evidence = next(iter(decision.pro), "")
    why = f"{INCIDENT_REASON_PREFIX} {decision.incident_id}: {decision.why}. {evidence}".strip()
    try:
        node_actions.drain(node, author=RECOVERY_AUTHOR, why=why, now=now, mode=DrainMode.FINISH)
    except StateConflict as error:
        log.info("%s was not drained: %s", node, error)
        return
    record_step(decision, RecoveryStep.Kind.DRAINED, why, node)


def _jobs_on_drained_nodes(decision: Decision) -> int:
    held = Allocation.objects.filter(node__cluster=decision.cluster_id, node__name__in=decision.drain)
    return held.filter(released_at__isnull=True).values("attempt").distinct().count()


def _start_or_get_test(decision: Decision, start_test: StartNodeTest, now: datetime) -> NodeTestProgress | None:
    """Return the pair test of the suspected nodes, and start it if necessary. None if the decision has no test."""
    if not decision.test:
        return None
    why = f"{INCIDENT_REASON_PREFIX} {decision.incident_id}: {decision.why}"
    with transaction.atomic():
        require_claim(decision)
        # Some faults, such as damaged memory, do not show in this test
        reopen = decision.drain if decision.facts["cause"] in TEST_CLEARED_CAUSES else []
        test = start_test(decision.cluster, decision.test, why=why, now=now, decision=decision, reopen=reopen)
        if not decision.steps.filter(kind=RecoveryStep.Kind.TESTED).exists():
            nodes = ", ".join([*test.nodes, *test.partners])
            text = f"Pair test of {nodes}." if nodes else "Pair test skipped: no node can be tested."
            record_step(decision, RecoveryStep.Kind.TESTED, text)
            transaction.on_commit(lambda: request_turn(decision.cluster_id))
    return test


@transaction.atomic
def _act_on_job(decision: Decision, now: datetime) -> tuple[str, str]:
    """Restart the job, or end its wait for recovery. The action and its step are one transaction."""
    require_claim(decision)
    if decision.steps.filter(kind=RecoveryStep.Kind.RESTARTED).exists():
        return DecisionState.DONE, decision.outcome
    if ended := decision.steps.filter(kind=RecoveryStep.Kind.ENDED).first():
        return (DecisionState.FAILED, ended.text) if decision.restarts else (DecisionState.DONE, decision.outcome)
    try:
        with transaction.atomic():
            return DecisionState.DONE, _restart(decision, now) if decision.restarts else _end_without_restart(decision)
    except StateConflict as error:
        return _give_job_back(decision, f"The job was not restarted: {error}.")


def _restart(decision: Decision, now: datetime) -> str:
    summary = decisions.decision_summary(decision)
    begin_at = decision.not_before if decision.action == RecoveryAction.WAIT and decision.not_before > now else None
    recovery_actions.restart(
        decision.attempt,
        author=RECOVERY_AUTHOR,
        why=f"Recovery: {summary}",
        resume=_resume_point(decision),
        begin_at=begin_at,
        asks=_changed_job_fields(decision),
    )
    _distrust_newer_checkpoints(decision)
    record_step(decision, RecoveryStep.Kind.RESTARTED, summary)
    transaction.on_commit(lambda: request_turn(decision.cluster_id))
    return "The job is back in the queue" + (f"; it starts at {begin_at:%H:%M:%S} UTC or later." if begin_at else ".")


def _resume_point(decision: Decision) -> dict[str, Any]:
    if decision.checkpoint_step is None:
        return {}
    skip = {"skip": decision.skip} if decision.skip else {}
    return {"path": decision.checkpoint_path, "step": decision.checkpoint_step, **skip}


def _changed_job_fields(decision: Decision, *, back: bool = False) -> dict[str, Any]:
    """The job's fields after the change, or before it with `back`. Raises StateConflict."""
    if decision.attempt is None or not decision.change:
        return {}
    job = Job.objects.select_for_update(of=("self",)).get(pk=decision.attempt.job_id)
    now = JobRequest(command=job.command, environment=job.environment, memory_mb=job.memory_per_node_mb)
    new = apply_changes(reverse_changes(decision.changes) if back else decision.changes, now)
    return {"command": new.command, "environment": dict(new.environment), "memory_per_node_mb": new.memory_mb}


def _distrust_newer_checkpoints(decision: Decision) -> None:
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


def _end_without_restart(decision: Decision) -> str:
    decisions.decline_job_recovery(decision, RECOVERY_AUTHOR)
    record_step(decision, RecoveryStep.Kind.ENDED, decision.why)
    return "The job was not restarted; its owner is notified."


def _give_job_back(decision: Decision, why: str) -> tuple[str, str]:
    """End the job's wait for recovery after a step that is not possible. If the wait has already ended, the decision is
    done and has not failed."""
    outcome = f"{why} The job keeps its final state."
    try:
        with transaction.atomic():
            decisions.decline_job_recovery(decision, RECOVERY_AUTHOR, why)
            record_step(decision, RecoveryStep.Kind.ENDED, outcome)
    except ClaimLost:
        return DecisionState.DONE, why
    return DecisionState.FAILED, outcome


# --- the claimed row


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

    Raises ClaimLost.
    """
    if _claimed(decision).select_for_update(of=("self",)).only("pk").first() is None:
        raise ClaimLost(f"decision {decision.pk} was withdrawn or is being carried out by another worker")


def _claimed(decision: Decision) -> QuerySet[Decision]:
    """The row of the decision; empty if the claim was lost."""
    return Decision.objects.filter(pk=decision.pk, tries=decision.tries, state=DecisionState.ACTING)


def record_step(decision: Decision, kind: str, text: str, node: Node | None = None) -> None:
    RecoveryStep.objects.create(decision=decision, kind=kind, node=node, text=sanitize_for_storage(text))


def _wait_until(decision: Decision, until: datetime, outcome: str) -> bool:
    """Let the next step wait. Return False: the decision has not ended."""
    if _claimed(decision).exclude(outcome=outcome).update(outcome=outcome, due_at=until):
        decisions.publish_change(decision)
    else:
        _claimed(decision).update(due_at=until)
    return False


def _add_faulty_nodes(decision: Decision, names: Sequence[str]) -> None:
    """Add nodes that failed the test to the drained nodes of the decision."""
    _claimed(decision).update(drain=sorted({*decision.drain, *names}))
    decision.refresh_from_db()


def _count_error(decision: Decision) -> int:
    """The number of errors so far, including this one."""
    Decision.objects.filter(pk=decision.pk).update(errors=F("errors") + 1)
    decision.refresh_from_db()
    return decision.errors


@transaction.atomic
def _finish(decision: Decision, state: str, outcome: str, now: datetime) -> bool:
    """End the claimed decision. Return whether it has ended: False if the claim was lost."""
    if not _claimed(decision).update(state=state, outcome=sanitize_for_storage(outcome), ended_at=now):
        return False
    decision.refresh_from_db()
    decisions.record_event(f"decision.{state}", RECOVERY_AUTHOR, decision, why=outcome, to_state=state)
    decisions.publish_change(decision)
    return True


# --- undo


@transaction.atomic
def undo(decision: Decision, *, author: Author, now: datetime, why: str = "") -> None:
    """Undo a decision: resume the drained nodes and hold the job if it is pending.

    Recovery does not act on the nodes and the job until the overrides are lifted.
    """
    row = decisions.lock_decision(decision)
    if not row.can_be_undone:
        raise StateConflict(f"the decision is {row.state}; there is nothing to undo")
    words = why or f"{author.by} undid “{row.action}” of {row.at:%d %b %H:%M} UTC"
    decisions.record_answer(row, DecisionState.UNDONE, author, now, why, ended_at=now)
    decisions.record_event("decision.undone", author, row, why=words, to_state=DecisionState.UNDONE)
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
        decisions.decline_job_recovery(row, author, why, hold=True)
        job.refresh_from_db()
    elif job.hold == HoldKind.NONE:
        job_actions.hold(job, author=author, why=why)
    return f"{job} is held.{note}" if job.state == State.PENDING else f"{job} has ended: {job.state}.{note}"


def _restore_job_request(row: Decision, job: Job, author: Author, why: str) -> str:
    """Restore the request that recovery changed, unless it was changed again since. Returns a sentence about it."""
    if not row.steps.filter(kind=RecoveryStep.Kind.RESTARTED).exists() or not row.change:
        return ""
    try:
        fields = _changed_job_fields(row, back=True)
    except StateConflict as changed:
        return f" Its request was not restored: {changed}."
    recovery_actions.change_job_request(job, fields, author=author, why=why)
    return " Its previous request was restored."
