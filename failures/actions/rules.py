"""The only code that changes what was learned: cases, rules, opinions. Each verb is one transaction with its Event."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from acmeweb.common import live
from failures.actions.incidents import FailureStateConflict, sanitize_for_storage
from failures.agent.answers import VoteResult
from failures.learning.embedding import EMBEDDING_VERSION, Vector
from failures.learning.rule_proposals import RuleProposal, RuleReplay
from failures.models import Case, Diagnosis, LearnedRule, ModelOpinion, RuleHit, RuleKind, RuleOrigin, RuleState
from jobs.actions import journal
from jobs.actions.journal import Author

LEARNING_AUTHOR = Author(by="learning")
AGENT_AUTHOR = Author(by="agent")
MODEL_REQUEST_TIMEOUT = timedelta(minutes=10)  # longer than any budget of time: who asked then is dead


def save_case(row: Diagnosis, vector: Vector) -> None:
    """The case of a diagnosis. Twice is once."""
    Case.objects.update_or_create(diagnosis=row, defaults={"vector": vector, "version": EMBEDDING_VERSION})


def mark_learned(row: Diagnosis, now: datetime) -> None:
    Case.objects.filter(diagnosis=row).update(learned_at=now)


@transaction.atomic
def propose_rule(source: Diagnosis, proposal: RuleProposal, replay: RuleReplay) -> LearnedRule | None:
    """Into the shadow; None when this very rule was proposed before, retired or not."""
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
        _record_event("rule.proposed", LEARNING_AUTHOR, rule, why=f"learned for {rule.label}", detail=detail)
    return rule if new else None


@transaction.atomic
def propose_filter(source: Diagnosis, name: str, pattern: str, example: str, origin: RuleOrigin) -> LearnedRule | None:
    rule, new = LearnedRule.objects.get_or_create(
        name=name, defaults={"kind": RuleKind.FILTER, "pattern": sanitize_for_storage(pattern),
                             "example": sanitize_for_storage(example)[:600], "origin": origin, "source": source},
    )  # fmt: skip
    if new:
        _record_event("rule.proposed", LEARNING_AUTHOR, rule, why="drops lines that are routine")
    return rule if new else None


def record_hits(row: Diagnosis, rules: Iterable[LearnedRule]) -> None:
    RuleHit.objects.bulk_create([RuleHit(rule=rule, diagnosis=row) for rule in rules], ignore_conflicts=True)


@transaction.atomic
def adopt(rule: LearnedRule, *, author: Author, now: datetime, why: str = "") -> None:
    """From now on it counts in every verdict."""
    moved = LearnedRule.objects.filter(pk=rule.pk, state=RuleState.SHADOW)
    if not moved.update(state=RuleState.ADOPTED, adopted_at=now, adopted_by=author.by):
        raise _rule_conflict(rule, "adopted")
    _record_event("rule.adopted", author, rule, why=why, from_state=RuleState.SHADOW, to_state=RuleState.ADOPTED)


@transaction.atomic
def retire(rule: LearnedRule, *, author: Author, now: datetime, why: str = "") -> None:
    """It counts no more; verdicts that it gave stay as they are."""
    before = LearnedRule.objects.select_for_update().get(pk=rule.pk).state
    moved = LearnedRule.objects.running().filter(pk=rule.pk)
    if not moved.update(state=RuleState.RETIRED, retired_at=now, retired_by=author.by, retired_why=why[:1000]):
        raise _rule_conflict(rule, "retired")
    _record_event("rule.retired", author, rule, why=why, from_state=before, to_state=RuleState.RETIRED)


def claim_model_request(row: Diagnosis, model: str, now: datetime) -> bool:
    """Is it ours to ask the model about this row? At most one asks, and again only when the first one died over it."""
    opinion, new = ModelOpinion.objects.get_or_create(diagnosis=row, defaults={"asked_at": now, "model": model})
    if new:
        return True
    stale = ModelOpinion.objects.filter(pk=opinion.pk, answered_at=None, asked_at__lt=now - MODEL_REQUEST_TIMEOUT)
    return bool(stale.update(asked_at=now, model=model))


@transaction.atomic
def record_opinion(row: Diagnosis, outcome: VoteResult, now: datetime) -> None:
    """An enrichment or an abstention; the verdict is not touched."""
    fields: dict[str, Any] = sanitize_for_storage(asdict(outcome))
    if not ModelOpinion.objects.filter(diagnosis=row, answered_at=None).update(answered_at=now, **fields):
        return
    if outcome.root_cause:
        detail = {"votes": outcome.votes, "asked": outcome.asked, "lines": list(outcome.lines)}
        journal.job_event(
            "diagnosis.opinion", AGENT_AUTHOR, row.attempt.job, attempt=row.attempt, to_state=outcome.root_cause,
            why=sanitize_for_storage(outcome.why), detail=detail,
        ).save()  # fmt: skip
    live.publish_on_commit("failures", f"job:{row.attempt.job.public_id}")


def _rule_conflict(rule: LearnedRule, wanted: str) -> FailureStateConflict:
    rule.refresh_from_db()
    return FailureStateConflict(f"{rule} cannot be {wanted}: it is {rule.state} already")


def _record_event(
    what: str, author: Author, rule: LearnedRule, *, detail: dict[str, Any] | None = None, **fields: Any
) -> None:
    """Beside the job that taught it: a rule has no journal of its own."""
    attempt = rule.source.attempt
    known = {"rule": rule.name, "pattern": rule.pattern} | (detail or {})
    journal.job_event(what, author, attempt.job, attempt=attempt, detail=known, **fields).save()
    rule.refresh_from_db()
    live.publish_on_commit("rules")
