"""Replays a stored decision: what the current rules would decide from its inputs at that time. Read-only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from failures.models import Decision
from failures.recovery.rules.decide import decide
from failures.recovery.rules.resizing import RequestChange
from failures.recovery.rules.serialization import from_json
from failures.recovery.rules.values import FailureFacts, FailureHistory, RecoveryDecision, RecoveryPolicy


@dataclass(frozen=True, kw_only=True)
class ReplayDifference:
    field: str
    recorded: str
    current: str

    @property
    def is_same(self) -> bool:
        return self.recorded == self.current


def replay_decision(decision: Decision) -> RecoveryDecision:
    facts = from_json(FailureFacts, decision.facts)
    return decide(
        facts, from_json(FailureHistory, decision.history), from_json(RecoveryPolicy, decision.policy), decision.at
    )


def compare_with_replay(decision: Decision) -> list[ReplayDifference]:
    replayed = replay_decision(decision)
    base = replayed.checkpoint
    rows: tuple[tuple[str, Any, Any], ...] = (
        ("action", decision.action, replayed.action.value),
        ("mode", decision.mode, replayed.mode.value),
        ("reason", decision.why, replayed.why),
        ("drain", ", ".join(decision.drain), ", ".join(sorted(replayed.drain))),
        ("test", ", ".join(decision.test), ", ".join(sorted(replayed.test))),
        ("from step", _format_step(decision.checkpoint_step), _format_step(base.step if base else None)),
        ("skipped steps", _format_step_range(decision.skip), _format_step_range(replayed.skip)),
        ("changed request", _format_changes(decision.changes), _format_changes(replayed.change)),
        ("limits", "; ".join(why for _, why in decision.limits), "; ".join(why for _, why in replayed.limits)),
    )
    return [
        ReplayDifference(field=field, recorded=recorded or "nothing", current=current or "nothing")
        for field, recorded, current in rows
    ]


def _format_changes(changes: Iterable[RequestChange]) -> str:
    return "; ".join(f"{change.field} {change.after}" for change in changes)


def _format_step(step: int | None) -> str:
    return "" if step is None else str(step)


def _format_step_range(skip: Any) -> str:
    return f"{skip[0]} to {skip[1]}" if skip else ""
