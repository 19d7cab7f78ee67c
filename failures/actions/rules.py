"""The only code that changes cases, learned rules and model opinions. Each function is one transaction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from acmeweb.common import live
from acmeweb.common.errors import StateConflict
from failures.actions.incidents import sanitize_for_storage
from failures.agent.answers import VoteResult
from failures.learning.embedding import EMBEDDING_VERSION, Vector
from failures.learning.rule_proposals import RuleProposal, RuleReplay
from failures.models import Diagnosis, LearnedRule, ModelOpinion, PastFailure, RuleHit, RuleKind, RuleOrigin, RuleState
from jobs.actions import journal
from jobs.actions.journal import Author

LEARNING_AUTHOR = Author(by="learning")
AGENT_AUTHOR = Author(by="agent")
MODEL_REQUEST_TIMEOUT = timedelta(minutes=10)  # longer than any time budget: the worker that asked is gone


def save_past_failure(row: Diagnosis, vector: Vector) -> None:
    """Store the case of a diagnosis. Idempotent."""
    PastFailure.objects.update_or_create(diagnosis=row, defaults={"vector": vector, "version": EMBEDDING_VERSION})


def mark_learned(row: Diagnosis, now: datetime) -> None:
    PastFailure.objects.filter(diagnosis=row).update(learned_at=now)


@transaction.atomic
def propose_rule(source: Diagnosis, proposal: RuleProposal, replay: RuleReplay) -> LearnedRule | None:
    """Add a shadow rule. None if the same rule was proposed before, even if it is retired."""
    detail = sanitize_for_storage(asdict(replay))
    rule, new = LearnedRule.objects.get_or_create(
        name=proposal.name,
        defaults={
            "label": proposal.label, "pattern": sanitize_for_storage(proposal.pattern),
            "example": sanitize_for_storage(proposal.example), "origin": RuleOrigin.LEARNED,
            "source": source, "owner_id": source.reviewed_by_id, "replay": detail,
        },
    )  # fmt: skip
    if new:
        why = f"Learned from a confirmed diagnosis of {rule.label}."
        _record_event("rule.proposed", LEARNING_AUTHOR, rule, why=why, detail=detail)
    return rule if new else None


@transaction.atomic
def propose_filter(source: Diagnosis, name: str, pattern: str, example: str, origin: RuleOrigin) -> LearnedRule | None:
    rule, new = LearnedRule.objects.get_or_create(
        name=name, defaults={"kind": RuleKind.FILTER, "pattern": sanitize_for_storage(pattern),
                             "example": sanitize_for_storage(example)[:600], "origin": origin, "source": source},
    )  # fmt: skip
    if new:
        _record_event("rule.proposed", LEARNING_AUTHOR, rule, why="Removes routine lines from evidence bundles.")
    return rule if new else None


def record_hits(row: Diagnosis, rules: Iterable[LearnedRule]) -> None:
    RuleHit.objects.bulk_create([RuleHit(rule=rule, diagnosis=row) for rule in rules], ignore_conflicts=True)


@transaction.atomic
def adopt(rule: LearnedRule, *, author: Author, now: datetime, why: str = "") -> None:
    """Adopt a shadow rule: from now on it is used in every diagnosis."""
    shadow = LearnedRule.objects.filter(pk=rule.pk, state=RuleState.SHADOW)
    if not shadow.update(state=RuleState.ADOPTED, adopted_at=now, adopted_by=author.by):
        raise _rule_conflict(rule, "adopted")
    _record_event("rule.adopted", author, rule, why=why, from_state=RuleState.SHADOW, to_state=RuleState.ADOPTED)


@transaction.atomic
def retire(rule: LearnedRule, *, author: Author, now: datetime, why: str = "") -> None:
    """Retire a rule. Existing diagnoses do not change."""
    previous_state = LearnedRule.objects.select_for_update().get(pk=rule.pk).state
    active = LearnedRule.objects.running().filter(pk=rule.pk)
    if not active.update(state=RuleState.RETIRED, retired_at=now, retired_by=author.by, retired_why=why[:1000]):
        raise _rule_conflict(rule, "retired")
    _record_event("rule.retired", author, rule, why=why, from_state=previous_state, to_state=RuleState.RETIRED)


def claim_model_request(row: Diagnosis, model: str, now: datetime) -> bool:
    """Whether this worker may ask the model about the row. Only one may, until it times out without an answer."""
    opinion, is_new = ModelOpinion.objects.get_or_create(diagnosis=row, defaults={"requested_at": now, "model": model})
    if is_new:
        return True
    stale = ModelOpinion.objects.filter(pk=opinion.pk, answered_at=None, requested_at__lt=now - MODEL_REQUEST_TIMEOUT)
    return bool(stale.update(requested_at=now, model=model))


@transaction.atomic
def record_opinion(row: Diagnosis, outcome: VoteResult, now: datetime) -> None:
    """Store the answer of the model, which may be an abstention. The verdict does not change."""
    fields: dict[str, Any] = sanitize_for_storage(asdict(outcome))
    if not ModelOpinion.objects.filter(diagnosis=row, answered_at=None).update(answered_at=now, **fields):
        return
    if outcome.root_cause:
        detail = {"votes": outcome.votes, "calls": outcome.calls, "lines": list(outcome.lines)}
        journal.job_event(
            "diagnosis.opinion", AGENT_AUTHOR, row.attempt.job, attempt=row.attempt, to_state=outcome.root_cause,
            why=sanitize_for_storage(outcome.why), detail=detail,
        ).save()  # fmt: skip
    live.publish_on_commit("failures", f"job:{row.attempt.job.public_id}")


def _rule_conflict(rule: LearnedRule, target_state: str) -> StateConflict:
    rule.refresh_from_db()
    return StateConflict(f"{rule} cannot be {target_state} because it is already {rule.state}")


def _record_event(
    what: str, author: Author, rule: LearnedRule, *, detail: dict[str, Any] | None = None, **fields: Any
) -> None:
    """Record the event on the job from which the rule was learned, because rules have no journal."""
    attempt = rule.source.attempt
    rule_detail = {"rule": rule.name, "pattern": rule.pattern} | (detail or {})
    journal.job_event(what, author, attempt.job, attempt=attempt, detail=rule_detail, **fields).save()
    rule.refresh_from_db()
    live.publish_on_commit("rules")
