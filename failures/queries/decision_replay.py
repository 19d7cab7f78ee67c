"""What today's rules would do with the inputs of a stored decision, at the moment of that decision. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from failures.models import Decision
from failures.recovery import decide
from failures.recovery.resizing import RequestChange
from failures.recovery.serialization import from_json
from failures.recovery.values import FailureFacts, FailureHistory, RecoveryDecision, RecoveryPolicy


@dataclass(frozen=True, kw_only=True)
class ReplayDifference:
    what: str
    then: str
    today: str

    @property
    def is_same(self) -> bool:
        return self.then == self.today


def replay_decision(decision: Decision) -> RecoveryDecision:
    facts = from_json(FailureFacts, decision.facts)
    return decide(
        facts, from_json(FailureHistory, decision.history), from_json(RecoveryPolicy, decision.policy), decision.at
    )


def compare_with_replay(decision: Decision) -> list[ReplayDifference]:
    found = replay_decision(decision)
    base = found.checkpoint
    rows: tuple[tuple[str, Any, Any], ...] = (
        ("action", decision.action, found.action.value),
        ("mode", decision.mode, found.mode.value),
        ("why", decision.why, found.why),
        ("drain", ", ".join(decision.drain), ", ".join(sorted(found.drain))),
        ("test", ", ".join(decision.test), ", ".join(sorted(found.test))),
        ("from step", _format_step(decision.checkpoint_step), _format_step(base.step if base else None)),
        ("leaves out steps", _format_step_range(decision.skip), _format_step_range(found.skip)),
        ("asks for", _format_changes(decision.changes), _format_changes(found.change)),
        ("held back by", "; ".join(why for _, why in decision.limits), "; ".join(why for _, why in found.limits)),
    )
    return [ReplayDifference(what=what, then=then or "nothing", today=today or "nothing") for what, then, today in rows]


def _format_changes(changes: Iterable[RequestChange]) -> str:
    return "; ".join(f"{one.what} {one.becomes}" for one in changes)


def _format_step(step: int | None) -> str:
    return "" if step is None else str(step)


def _format_step_range(skip: Any) -> str:
    return f"{skip[0]} to {skip[1]}" if skip else ""
