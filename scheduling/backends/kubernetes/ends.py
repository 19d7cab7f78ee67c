"""How a pod or the owner of pods ended, and which ends explain others. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from jobs.core.lifecycle import State

# Causes that say more about a failed job than its own "BackoffLimitExceeded" does
CAUSES = frozenset({State.OUT_OF_MEMORY, State.NODE_FAIL, State.PREEMPTED, State.BOOT_FAIL, State.TIMEOUT})


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEnd:
    state: State
    at: datetime | None
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""


def failure_order(end: PodEnd) -> tuple[bool, float]:
    """The first failure is the cause; one that explains itself goes before one that only has an exit code."""
    return (end.state not in CAUSES, end.at.timestamp() if end.at else float("inf"))
