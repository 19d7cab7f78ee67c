"""Learn: what the last failures said becomes cases and hits, and confirmed ones propose rules.

Who is eligible   diagnoses whose bundle is stored and that have no case of this version yet, oldest first; then cases
                  that a person reviewed after they were last learned from.
What a turn does  a case gets its vector, the hits of all running rules, and filter rules for its frequent lines;
                  a reviewed case proposes at most one rule,
                  which is replayed against all stored bundles and thrown away when it would change a confirmed verdict
                  for the worse. A shadow rule with enough hits that were right, and none that was wrong, is adopted
                  when the policy says so (ACME_ADOPT_RULES_AFTER; 0: by hand only).
Failure story     Killed anywhere: the case or the mark `learned_at` is missing and the row is taken again; hits and
                  proposals are unique, so twice is once. A bundle that breaks its reader is logged and marked, and
                  the next one is taken. Rules are proposed, never changed: what people see was made by one turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import datetime

from celery.exceptions import SoftTimeLimitExceeded
from django.conf import settings
from django.db.models import F, Q

from failures.actions import rules as rule_actions
from failures.actions.incidents import FailureStateConflict
from failures.diagnosis import engine
from failures.diagnosis.scan import Scanner
from failures.learning import embedding, rule_proposals
from failures.learning.rule_proposals import StoredBundle
from failures.models import Diagnosis, DiagnosisReview, LearnedRule, RuleKind, RuleOrigin, RuleState
from failures.queries import active_rules

log = logging.getLogger(__name__)

MAX_CASES = 50
MAX_LESSONS = 3  # each replays all history
MAX_PAST_BUNDLES = 5000
MAX_FILTERS = 3  # of one bundle


def learn_once(now: datetime) -> int:
    """How many cases were made and lessons drawn."""
    done = sum(_process_row_safely(_create_case, row, now) for row in _diagnoses_without_case())
    done += sum(_process_row_safely(_learn_rule, row, now) for row in _diagnoses_to_learn_from())
    return done + _adopt_proven_rules(now)


def _diagnoses_without_case() -> list[Diagnosis]:
    stored = Diagnosis.objects.filter(kept_at__isnull=False, bundle__isnull=False)
    return list(stored.exclude(case__version=embedding.EMBEDDING_VERSION).order_by("id")[:MAX_CASES])


def _diagnoses_to_learn_from() -> list[Diagnosis]:
    reviewed = Diagnosis.objects.exclude(review=DiagnosisReview.NONE).filter(case__isnull=False)
    fresh = reviewed.filter(Q(case__learned_at=None) | Q(case__learned_at__lt=F("reviewed_at")))
    return list(fresh.select_related("attempt__job").order_by("reviewed_at")[:MAX_LESSONS])


def _process_row_safely(work: Callable[[Diagnosis, datetime], None], row: Diagnosis, now: datetime) -> bool:
    """The row boundary."""
    try:
        work(row, now)
    except SoftTimeLimitExceeded:
        raise
    except Exception:
        log.exception("nothing could be learned from diagnosis %s", row.pk)
        if work is _create_case:  # a case that is near to nothing, so that the row is not taken for ever
            rule_actions.save_case(row, embedding.embed_bundle(""))
        rule_actions.mark_learned(row, now)
        return False
    return True


def _create_case(row: Diagnosis, now: datetime) -> None:
    text = row.bundle_text
    running = list(LearnedRule.objects.running().filter(kind=RuleKind.SIGNATURE))
    rule_actions.record_hits(row, rules_that_hit(running, text))
    for pattern, example in rule_proposals.routine_shapes(text)[:MAX_FILTERS]:
        rule_actions.propose_filter(row, rule_proposals.filter_name(pattern), pattern, example, RuleOrigin.FREQUENCY)
    rule_actions.save_case(row, embedding.embed_bundle(text))


def rules_that_hit(rules: list[LearnedRule], text: str) -> list[LearnedRule]:
    if not rules:
        return []
    seen = {index for _, index in Scanner([active_rules.rule_signature(rule) for rule in rules]).hits(text.encode())}
    return [rules[index] for index in sorted(seen)]


def _learn_rule(row: Diagnosis, now: datetime) -> None:
    past = list(past_bundles())
    own = StoredBundle(key=row.pk, cause=row.root_cause, bundle=row.bundle_text)
    shown = [one["text"] for one in row.evidence if one.get("text")] if row.review == DiagnosisReview.CONFIRMED else []
    proposal = rule_proposals.propose_rule(own, shown, past)
    if proposal is not None and row.root_cause != _cause_by_active_rules(row):
        signature = rule_proposals.as_signature(proposal.name, proposal.label, proposal.pattern, proposal.example)
        trouble = rule_proposals.signature_error(signature)
        replay = rule_proposals.replay_rule(signature, past) if not trouble else None
        if replay and replay.accepted and (rule := rule_actions.propose_rule(row, proposal, replay)):
            for one in past:
                if rules_that_hit([rule], one.bundle):
                    rule_actions.record_hits(Diagnosis(pk=one.key), [rule])
    rule_actions.mark_learned(row, now)


def _cause_by_active_rules(row: Diagnosis) -> str:
    """What the rules of today say by the log alone: a cause that they find already needs no further rule."""
    return engine.diagnose_text(row.bundle_text, scanner=active_rules.active_scanner()).root_cause


def past_bundles() -> Iterator[StoredBundle]:
    """All stored bundles, the newest first; bounded, since each is read again for a replay."""
    rows = Diagnosis.objects.filter(bundle__isnull=False, kept_at__isnull=False).order_by("-id")[:MAX_PAST_BUNDLES]
    for row in rows.only("id", "root_cause", "review", "bundle").iterator(200):
        yield StoredBundle(
            key=row.pk, cause=row.root_cause, bundle=row.bundle_text, confirmed=row.review != DiagnosisReview.NONE
        )


def _adopt_proven_rules(now: datetime) -> int:
    least = settings.ACME_ADOPT_RULES_AFTER
    if not least:
        return 0
    shadows = LearnedRule.objects.filter(state=RuleState.SHADOW, kind=RuleKind.SIGNATURE).counted()
    adopted = 0
    for rule in shadows.filter(right__gte=least, wrong=0):
        try:
            rule_actions.adopt(
                rule, author=rule_actions.LEARNING_AUTHOR, now=now, why=f"{rule.right} hits, all of them right"
            )
            adopted += 1
        except FailureStateConflict as moved:
            log.info("%s", moved)
    return adopted
