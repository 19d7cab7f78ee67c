"""Consult: asks a language model about failures of which the rules are unsure, and which frequent lines are routine.

Eligible rows     Unreviewed diagnoses of the last day with a stored bundle, without an opinion, whose root cause is
                  Unknown or whose confidence is below 0.7. One at a time in the whole installation, newest first.
What a turn does  Marks the row as asked, calls the model outside a transaction, and stores its opinion or abstention
                  next to the verdict, which never changes or waits for the model. The agent then proposes filter rules
                  for frequent lines; they start as shadow rules.
Failure story     After a kill during the call, the mark expires in ten minutes and the row can be asked again. A server
                  that is down, slow or returns invalid answers costs its time budget once per row and leaves an
                  abstention with the reason. Without an endpoint, no row is eligible.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.db.models import Q

from acmeweb.common import http_client
from acmeweb.common.errors import MalformedResponse
from failures.actions import rules as rule_actions
from failures.agent.endpoint_settings import endpoint_from_settings
from failures.agent.model_client import Agent, AgentError, ModelEndpoint
from failures.agent.prompts import Precedent
from failures.diagnosis.labels import UNKNOWN
from failures.learning import rule_proposals
from failures.models import Diagnosis, DiagnosisReview, ModelOpinion, PastFailure, RuleOrigin
from jobs.models import clock

log = logging.getLogger(__name__)

SURE_CONFIDENCE = 0.7
CONSULT_WINDOW = timedelta(days=1)
MAX_PRECEDENTS = 3
MIN_LIKENESS = 0.5


def consult_once(now: datetime, endpoint: ModelEndpoint | None = None) -> int:
    """Ask the model about one diagnosis. Returns 1 if it did, else 0."""
    settings = endpoint or endpoint_from_settings()
    if not settings.configured or _request_in_progress(now):
        return 0
    row = _next_unsure_diagnosis(now)
    if row is None or not rule_actions.claim_model_request(row, settings.model, now):
        return 0
    hosts = frozenset(row.attempt.job.cluster.nodes.values_list("name", flat=True)[:10_000])
    with http_client.new_client() as client:
        agent = Agent(settings, client)
        outcome = agent.failure(row.bundle_text, precedents(row), hosts)
        rule_actions.record_opinion(row, outcome, clock.now())
        if outcome.root_cause:  # no further calls after an abstention or an error
            _propose_filters(agent, row)
    return 1


def _propose_filters(agent: Agent, row: Diagnosis) -> None:
    shapes = [example for _, example in rule_proposals.routine_shapes(row.bundle_text)]
    if not shapes:
        return
    try:
        rules = agent.filters(shapes)
    except (AgentError, MalformedResponse) as error:
        log.info("The model returned no filter rules: %s", error)
        return
    for pattern, example in rules:
        if not rule_proposals.filter_error(pattern, example):
            rule_actions.propose_filter(row, rule_proposals.filter_name(pattern), pattern, example, RuleOrigin.MODEL)


def _request_in_progress(now: datetime) -> bool:
    return ModelOpinion.objects.filter(
        answered_at=None, requested_at__gte=now - rule_actions.MODEL_REQUEST_TIMEOUT
    ).exists()


def _next_unsure_diagnosis(now: datetime) -> Diagnosis | None:
    stored = Diagnosis.objects.filter(
        bundle_stored_at__gte=now - CONSULT_WINDOW, bundle__isnull=False, review=DiagnosisReview.NONE
    )
    unsure = stored.filter(Q(root_cause=UNKNOWN) | Q(confidence__lt=SURE_CONFIDENCE))
    open_rows = unsure.filter(Q(opinion=None) | Q(opinion__answered_at=None))
    return open_rows.select_related("attempt__job__cluster").order_by("-id").first()


def precedents(row: Diagnosis) -> list[Precedent]:
    case = PastFailure.objects.filter(diagnosis=row).first()
    if case is None:
        return []
    return [case_as_precedent(near) for near in nearest_cases(case, MAX_PRECEDENTS)]


def nearest_cases(case: PastFailure, most: int) -> list[PastFailure]:
    """The nearest confirmed cases of the same team. Logs of other teams are never sent to the model."""
    team = case.diagnosis.attempt.job.team_id
    confirmed = PastFailure.objects.confirmed().filter(diagnosis__attempt__job__team=team).exclude(pk=case.pk)
    rows = confirmed.nearest(case.vector).select_related("diagnosis__incident").defer("diagnosis__bundle")[:most]
    return [near for near in rows if near.similarity >= MIN_LIKENESS]


def case_as_precedent(case: PastFailure) -> Precedent:
    first = case.diagnosis.first_line
    return Precedent(
        root_cause=case.diagnosis.root_cause, cured_by=case.cured_by or "not recorded",
        words=str(first["text"]) if first else "", similarity=case.similarity,
    )  # fmt: skip
