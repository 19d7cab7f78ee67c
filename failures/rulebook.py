"""The scanner of this moment: the shipped table and every adopted rule; and the filters likewise.

Compiling takes a second, so a process keeps the last scanner and makes another when the adopted rules are others.
"""

from __future__ import annotations

import threading
from functools import lru_cache

from failures.diagnosis import filters
from failures.diagnosis.filters import FilterRule
from failures.diagnosis.scan import Scanner, shipped
from failures.diagnosis.signatures import Signature
from failures.learning import proposing
from failures.models import LearnedRule, RuleKind

Row = tuple[str, str, str, str]

_turn = threading.Lock()


def signature(rule: LearnedRule) -> Signature:
    return proposing.as_signature(rule.name, rule.label, rule.pattern, rule.example)


def scanner() -> Scanner:
    rows = LearnedRule.objects.adopted().order_by("id").values_list("name", "label", "pattern", "example")
    wanted = tuple(rows)
    if not wanted:
        return shipped()
    with _turn:  # or two threads would compile the same
        return _compiled(wanted)


@lru_cache(maxsize=2)
def _compiled(rows: tuple[Row, ...]) -> Scanner:
    return proposing.scanner_with([proposing.as_signature(*row) for row in rows])


def filter_rules() -> tuple[FilterRule, ...]:
    rows = (
        LearnedRule.objects.adopted(RuleKind.FILTER).order_by("id").values_list("name", "pattern", "example", "origin")
    )
    learned = tuple(FilterRule(name=name, pattern=pattern, example=example, origin=origin)
                    for name, pattern, example, origin in rows)  # fmt: skip
    return (*filters.SHIPPED, *learned) if learned else filters.SHIPPED
