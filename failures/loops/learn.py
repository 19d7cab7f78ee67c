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

from failures import rule_actions, rulebook
from failures.actions import Moved
from failures.diagnosis import engine
from failures.diagnosis.scan import Scanner
from failures.learning import embedding, proposing
from failures.learning.proposing import Past
from failures.models import Diagnosis, LearnedRule, Origin, Review, RuleKind, RuleState

log = logging.getLogger(__name__)

MOST_CASES = 50
MOST_LESSONS = 3  # each replays all history
HISTORY = 5000
MOST_FILTERS = 3  # of one bundle


def learn_once(now: datetime) -> int:
    """How many cases were made and lessons drawn."""
    done = sum(_safely(_remember, row, now) for row in _unknown_cases())
    done += sum(_safely(_lesson, row, now) for row in _lessons())
    return done + _adopt_proven(now)


def _unknown_cases() -> list[Diagnosis]:
    stored = Diagnosis.objects.filter(kept_at__isnull=False, bundle__isnull=False)
    return list(stored.exclude(case__version=embedding.VERSION).order_by("id")[:MOST_CASES])


def _lessons() -> list[Diagnosis]:
    reviewed = Diagnosis.objects.exclude(review=Review.NONE).filter(case__isnull=False)
    fresh = reviewed.filter(Q(case__learned_at=None) | Q(case__learned_at__lt=F("reviewed_at")))
    return list(fresh.select_related("attempt__job").order_by("reviewed_at")[:MOST_LESSONS])


def _safely(work: Callable[[Diagnosis, datetime], None], row: Diagnosis, now: datetime) -> bool:
    """The row boundary."""
    try:
        work(row, now)
    except SoftTimeLimitExceeded:
        raise
    except Exception:
        log.exception("nothing could be learned from diagnosis %s", row.pk)
        if work is _remember:  # a case that is near to nothing, so that the row is not taken for ever
            rule_actions.remember(row, embedding.embedded(""))
        rule_actions.mark_learned(row, now)
        return False
    return True


def _remember(row: Diagnosis, now: datetime) -> None:
    text = row.bundle_text
    running = list(LearnedRule.objects.running().filter(kind=RuleKind.SIGNATURE))
    rule_actions.count_hits(row, hit_by(running, text))
    for pattern, example in proposing.routine(text)[:MOST_FILTERS]:
        rule_actions.propose_filter(row, proposing.filter_name(pattern), pattern, example, Origin.FREQUENCY)
    rule_actions.remember(row, embedding.embedded(text))


def hit_by(rules: list[LearnedRule], text: str) -> list[LearnedRule]:
    if not rules:
        return []
    seen = {index for _, index in Scanner([rulebook.signature(rule) for rule in rules]).hits(text.encode())}
    return [rules[index] for index in sorted(seen)]


def _lesson(row: Diagnosis, now: datetime) -> None:
    past = list(history())
    own = Past(key=row.pk, cause=row.root_cause, bundle=row.bundle_text)
    shown = [one["text"] for one in row.evidence if one.get("text")] if row.review == Review.CONFIRMED else []
    proposal = proposing.proposed(own, shown, past)
    if proposal is not None and row.root_cause != _said_by_rules(row):
        signature = proposing.as_signature(proposal.name, proposal.label, proposal.pattern, proposal.example)
        trouble = proposing.trouble_with(signature)
        replay = proposing.replayed(signature, past) if not trouble else None
        if replay and replay.accepted and (rule := rule_actions.propose(row, proposal, replay)):
            for one in past:
                if hit_by([rule], one.bundle):
                    rule_actions.count_hits(Diagnosis(pk=one.key), [rule])
    rule_actions.mark_learned(row, now)


def _said_by_rules(row: Diagnosis) -> str:
    """What the rules of today say by the log alone: a cause that they find already needs no further rule."""
    return engine.diagnose_text(row.bundle_text, scanner=rulebook.scanner()).root_cause


def history() -> Iterator[Past]:
    """All stored bundles, the newest first; bounded, since each is read again for a replay."""
    rows = Diagnosis.objects.filter(bundle__isnull=False, kept_at__isnull=False).order_by("-id")[:HISTORY]
    for row in rows.only("id", "root_cause", "review", "bundle").iterator(200):
        yield Past(key=row.pk, cause=row.root_cause, bundle=row.bundle_text, confirmed=row.review != Review.NONE)


def _adopt_proven(now: datetime) -> int:
    least = settings.ACME_ADOPT_RULES_AFTER
    if not least:
        return 0
    shadows = LearnedRule.objects.filter(state=RuleState.SHADOW, kind=RuleKind.SIGNATURE).counted()
    adopted = 0
    for rule in shadows.filter(right__gte=least, wrong=0):
        try:
            rule_actions.adopt(rule, author=rule_actions.LEARNER, now=now, why=f"{rule.right} hits, all of them right")
            adopted += 1
        except Moved as moved:
            log.info("%s", moved)
    return adopted
