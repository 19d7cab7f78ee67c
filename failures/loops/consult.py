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

from failures import rule_actions
from failures.agent.answers import Malformed
from failures.agent.asking import Agent, AgentError, Endpoint
from failures.agent.configured import endpoint
from failures.agent.prompts import Precedent
from failures.diagnosis.labels import UNKNOWN
from failures.learning import proposing
from failures.models import Case, Diagnosis, ModelOpinion, Origin, Review
from jobs import clock

log = logging.getLogger(__name__)

SURE = 0.7
LATELY = timedelta(days=1)
MOST_PRECEDENTS = 3
LIKE_ENOUGH = 0.5


def consult_once(now: datetime, at: Endpoint | None = None) -> int:
    """1 when a model was asked."""
    where = at or endpoint()
    if not where.configured or _somebody_asks(now):
        return 0
    row = _unsure(now)
    if row is None or not rule_actions.ask(row, where.model, now):
        return 0
    hosts = frozenset(row.attempt.job.cluster.nodes.values_list("name", flat=True)[:10_000])
    with httpx.Client() as client:
        agent = Agent(where, client)
        outcome = agent.failure(row.bundle_text, precedents(row), hosts)
        rule_actions.answered(row, outcome, clock.now())
        if outcome.root_cause:  # a model that abstained, or was away, is not asked for more
            _filters(agent, row)
    return 1


def _filters(agent: Agent, row: Diagnosis) -> None:
    shapes = [example for _, example in proposing.routine(row.bundle_text)]
    if not shapes:
        return
    try:
        rules = agent.filters(shapes)
    except (AgentError, Malformed) as trouble:
        log.info("no filter rules from the model: %s", trouble)
        return
    for pattern, example in rules:
        if not proposing.trouble_with_filter(pattern, example):
            rule_actions.propose_filter(row, proposing.filter_name(pattern), pattern, example, Origin.MODEL)


def _somebody_asks(now: datetime) -> bool:
    return ModelOpinion.objects.filter(answered_at=None, asked_at__gte=now - rule_actions.ASK_AGAIN).exists()


def _unsure(now: datetime) -> Diagnosis | None:
    stored = Diagnosis.objects.filter(kept_at__gte=now - LATELY, bundle__isnull=False, review=Review.NONE)
    unsure = stored.filter(Q(root_cause=UNKNOWN) | Q(confidence__lt=SURE))
    open_rows = unsure.filter(Q(opinion=None) | Q(opinion__answered_at=None))
    return open_rows.select_related("attempt__job__cluster").order_by("-id").first()


def precedents(row: Diagnosis) -> list[Precedent]:
    case = Case.objects.filter(diagnosis=row).first()
    if case is None:
        return []
    return [as_precedent(one) for one in near(case, MOST_PRECEDENTS)]


def near(case: Case, most: int) -> list[Case]:
    """Confirmed cases of the same team: what another team's log said is not told to a model about this one."""
    team = case.diagnosis.attempt.job.team_id
    found = Case.objects.confirmed().filter(diagnosis__attempt__job__team=team).exclude(pk=case.pk)
    rows = found.nearest(case.vector).select_related("diagnosis__incident").defer("diagnosis__bundle")[:most]
    return [one for one in rows if one.likeness >= LIKE_ENOUGH]


def as_precedent(one: Case) -> Precedent:
    first = one.diagnosis.first_line
    return Precedent(
        root_cause=one.diagnosis.root_cause, cured_by=one.cured_by or "not recorded",
        words=str(first["text"]) if first else "", likeness=one.likeness,
    )  # fmt: skip
