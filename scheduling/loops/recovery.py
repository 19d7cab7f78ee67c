"""Recover: decide about every failure that has its verdict, and carry out what may be done.

Who is eligible   verdicts of the last hour that belong to an incident and have no decision, or whose decision was
                  withdrawn in that hour because a person named another cause; the oldest first, but those of hangs
                  only when their stacks have come or were waited for long enough;
                  signs that last, are bad, name a node and have none; decisions that a mode or a person said yes to, by
                  when their next step is due; proposals whose time is over.
What a turn does  decides (values only, no transaction), writes each decision with its inputs; makes the next step of
                  each that is due: close the named nodes, test who may be it, start the job again from where it should.
Failure story     One standing decision for each failed attempt, one row for each step, each in the transaction of what
                  it tells of: killed anywhere, the next turn finds what is left, and two at once do nothing twice. What
                  a correction withdraws stops between two steps, and none of them is made again. A step that
                  raises is tried again by the next claim, five times; then the decision has failed, with the reason.
                  What the job does not ask for any more cannot be changed: that fails at once and gives the job back. A
                  decision that is late has expired and never acts; a person who was faster wins, and is not an error:
                  each step locks the decision and is made only while it is ours, so an undo stops what is left. What
                  cannot be decided takes nobody's place: others are looked at in its stead.
                  Nothing waits for this loop for ever: the turns of its cluster give a job that waits too long back to
                  what its end says, whether this loop lives or not.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from failures.actions import decisions as decision_actions
from failures.actions import recovery_inputs
from failures.actions.decisions import INCIDENT_REASON_PREFIX, RECOVERY_AUTHOR
from failures.actions.incidents import FailureStateConflict
from failures.detection.findings import Severity
from failures.models import Decision, DecisionState, Diagnosis, Sign, StackDump, Step
from failures.models.decision import OPEN_STATES
from failures.recovery import decide
from failures.recovery.remedies import AutomationMode, RecoveryAction
from failures.recovery.resizing import RequestChangedMeanwhile
from failures.recovery.values import RecoveryDecision
from jobs.actions import nodes as node_actions
from jobs.actions import recovery as recovery_actions
from jobs.actions import stop
from jobs.actions.jobs import JobError
from jobs.actions.nodes import NodeError
from jobs.actions.wake import request_turn
from jobs.core.lifecycle import State
from jobs.core.slurm_notation import format_count
from jobs.models import Allocation, Attempt, DrainMode, Node
from jobs.models import ClusterMode as ClusterMode
from scheduling.actions import node_tests as node_test_actions
from scheduling.models import NodeTest

log = logging.getLogger(__name__)

DECISION_WINDOW = timedelta(hours=1)
MAX_DECISIONS_PER_TURN = 50
MAX_DIAGNOSES_PER_TURN = 500  # of which all the others could not be decided
MAX_STEP_ERRORS = 5
STEP_RETRY_INTERVAL = timedelta(seconds=2)
IDLE_NODE_WAIT = timedelta(seconds=30)
TEST_CLEARED_CAUSES = frozenset({"NodeFailure", "SlurmNodeFail", "NetworkError", "CUDAError"})


def decide_and_recover_once(now: datetime) -> int:
    """How many decisions were made or carried a step further."""
    done = _decide_diagnoses(now) + _decide_signs(now)
    due = Decision.objects.due(now).select_related("attempt__job__cluster", "cluster", "sign").order_by("due_at")
    for decision in due[:MAX_DECISIONS_PER_TURN]:
        done += _carry_out_isolated(decision, now)
    done += decision_actions.expire_proposals(now)
    return done


# --- decide


def _decide_diagnoses(now: datetime) -> int:
    done, seen = 0, set[int]()
    while len(seen) < MAX_DIAGNOSES_PER_TURN and (
        rows := _undecided_diagnoses(now).exclude(pk__in=seen)[: MAX_DECISIONS_PER_TURN - done]
    ):
        seen.update(row.pk for row in rows)
        done += sum(_decide_row(row, now) for row in rows)
    return done


def _undecided_diagnoses(now: datetime) -> QuerySet[Diagnosis]:
    decisions = Decision.objects.filter(diagnosis=OuterRef("pk"))
    withdrawn = Exists(decisions.filter(course=DecisionState.WITHDRAWN))
    lately = Q(failed_at__gte=now - DECISION_WINDOW) | Q(withdrawn, reviewed_at__gte=now - DECISION_WINDOW)
    rows = Diagnosis.objects.judged().filter(lately, ~Exists(decisions.standing()), incident__isnull=False)
    driven = rows.filter(cluster__mode=ClusterMode.DRIVE, attempt__job__foreign_id="")
    heard = driven.exclude(Exists(StackDump.objects.within_deadline(now).filter(attempt=OuterRef("attempt"))))
    wanted = heard.select_related("attempt__job__team", "attempt__job__cluster").defer("bundle")
    return wanted.order_by("failed_at")


def _decide_signs(now: datetime) -> int:
    rows = Sign.objects.not_ended().filter(severity=Severity.BAD, incident__isnull=False, decision=None)
    named = rows.filter(node__isnull=False, node__drain_asked=False, cluster__mode=ClusterMode.DRIVE)
    wanted = named.select_related("node", "attempt__job__team", "attempt__job__cluster").order_by("since")
    return sum(_decide_row(row, now) for row in wanted[:MAX_DECISIONS_PER_TURN] if not _has_open_decision(row))


def _has_open_decision(sign: Sign) -> bool:
    """Somebody who died there, or another sign, has led to it."""
    open_ = Decision.objects.filter(cluster=sign.cluster_id, course__in=OPEN_STATES)
    of_attempt = sign.attempt is not None and open_.filter(attempt=sign.attempt_id).exists()
    return of_attempt or open_.filter(drain__contains=[sign.node.name] if sign.node else []).exists()


def _decide_row(row: Diagnosis | Sign, now: datetime) -> bool:
    try:
        seen = (
            recovery_inputs.inputs_of_diagnosis(row, now)
            if isinstance(row, Diagnosis)
            else recovery_inputs.inputs_of_sign(row, now)
        )
        found = decide(seen.facts, seen.history, seen.policy, now)
        if row.attempt is not None:
            found = _limit_to_possible(row.attempt, found)
        return decision_actions.record_decision(row, seen, found, now) is not None
    except SoftTimeLimitExceeded:
        raise
    except Exception:
        log.exception("nothing could be decided about %s", row)  # the job is given back in time
        return False


def _limit_to_possible(attempt: Attempt, found: RecoveryDecision) -> RecoveryDecision:
    """What cannot be done any more is not proposed: a job that has ended for good, or goes on by itself."""
    waits = attempt.job.recover_by is not None or attempt.ended_at is None
    if waits or found.drain or found.test or found.mode is AutomationMode.OBSERVE or not found.restarts:
        return found
    why = f"the job is {attempt.job.state} and does not wait for recovery"
    return replace(found, mode=AutomationMode.OBSERVE, limits=(*found.limits, (AutomationMode.OBSERVE, why)))


# --- carry out


def _carry_out_isolated(decision: Decision, now: datetime) -> bool:
    """The row boundary."""
    mine = decision_actions.claim(decision, now)
    if mine is None:
        return False
    try:
        return carry_out_decision(mine, now)
    except FailureStateConflict as first:
        log.info("%s is left as it is: %s", mine, first)
        return False
    except SoftTimeLimitExceeded:
        raise
    except Exception as error:
        log.exception("%s could not be carried out", mine)
        said = f"{type(error).__name__}: {error}"[:1000]
        if decision_actions.count_error(mine) >= MAX_STEP_ERRORS:
            decision_actions.finish_decision(mine, DecisionState.FAILED, said, now)
        else:
            decision_actions.wait_until(mine, now + STEP_RETRY_INTERVAL * mine.errors, said)
        return False


def carry_out_decision(decision: Decision, now: datetime) -> bool:
    attempt = decision.attempt
    if attempt is not None and attempt.ended_at is None:
        return _end_attempt(attempt, decision, now)
    if attempt is not None and decision.sign_id and attempt.stop_as != State.FAILED:
        return decision_actions.finish_decision(
            decision, DecisionState.DONE, "Its attempt ended by itself before that.", now
        )
    for node in Node.objects.filter(cluster=decision.cluster_id, name__in=decision.drain).order_by("name"):
        _drain_decision_node(decision, node, now)
    if attempt is None and (busy := _jobs_on_drained_nodes(decision)):
        decision_actions.wait_until(
            decision, now + IDLE_NODE_WAIT, f"It is tested when it is empty: {format_count(busy, 'job')} there."
        )
        return False
    test = _start_or_get_test(decision, now)
    if test is not None and test.ended_at is None and decision.action == RecoveryAction.TEST:
        decision_actions.wait_until(
            decision, now + STEP_RETRY_INTERVAL, f"Its nodes are tested in pairs, round {test.round}."
        )
        return False
    if test is not None and test.faulty:
        decision_actions.add_faulty_nodes(decision, test.faulty)
    course, job = _act_on_job(decision, now) if attempt is not None else (DecisionState.DONE, "")
    said = " ".join(one for one in (test.sentence if test else "", job) if one)
    return decision_actions.finish_decision(decision, course, said, now)


def _jobs_on_drained_nodes(decision: Decision) -> int:
    """How many jobs run on in peace on what was closed."""
    held = Allocation.objects.filter(node__cluster=decision.cluster_id, node__name__in=decision.drain)
    return held.filter(released_at__isnull=True).values("attempt").distinct().count()


def _nodes_cleared_by_test(decision: Decision) -> list[str]:
    """A node that went away and came back is good if it passes; one whose memory is damaged passes too."""
    return decision.drain if decision.facts["cause"] in TEST_CLEARED_CAUSES else []


def _start_or_get_test(decision: Decision, now: datetime) -> NodeTest | None:
    """Who is suspected meets others in pairs. The job waits for that only where nobody else is named."""
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
        if not decision.steps.filter(kind=Step.Kind.TESTED).exists():
            words = f"In pairs: {', '.join([*test.nodes, *test.partners]) or 'none of them can be tested'}."
            decision_actions.record_step(decision, Step.Kind.TESTED, words)
            transaction.on_commit(lambda: request_turn(decision.cluster_id))
        return node_test_actions.advance_node_test(test, now) if not test.worlds.exists() else test


def _end_attempt(attempt: Attempt, decision: Decision, now: datetime) -> bool:
    """It runs still, and must end before anything else. Its cluster has the last word on when."""
    if not attempt.stop_as:
        with transaction.atomic():
            decision_actions.require_claim(decision)
            why = f"{decision.facts['cause']}: {decision.why}."
            stop.stop_for_recovery(attempt, author=RECOVERY_AUTHOR, why=why, saves=decision.sign_id is not None)
        request_turn(decision.cluster_id)
    elif attempt.stop_as != State.FAILED:
        said = f"Somebody else ends it: {attempt.stop_why}"
        return decision_actions.finish_decision(decision, DecisionState.DONE, said, now)
    decision_actions.wait_until(decision, now + STEP_RETRY_INTERVAL, "Its attempt is being ended.")
    return False


@transaction.atomic
def _drain_decision_node(decision: Decision, node: Node, now: datetime) -> None:
    """Once: who opens it again has decided."""
    decision_actions.require_claim(decision)
    if decision.steps.filter(kind=Step.Kind.DRAINED, node=node).exists():
        return
    evidence = next(iter(decision.pro), "")
    why = f"{INCIDENT_REASON_PREFIX} {decision.incident_id}: {decision.why}. {evidence}".strip()
    try:
        node_actions.drain(node, author=RECOVERY_AUTHOR, why=why, now=now, mode=DrainMode.FINISH)
    except NodeError as refusal:
        log.info("%s is left as it is: %s", node, refusal)
        return
    decision_actions.record_step(decision, Step.Kind.DRAINED, why, node)


@transaction.atomic
def _act_on_job(decision: Decision, now: datetime) -> tuple[str, str]:
    """The step and the row that says so are one transaction."""
    decision_actions.require_claim(decision)
    if decision.steps.filter(kind=Step.Kind.RESTARTED).exists():
        return DecisionState.DONE, decision.outcome
    if ended := decision.steps.filter(kind=Step.Kind.ENDED).first():
        return (DecisionState.FAILED, ended.words) if decision.restarts else (DecisionState.DONE, decision.outcome)
    try:
        with transaction.atomic():
            return DecisionState.DONE, _restart(decision, now) if decision.restarts else _give_back_as_decided(decision)
    except (JobError, RequestChangedMeanwhile) as moved:
        return _give_job_back(decision, f"The job was left alone: {moved}.")


def _give_job_back(decision: Decision, why: str) -> tuple[str, str]:
    """What cannot be done keeps nobody waiting. Who has let the job go meanwhile was first, and that is no failure."""
    said = f"{why} It is what its end made of it."
    try:
        with transaction.atomic():
            decision_actions.decline_job_recovery(decision, RECOVERY_AUTHOR, why)
            decision_actions.record_step(decision, Step.Kind.ENDED, said)
    except JobError:
        return DecisionState.DONE, why
    return DecisionState.FAILED, said


def _restart(decision: Decision, now: datetime) -> str:
    said = decision_actions.decision_summary(decision)
    begin_at = decision.not_before if decision.action == RecoveryAction.WAIT and decision.not_before > now else None
    recovery_actions.restart(
        decision.attempt,
        author=RECOVERY_AUTHOR,
        why=f"Recovery: {said}",
        resume=resume_point(decision),
        begin_at=begin_at,
        asks=decision_actions.changed_job_fields(decision),
    )
    decision_actions.distrust_newer_checkpoints(decision)
    decision_actions.record_step(decision, Step.Kind.RESTARTED, said)
    transaction.on_commit(lambda: request_turn(decision.cluster_id))
    return "The job is back at its place in the queue" + (f", not before {begin_at:%H:%M:%S} UTC." if begin_at else ".")


def resume_point(decision: Decision) -> dict[str, Any]:
    if decision.checkpoint_step is None:
        return {}
    skip = {"skip": decision.skip} if decision.skip else {}
    return {"path": decision.checkpoint_path, "step": decision.checkpoint_step, **skip}


def _give_back_as_decided(decision: Decision) -> str:
    decision_actions.decline_job_recovery(decision, RECOVERY_AUTHOR)
    decision_actions.record_step(decision, Step.Kind.ENDED, decision.why)
    return "The job is what its end made of it; its owner is told."
