"""How pods and their owners end, and which of several failures is the cause. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from jobs.core.lifecycle import State

if TYPE_CHECKING:
    from .pods import Pod

# Causes that say more about a failed job than its own "BackoffLimitExceeded" does
CAUSES = frozenset({State.OUT_OF_MEMORY, State.NODE_FAIL, State.PREEMPTED, State.BOOT_FAIL, State.TIMEOUT})
_NO_CAUSE = frozenset({State.COMPLETED, State.CANCELLED})


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


def pod_end(pod: Pod, lost_nodes: Collection[str]) -> PodEnd:
    """How a pod ended that has ended or was deleted."""
    if pod.end:
        return pod.end
    if pod.node in lost_nodes:
        return PodEnd(state=State.NODE_FAIL, at=pod.gone_at, reason=f"deleted after node {pod.node} was lost")
    return PodEnd(state=State.CANCELLED, at=pod.gone_at, reason="deleted")


def with_cause(end: PodEnd, pods: Iterable[Pod], lost_nodes: Collection[str]) -> PodEnd:
    """The end of a failed job with what its pods say about the cause."""
    failed = [pod for pod in pods if not pod.is_live and pod_end(pod, lost_nodes).state not in _NO_CAUSE]
    if not failed:
        return end
    first = min(failed, key=lambda pod: failure_order(pod_end(pod, lost_nodes)))
    cause = pod_end(first, lost_nodes)
    state = cause.state if cause.state in CAUSES and end.state == State.FAILED else end.state
    reason = "; ".join(text for text in (end.reason, f"{first.name}: {cause.reason}" if cause.reason else "") if text)
    return PodEnd(state=state, at=end.at, exit_code=cause.exit_code, signal=cause.signal, reason=reason)
