"""What today's rules would do with the inputs of a stored decision, at the moment of that decision. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from failures.models import Decision
from failures.recovery import decide
from failures.recovery.resizing import Change
from failures.recovery.stored import from_json
from failures.recovery.values import Facts, History, Policy, Recovery


@dataclass(frozen=True, kw_only=True)
class Difference:
    what: str
    then: str
    today: str

    @property
    def is_same(self) -> bool:
        return self.then == self.today


def replayed(decision: Decision) -> Recovery:
    facts = from_json(Facts, decision.facts)
    return decide(facts, from_json(History, decision.history), from_json(Policy, decision.policy), decision.at)


def compared(decision: Decision) -> list[Difference]:
    found = replayed(decision)
    base = found.checkpoint
    rows: tuple[tuple[str, Any, Any], ...] = (
        ("action", decision.action, found.action.value),
        ("mode", decision.mode, found.mode.value),
        ("why", decision.why, found.why),
        ("drain", ", ".join(decision.drain), ", ".join(sorted(found.drain))),
        ("test", ", ".join(decision.test), ", ".join(sorted(found.test))),
        ("from step", _step(decision.checkpoint_step), _step(base.step if base else None)),
        ("leaves out steps", _span(decision.skip), _span(found.skip)),
        ("asks for", _asked(decision.changes), _asked(found.change)),
        ("held back by", "; ".join(why for _, why in decision.limits), "; ".join(why for _, why in found.limits)),
    )
    return [Difference(what=what, then=then or "nothing", today=today or "nothing") for what, then, today in rows]


def _asked(changes: Iterable[Change]) -> str:
    return "; ".join(f"{one.what} {one.becomes}" for one in changes)


def _step(step: int | None) -> str:
    return "" if step is None else str(step)


def _span(skip: Any) -> str:
    return f"{skip[0]} to {skip[1]}" if skip else ""
