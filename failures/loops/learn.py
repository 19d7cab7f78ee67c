"""Learn: turns diagnoses into cases and rule hits, and confirmed diagnoses into rule proposals.

Eligible rows     Diagnoses with a stored bundle and no case of this version, oldest first; then cases that were
                  reviewed since they were last used for learning.
What a turn does  A case gets its vector, the hits of all active rules, and filter rules for its frequent lines. A
                  reviewed case proposes at most one rule, which is replayed against all stored bundles and dropped if
                  it would worsen a confirmed verdict. A shadow rule with enough right hits and no wrong one is adopted
                  if ACME_ADOPT_RULES_AFTER is set (0: rules are adopted manually).
Failure story     After a kill, the case or its `learned_at` is missing and the row is processed again; hits and
                  proposals are unique, so nothing is duplicated. A bundle that fails is logged and marked, and the next
                  one is processed. Rules are never modified after they were proposed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import datetime

from django.conf import settings
from django.db.models import F, Q

from acmeweb.common.errors import StateConflict
from failures.actions import rules as rule_actions
from failures.diagnosis import engine
from failures.diagnosis.scan import Scanner
from failures.learning import embedding, rule_proposals
from failures.learning.rule_proposals import StoredBundle
from failures.models import Diagnosis, DiagnosisReview, LearnedRule, RuleKind, RuleOrigin, RuleState
from failures.queries import active_rules

log = logging.getLogger(__name__)

MAX_CASES = 50
MAX_LESSONS = 3  # each replays all stored bundles
MAX_PAST_BUNDLES = 5000
MAX_FILTERS = 3  # per bundle


def learn_once(now: datetime) -> int:
    """Create cases, learn rules and adopt proven ones. Returns the number of rows processed."""
    done = sum(_process_row_safely(_create_case, row, now) for row in _diagnoses_without_case())
    done += sum(_process_row_safely(_learn_rule, row, now) for row in _diagnoses_to_learn_from())
    return done + _adopt_proven_rules(now)


def _diagnoses_without_case() -> list[Diagnosis]:
    stored = Diagnosis.objects.filter(bundle_stored_at__isnull=False, bundle__isnull=False)
    return list(stored.exclude(past_failure__version=embedding.EMBEDDING_VERSION).order_by("id")[:MAX_CASES])


def _diagnoses_to_learn_from() -> list[Diagnosis]:
    reviewed = Diagnosis.objects.exclude(review=DiagnosisReview.NONE).filter(past_failure__isnull=False)
    fresh = reviewed.filter(Q(past_failure__learned_at=None) | Q(past_failure__learned_at__lt=F("reviewed_at")))
    return list(fresh.select_related("attempt__job").order_by("reviewed_at")[:MAX_LESSONS])


def _process_row_safely(work: Callable[[Diagnosis, datetime], None], row: Diagnosis, now: datetime) -> bool:
    """Process one row. Errors are logged and the row is marked, so that other rows are not affected."""
    try:
        work(row, now)
    except Exception:
        log.exception("Learning from diagnosis %s failed", row.pk)
        if work is _create_case:  # an empty case, so that the row is not processed forever
            rule_actions.save_past_failure(row, embedding.embed_bundle(""))
        rule_actions.mark_learned(row, now)
        return False
    return True


def _create_case(row: Diagnosis, now: datetime) -> None:
    text = row.bundle_text
    running = list(LearnedRule.objects.running().filter(kind=RuleKind.SIGNATURE))
    rule_actions.record_hits(row, rules_that_hit(running, text))
    for pattern, example in rule_proposals.routine_shapes(text)[:MAX_FILTERS]:
        rule_actions.propose_filter(row, rule_proposals.filter_name(pattern), pattern, example, RuleOrigin.FREQUENCY)
    rule_actions.save_past_failure(row, embedding.embed_bundle(text))


def rules_that_hit(rules: list[LearnedRule], text: str) -> list[LearnedRule]:
    if not rules:
        return []
    indices = {index for _, index in Scanner([active_rules.rule_signature(rule) for rule in rules]).hits(text.encode())}
    return [rules[index] for index in sorted(indices)]


def _learn_rule(row: Diagnosis, now: datetime) -> None:
    past = list(past_bundles())
    bundle = StoredBundle(key=row.pk, cause=row.root_cause, bundle=row.bundle_text)
    lines = [line["text"] for line in row.evidence if line.get("text")]
    lines = lines if row.review == DiagnosisReview.CONFIRMED else []
    proposal = rule_proposals.propose_rule(bundle, lines, past)
    if proposal is not None and row.root_cause != _cause_by_active_rules(row):
        signature = rule_proposals.as_signature(proposal.name, proposal.label, proposal.pattern, proposal.example)
        error = rule_proposals.signature_error(signature)
        replay = rule_proposals.replay_rule(signature, past) if not error else None
        if replay and replay.accepted and (rule := rule_actions.propose_rule(row, proposal, replay)):
            for other in past:
                if rules_that_hit([rule], other.bundle):
                    rule_actions.record_hits(Diagnosis(pk=other.key), [rule])
    rule_actions.mark_learned(row, now)


def _cause_by_active_rules(row: Diagnosis) -> str:
    """The root cause that the active rules find in the bundle. If it is right, no further rule is needed."""
    return engine.diagnose_text(row.bundle_text, scanner=active_rules.active_scanner()).root_cause


def past_bundles() -> Iterator[StoredBundle]:
    """The stored bundles, newest first. Limited, because a replay reads all of them."""
    rows = Diagnosis.objects.filter(bundle__isnull=False, bundle_stored_at__isnull=False).order_by("-id")[
        :MAX_PAST_BUNDLES
    ]
    for row in rows.only("id", "root_cause", "review", "bundle").iterator(200):
        yield StoredBundle(
            key=row.pk, cause=row.root_cause, bundle=row.bundle_text, confirmed=row.review != DiagnosisReview.NONE
        )


def _adopt_proven_rules(now: datetime) -> int:
    threshold = settings.ACME_ADOPT_RULES_AFTER
    if not threshold:
        return 0
    shadows = LearnedRule.objects.filter(state=RuleState.SHADOW, kind=RuleKind.SIGNATURE).with_hit_counts()
    adopted = 0
    for rule in shadows.filter(right__gte=threshold, wrong=0):
        try:
            rule_actions.adopt(
                rule, author=rule_actions.LEARNING_AUTHOR, now=now, why=f"All {rule.right} reviewed hits were right."
            )
            adopted += 1
        except StateConflict as conflict:
            log.info("%s", conflict)
    return adopted
