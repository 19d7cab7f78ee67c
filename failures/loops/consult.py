"""Consult: a model is asked about failures that the rules are unsure of, and which frequent lines are routine.

Who is eligible   diagnoses of the last day whose bundle is stored, that nobody reviewed, and whose verdict is Unknown
                  or below 0.7; without an opinion yet. One at a time in the whole installation, the newest first.
What a turn does  marks the row as asked, asks without a transaction, writes the opinion or the abstention beside the
                  verdict. The verdict was stored before and stays: the model can enrich or abstain, never delay. The
                  log agent then proposes filter rules for shapes that are frequent there; they begin in shadow.
Failure story     Killed while asking: the mark is old after ten minutes and the row may be asked again. A server that
                  is down, slow or talks nonsense costs its budget once per row and leaves an abstention with the
                  reason. Without an endpoint nothing is eligible.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

import httpx
from django.db.models import Q

from failures.actions import rules as rule_actions
from failures.agent.answers import MalformedAnswer
from failures.agent.endpoint_settings import endpoint_from_settings
from failures.agent.model_client import Agent, AgentError, ModelEndpoint
from failures.agent.prompts import Precedent
from failures.diagnosis.labels import UNKNOWN
from failures.learning import rule_proposals
from failures.models import Case, Diagnosis, DiagnosisReview, ModelOpinion, RuleOrigin
from jobs.models import clock

log = logging.getLogger(__name__)

SURE_CONFIDENCE = 0.7
CONSULT_WINDOW = timedelta(days=1)
MAX_PRECEDENTS = 3
MIN_LIKENESS = 0.5


def consult_once(now: datetime, at: ModelEndpoint | None = None) -> int:
    """1 when a model was asked."""
    where = at or endpoint_from_settings()
    if not where.configured or _request_in_progress(now):
        return 0
    row = _next_unsure_diagnosis(now)
    if row is None or not rule_actions.claim_model_request(row, where.model, now):
        return 0
    hosts = frozenset(row.attempt.job.cluster.nodes.values_list("name", flat=True)[:10_000])
    with httpx.Client() as client:
        agent = Agent(where, client)
        outcome = agent.failure(row.bundle_text, precedents(row), hosts)
        rule_actions.record_opinion(row, outcome, clock.now())
        if outcome.root_cause:  # a model that abstained, or was away, is not asked for more
            _propose_filters(agent, row)
    return 1


def _propose_filters(agent: Agent, row: Diagnosis) -> None:
    shapes = [example for _, example in rule_proposals.routine_shapes(row.bundle_text)]
    if not shapes:
        return
    try:
        rules = agent.filters(shapes)
    except (AgentError, MalformedAnswer) as trouble:
        log.info("no filter rules from the model: %s", trouble)
        return
    for pattern, example in rules:
        if not rule_proposals.filter_error(pattern, example):
            rule_actions.propose_filter(row, rule_proposals.filter_name(pattern), pattern, example, RuleOrigin.MODEL)


def _request_in_progress(now: datetime) -> bool:
    return ModelOpinion.objects.filter(
        answered_at=None, asked_at__gte=now - rule_actions.MODEL_REQUEST_TIMEOUT
    ).exists()


def _next_unsure_diagnosis(now: datetime) -> Diagnosis | None:
    stored = Diagnosis.objects.filter(
        kept_at__gte=now - CONSULT_WINDOW, bundle__isnull=False, review=DiagnosisReview.NONE
    )
    unsure = stored.filter(Q(root_cause=UNKNOWN) | Q(confidence__lt=SURE_CONFIDENCE))
    open_rows = unsure.filter(Q(opinion=None) | Q(opinion__answered_at=None))
    return open_rows.select_related("attempt__job__cluster").order_by("-id").first()


def precedents(row: Diagnosis) -> list[Precedent]:
    case = Case.objects.filter(diagnosis=row).first()
    if case is None:
        return []
    return [case_as_precedent(one) for one in nearest_cases(case, MAX_PRECEDENTS)]


def nearest_cases(case: Case, most: int) -> list[Case]:
    """Confirmed cases of the same team: what another team's log said is not told to a model about this one."""
    team = case.diagnosis.attempt.job.team_id
    found = Case.objects.confirmed().filter(diagnosis__attempt__job__team=team).exclude(pk=case.pk)
    rows = found.nearest(case.vector).select_related("diagnosis__incident").defer("diagnosis__bundle")[:most]
    return [one for one in rows if one.likeness >= MIN_LIKENESS]


def case_as_precedent(one: Case) -> Precedent:
    first = one.diagnosis.first_line
    return Precedent(
        root_cause=one.diagnosis.root_cause, cured_by=one.cured_by or "not recorded",
        words=str(first["text"]) if first else "", likeness=one.likeness,
    )  # fmt: skip
