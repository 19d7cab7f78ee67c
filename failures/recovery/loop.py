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

from django.db.models import Exists, OuterRef, Q, QuerySet

from failures.detection.findings import Severity
from failures.models import Anomaly, Decision, DecisionState, Diagnosis, StackDump
from failures.models.decision import OPEN_STATES
from failures.recovery import decisions, reads, steps
from failures.recovery.rules.decide import decide
from failures.recovery.rules.remedies import AutomationMode
from failures.recovery.rules.values import RecoveryDecision
from failures.recovery.steps import StartNodeTest
from jobs.actions.one_row import ORDINARY_ERRORS
from jobs.models import Attempt, ClusterMode

log = logging.getLogger(__name__)

DECISION_WINDOW = timedelta(hours=1)
MAX_DECISIONS_PER_TURN = 50
MAX_DIAGNOSES_PER_TURN = 500  # more than decisions, because some may fail to be decided
DECIDE_BUDGET_S, CARRY_OUT_BUDGET_S = 10.0, 15.0  # together well below the time limit of the loop


def decide_and_recover_once(
    now: datetime,
    start_test: StartNodeTest,
    *,
    most: int = MAX_DECISIONS_PER_TURN,
    monotonic: Callable[[], float] = time.monotonic,
) -> int:
    """Return how many decisions were made or advanced; at most `most` of each kind, and those that fit in the time."""
    ends_at = monotonic() + DECIDE_BUDGET_S
    done = _decide_diagnoses(now, most, lambda: monotonic() < ends_at) + _decide_anomalies(now, most)
    due = Decision.objects.due(now).select_related("attempt__job__cluster", "cluster", "anomaly").order_by("due_at")
    ends_at = monotonic() + CARRY_OUT_BUDGET_S
    for decision in due[:most]:
        if monotonic() >= ends_at:
            break
        done += steps.advance_decision(decision, start_test, now)
    return done + decisions.expire_proposals(now)


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
    earlier = Decision.objects.filter(diagnosis=OuterRef("pk"))
    withdrawn = Exists(earlier.filter(state=DecisionState.WITHDRAWN))
    recent = Q(failed_at__gte=now - DECISION_WINDOW) | Q(withdrawn, reviewed_at__gte=now - DECISION_WINDOW)
    rows = Diagnosis.objects.judged().filter(recent, ~Exists(earlier.not_withdrawn()), incident__isnull=False)
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
        if isinstance(row, Diagnosis) and reads.awaits_telemetry(row, now):
            return False
        inputs = reads.recovery_inputs(row, now)
        decision = decide(inputs.facts, inputs.history, inputs.policy, now)
        if row.attempt is not None:
            decision = _limit_to_possible(row.attempt, decision)
        return decisions.record_decision(row, inputs, decision, now) is not None
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
