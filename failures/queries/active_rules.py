"""The active scanner and filters: the shipped rules and all adopted ones.

Each process keeps the scanner and compiles the adopted rules again when they change. The shipped ones are loaded.
"""

from __future__ import annotations

import threading
from functools import lru_cache

from failures.diagnosis import filters
from failures.diagnosis.filters import FilterRule
from failures.diagnosis.scan import Scanner, shipped_scanner
from failures.diagnosis.signatures import Signature
from failures.learning import rule_proposals
from failures.models import LearnedRule, RuleKind

RuleRow = tuple[str, str, str, str]

_compile_lock = threading.Lock()


def rule_signature(rule: LearnedRule) -> Signature:
    return rule_proposals.as_signature(rule.name, rule.label, rule.pattern, rule.example)


def active_scanner() -> Scanner:
    rows = LearnedRule.objects.adopted().order_by("id").values_list("name", "label", "pattern", "example")
    adopted = tuple(rows)
    if not adopted:
        return shipped_scanner()
    with _compile_lock:  # so that two threads do not compile the same rules
        return _compile_scanner(adopted)


@lru_cache(maxsize=2)
def _compile_scanner(rows: tuple[RuleRow, ...]) -> Scanner:
    return rule_proposals.scanner_with_rules([rule_proposals.as_signature(*row) for row in rows])


def active_filter_rules() -> tuple[FilterRule, ...]:
    rows = (
        LearnedRule.objects.adopted(RuleKind.FILTER).order_by("id").values_list("name", "pattern", "example", "origin")
    )
    learned = tuple(FilterRule(name=name, pattern=pattern, example=example, origin=origin)
                    for name, pattern, example, origin in rows)  # fmt: skip
    return (*filters.SHIPPED_FILTERS, *learned) if learned else filters.SHIPPED_FILTERS
