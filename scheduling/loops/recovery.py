"""Recovery: decide about diagnosed failures, and carry out the approved decisions.

Eligible rows     Diagnoses of the last hour with an incident and without a decision, or whose decision was withdrawn in
                  that hour because a user named another cause; the oldest first. Diagnoses of hangs only after their
                  stack dumps have arrived or timed out, those of nodes after the next sample of
                  their telemetry, or 20 s. Lasting, severe anomalies that name a node and have no
                  decision. Decisions approved by a mode or a user whose next step is due. Expired proposals.
What a turn does  Decides (a pure function, no transaction) and writes each decision with its inputs. Makes the next
                  step of each due decision: drain the named nodes, test the suspected ones, restart the job.
Failure story     There is one active decision per failed attempt and one row per step, written in the transaction of
                  the step. Killed anywhere: the next turn continues; two workers do nothing twice. A withdrawn decision
                  stops between two steps, and no step is repeated. A step that raises is retried by the next claim, up
                  to five times; then the decision fails with the error. A change that no longer applies to the job
                  fails at once, and the job continues without recovery. An expired decision never acts. User actions
                  take precedence and are not errors: each step locks the decision and checks the claim, so an undo
                  stops the remaining steps. A failure that cannot be decided does not block others. No job waits
                  for this loop forever: the cluster's turns end the wait after a limit, even if this loop is down.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from failures.actions import decisions as decision_actions
from failures.actions import recovery_inputs
from failures.actions.decisions import INCIDENT_REASON_PREFIX, RECOVERY_AUTHOR
from failures.actions.incidents import FailureStateConflict
from failures.detection.findings import Severity
from failures.models import Anomaly, Decision, DecisionState, Diagnosis, RecoveryStep, StackDump
from failures.models.decision import OPEN_STATES
from failures.recovery.rules.decide import decide
from failures.recovery.rules.remedies import AutomationMode, RecoveryAction
from failures.recovery.rules.resizing import RequestChangedMeanwhile
from failures.recovery.rules.values import RecoveryDecision
from jobs.actions import nodes as node_actions
from jobs.actions import recovery as recovery_actions
from jobs.actions import stop
from jobs.actions.jobs import JobError
from jobs.actions.nodes import NodeError
from jobs.actions.one_row import ORDINARY_ERRORS
from jobs.actions.wake import request_turn
from jobs.core.lifecycle import State
from jobs.core.slurm_notation import format_count
from jobs.models import Allocation, Attempt, ClusterMode, DrainMode, Node
from scheduling.actions import node_tests as node_test_actions
from scheduling.models import NodeTest

log = logging.getLogger(__name__)

DECISION_WINDOW = timedelta(hours=1)
MAX_DECISIONS_PER_TURN = 50
MAX_DIAGNOSES_PER_TURN = 500  # more than decisions, because some may fail to be decided
DECIDE_BUDGET_S, CARRY_OUT_BUDGET_S = 10.0, 15.0  # together well below the time limit of the loop
MAX_STEP_ERRORS = 5
STEP_RETRY_INTERVAL = timedelta(seconds=2)
IDLE_NODE_WAIT = timedelta(seconds=30)
TEST_CLEARED_CAUSES = frozenset({"NodeFailure", "SlurmNodeFail", "NetworkError", "CUDAError"})


def decide_and_recover_once(
    now: datetime, *, most: int = MAX_DECISIONS_PER_TURN, monotonic: Callable[[], float] = time.monotonic
) -> int:
    """Return how many decisions were made or advanced; at most `most` of each kind, and those that fit in the time."""
    ends_at = monotonic() + DECIDE_BUDGET_S
    done = _decide_diagnoses(now, most, lambda: monotonic() < ends_at) + _decide_anomalies(now, most)
    due = Decision.objects.due(now).select_related("attempt__job__cluster", "cluster", "anomaly").order_by("due_at")
    ends_at = monotonic() + CARRY_OUT_BUDGET_S
    for decision in due[:most]:
        if monotonic() >= ends_at:
            break
        done += _carry_out_isolated(decision, now)
    done += decision_actions.expire_proposals(now)
    return done


# --- decide


def _decide_diagnoses(now: datetime, most: int, has_time: Callable[[], bool]) -> int:
    done, seen = 0, set[int]()
    while len(seen) < MAX_DIAGNOSES_PER_TURN and (
        rows := _undecided_diagnoses(now).exclude(pk__in=seen)[: most - done]
    ):
        for row in rows:
            if not has_time():
                return done
            seen.add(row.pk)
            done += _decide_row(row, now)
    return done


def _undecided_diagnoses(now: datetime) -> QuerySet[Diagnosis]:
    decisions = Decision.objects.filter(diagnosis=OuterRef("pk"))
    withdrawn = Exists(decisions.filter(state=DecisionState.WITHDRAWN))
    recent = Q(failed_at__gte=now - DECISION_WINDOW) | Q(withdrawn, reviewed_at__gte=now - DECISION_WINDOW)
    rows = Diagnosis.objects.judged().filter(recent, ~Exists(decisions.not_withdrawn()), incident__isnull=False)
    driven = rows.filter(cluster__mode=ClusterMode.DRIVE, attempt__job__foreign_id="")
    with_stacks = driven.exclude(Exists(StackDump.objects.within_deadline(now).filter(attempt=OuterRef("attempt"))))
    selected = with_stacks.select_related("attempt__job__team", "attempt__job__cluster").defer("bundle")
    return selected.order_by("failed_at")


def _decide_anomalies(now: datetime, most: int) -> int:
    rows = Anomaly.objects.not_ended().filter(severity=Severity.BAD, incident__isnull=False, decision=None)
    named = rows.filter(node__isnull=False, node__drain_requested=False, cluster__mode=ClusterMode.DRIVE)
    selected = named.select_related("node", "attempt__job__team", "attempt__job__cluster").order_by("since")
    return sum(_decide_row(row, now) for row in selected[:most] if not _has_open_decision(row))


def _has_open_decision(anomaly: Anomaly) -> bool:
    """Whether another failure or anomaly has already led to a decision about the same attempt or node."""
    open_ = Decision.objects.filter(cluster=anomaly.cluster_id, state__in=OPEN_STATES)
    of_attempt = anomaly.attempt is not None and open_.filter(attempt=anomaly.attempt_id).exists()
    return of_attempt or open_.filter(drain__contains=[anomaly.node.name] if anomaly.node else []).exists()


def _decide_row(row: Diagnosis | Anomaly, now: datetime) -> bool:
    try:
        if isinstance(row, Diagnosis) and recovery_inputs.awaits_telemetry(row, now):
            return False
        inputs = (
            recovery_inputs.inputs_of_diagnosis(row, now)
            if isinstance(row, Diagnosis)
            else recovery_inputs.inputs_of_anomaly(row, now)
        )
        decision = decide(inputs.facts, inputs.history, inputs.policy, now)
        if row.attempt is not None:
            decision = _limit_to_possible(row.attempt, decision)
        return decision_actions.record_decision(row, inputs, decision, now) is not None
    except Exception as error:  # the turns end the job's wait for recovery
        is_unexpected = not isinstance(error, ORDINARY_ERRORS)
        log.error("no recovery decision could be made for %s: %s", row, error, exc_info=is_unexpected)
        return False


def _limit_to_possible(attempt: Attempt, decision: RecoveryDecision) -> RecoveryDecision:
    """Reduce the decision to observation if it could only restart a job that no longer waits for recovery."""
    waits = attempt.job.recover_by is not None or attempt.ended_at is None
    if waits or decision.drain or decision.test or decision.mode is AutomationMode.OBSERVE or not decision.restarts:
        return decision
    why = f"the job is {attempt.job.state} and does not wait for recovery"
    return replace(decision, mode=AutomationMode.OBSERVE, limits=(*decision.limits, (AutomationMode.OBSERVE, why)))


# --- carry out


def _carry_out_isolated(decision: Decision, now: datetime) -> bool:
    """Claim the decision and make its next step. An error affects only this decision."""
    claimed = decision_actions.claim(decision, now)
    if claimed is None:
        return False
    try:
        return carry_out_decision(claimed, now)
    except FailureStateConflict as conflict:
        log.info("%s was not carried out: %s", claimed, conflict)
        return False
    except Exception as error:
        log.error("%s could not be carried out: %s", claimed, error, exc_info=not isinstance(error, ORDINARY_ERRORS))
        message = f"{type(error).__name__}: {error}"[:1000]
        if decision_actions.count_error(claimed) >= MAX_STEP_ERRORS:
            decision_actions.finish_decision(claimed, DecisionState.FAILED, message, now)
        else:
            decision_actions.wait_until(claimed, now + STEP_RETRY_INTERVAL * claimed.errors, message)
        return False


def carry_out_decision(decision: Decision, now: datetime) -> bool:
    """Make the next step. Return whether the decision has ended."""
    attempt = decision.attempt
    if attempt is not None and attempt.ended_at is None:
        return _end_attempt(attempt, decision, now)
    if attempt is not None and decision.anomaly_id and attempt.stop_state != State.FAILED:
        return decision_actions.finish_decision(
            decision, DecisionState.DONE, "The attempt ended by itself before.", now
        )
    for node in Node.objects.filter(cluster=decision.cluster_id, name__in=decision.drain).order_by("name"):
        _drain_decision_node(decision, node, now)
    if attempt is None and (busy := _jobs_on_drained_nodes(decision)):
        decision_actions.wait_until(
            decision, now + IDLE_NODE_WAIT, f"Waiting for {format_count(busy, 'job')} to end before the node test."
        )
        return False
    test = _start_or_get_test(decision, now)
    if test is not None and test.ended_at is None and decision.action == RecoveryAction.TEST:
        decision_actions.wait_until(decision, now + STEP_RETRY_INTERVAL, f"Pair test running, round {test.round}.")
        return False
    if test is not None and test.faulty:
        decision_actions.add_faulty_nodes(decision, test.faulty)
    state, job = _act_on_job(decision, now) if attempt is not None else (DecisionState.DONE, "")
    outcome = " ".join(text for text in (test.sentence if test else "", job) if text)
    return decision_actions.finish_decision(decision, state, outcome, now)


def _jobs_on_drained_nodes(decision: Decision) -> int:
    """Return how many jobs still run on the drained nodes."""
    held = Allocation.objects.filter(node__cluster=decision.cluster_id, node__name__in=decision.drain)
    return held.filter(released_at__isnull=True).values("attempt").distinct().count()


def _nodes_cleared_by_test(decision: Decision) -> list[str]:
    """Return the drained nodes that are good if they pass the test. Some faults, such as damaged memory, do not show in
    this test."""
    return decision.drain if decision.facts["cause"] in TEST_CLEARED_CAUSES else []


def _start_or_get_test(decision: Decision, now: datetime) -> NodeTest | None:
    """Return the pair test of the suspected nodes, and start it if necessary. None if the decision has no test."""
    if not decision.test:
        return None
    why = f"{INCIDENT_REASON_PREFIX} {decision.incident_id}: {decision.why}"
    with transaction.atomic():
        decision_actions.require_claim(decision)
        test = node_test_actions.start_node_test(
            decision.cluster,
            decision.test,
            why=why,
            now=now,
            decision=decision,
            reopen=_nodes_cleared_by_test(decision),
        )
        if not decision.steps.filter(kind=RecoveryStep.Kind.TESTED).exists():
            nodes = ", ".join([*test.nodes, *test.partners])
            text = f"Pair test of {nodes}." if nodes else "Pair test skipped: no node can be tested."
            decision_actions.record_step(decision, RecoveryStep.Kind.TESTED, text)
            transaction.on_commit(lambda: request_turn(decision.cluster_id))
        return node_test_actions.advance_node_test(test, now) if not test.pair_tests.exists() else test


def _end_attempt(attempt: Attempt, decision: Decision, now: datetime) -> bool:
    """End the running attempt before the other steps. The cluster decides when it has ended."""
    if not attempt.stop_state:
        with transaction.atomic():
            decision_actions.require_claim(decision)
            why = f"{decision.facts['cause']}: {decision.why}."
            stop.stop_for_recovery(attempt, author=RECOVERY_AUTHOR, why=why, saves=decision.anomaly_id is not None)
        request_turn(decision.cluster_id)
    elif attempt.stop_state != State.FAILED:
        outcome = f"The attempt is already being ended: {attempt.stop_reason}"
        return decision_actions.finish_decision(decision, DecisionState.DONE, outcome, now)
    decision_actions.wait_until(decision, now + STEP_RETRY_INTERVAL, "The attempt is being ended.")
    return False


@transaction.atomic
def _drain_decision_node(decision: Decision, node: Node, now: datetime) -> None:
    """Drain the node once. If a user resumes it afterwards, it is not drained again. A node that is already drained
    keeps its reason and its mode; a maintenance only drains it for a time."""
    decision_actions.require_claim(decision)
    if node.drain_requested and not node.maintenance_id:
        return
    if decision.steps.filter(kind=RecoveryStep.Kind.DRAINED, node=node).exists():
        return
    evidence = next(iter(decision.pro), "")
    why = f"{INCIDENT_REASON_PREFIX} {decision.incident_id}: {decision.why}. {evidence}".strip()
    try:
        node_actions.drain(node, author=RECOVERY_AUTHOR, why=why, now=now, mode=DrainMode.FINISH)
    except NodeError as error:
        log.info("%s was not drained: %s", node, error)
        return
    decision_actions.record_step(decision, RecoveryStep.Kind.DRAINED, why, node)


@transaction.atomic
def _act_on_job(decision: Decision, now: datetime) -> tuple[str, str]:
    """Restart the job, or end its wait for recovery. The action and its step are one transaction."""
    decision_actions.require_claim(decision)
    if decision.steps.filter(kind=RecoveryStep.Kind.RESTARTED).exists():
        return DecisionState.DONE, decision.outcome
    if ended := decision.steps.filter(kind=RecoveryStep.Kind.ENDED).first():
        return (DecisionState.FAILED, ended.text) if decision.restarts else (DecisionState.DONE, decision.outcome)
    try:
        with transaction.atomic():
            return DecisionState.DONE, _restart(decision, now) if decision.restarts else _end_without_restart(decision)
    except (JobError, RequestChangedMeanwhile) as error:
        return _give_job_back(decision, f"The job was not restarted: {error}.")


def _give_job_back(decision: Decision, why: str) -> tuple[str, str]:
    """End the job's wait for recovery after a step that is not possible. If the wait has already ended, the decision is
    done and has not failed."""
    outcome = f"{why} The job keeps its final state."
    try:
        with transaction.atomic():
            decision_actions.decline_job_recovery(decision, RECOVERY_AUTHOR, why)
            decision_actions.record_step(decision, RecoveryStep.Kind.ENDED, outcome)
    except JobError:
        return DecisionState.DONE, why
    return DecisionState.FAILED, outcome


def _restart(decision: Decision, now: datetime) -> str:
    summary = decision_actions.decision_summary(decision)
    begin_at = decision.not_before if decision.action == RecoveryAction.WAIT and decision.not_before > now else None
    recovery_actions.restart(
        decision.attempt,
        author=RECOVERY_AUTHOR,
        why=f"Recovery: {summary}",
        resume=resume_point(decision),
        begin_at=begin_at,
        asks=decision_actions.changed_job_fields(decision),
    )
    decision_actions.distrust_newer_checkpoints(decision)
    decision_actions.record_step(decision, RecoveryStep.Kind.RESTARTED, summary)
    transaction.on_commit(lambda: request_turn(decision.cluster_id))
    return "The job is back in the queue" + (f"; it starts at {begin_at:%H:%M:%S} UTC or later." if begin_at else ".")


def resume_point(decision: Decision) -> dict[str, Any]:
    if decision.checkpoint_step is None:
        return {}
    skip = {"skip": decision.skip} if decision.skip else {}
    return {"path": decision.checkpoint_path, "step": decision.checkpoint_step, **skip}


def _end_without_restart(decision: Decision) -> str:
    decision_actions.decline_job_recovery(decision, RECOVERY_AUTHOR)
    decision_actions.record_step(decision, RecoveryStep.Kind.ENDED, decision.why)
    return "The job was not restarted; its owner is notified."
