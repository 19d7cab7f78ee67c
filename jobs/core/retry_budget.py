"""Decides when a job must not be retried any more, from two counters over its attempts. Pure.

Retrying does not help a job that fails repeatedly with the same cause. The first counter counts failures with one cause
and without progress in between. The second has a lower limit and counts those on one node. Progress is a step beyond
the furthest step of all earlier attempts; it resets both counters. An attempt with unknown progress counts for neither,
and a stop by a user or the scheduler is not a failure. Failures with other causes in between do not reset the counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

MAX_RETRIES = 3
MAX_RETRIES_PER_NODE = 2


@dataclass(frozen=True, kw_only=True)
class PastAttempt:
    """How one attempt ended. `cause` is empty for an attempt that a user or the scheduler stopped."""

    cause: str
    nodes: frozenset[str] = frozenset()
    step: int | None = None  # the furthest completed step that is known
    logged_step: int | None = None  # the last step in its log, which may count anew in each epoch
    ran: timedelta | None = None


def failure_cause(*, label: str, state: str, exit_code: int | None, signal: int | None) -> str:
    """Return the diagnosis or, as long as there is none, how the command ended."""
    if label:
        return label
    if signal:
        return f"signal {signal}"
    return f"exit code {exit_code}" if exit_code else state


def crash_loop_reason(tries: Sequence[PastAttempt]) -> str:
    """Return why the last of these attempts (oldest first) must not be retried, or an empty string if it may be."""
    cause, furthest = tries[-1].cause if tries else "", 0
    repeats, required_node = 0, Counter[str]()
    if not cause:
        return ""
    for attempt in tries:
        # Unknown progress could mean progress, so the attempt counts for nothing
        if attempt.step is None:
            continue
        if attempt.step > furthest:
            furthest, repeats = attempt.step, 0
            required_node.clear()
        if attempt.cause == cause:
            repeats += 1
            required_node.update(attempt.nodes)
    # The same holds for the last attempt: without a known step there is no evidence of a loop
    if tries[-1].step is None:
        return ""
    return _crash_loop_text(cause, repeats, required_node, tries[-1].nodes)


def _crash_loop_text(cause: str, repeats: int, required_node: Counter[str], nodes: frozenset[str]) -> str:
    advice = "without progress in between. Fix the cause, then release the job."
    if repeats > MAX_RETRIES:
        return f"Held after {repeats} failures with cause {cause} {advice}"
    # In a job of several nodes, any of them may be faulty. Only a job on one node identifies the node
    for node in nodes if len(nodes) == 1 else ():
        if required_node[node] > MAX_RETRIES_PER_NODE:
            return f"Held after {required_node[node]} failures with cause {cause} on {node} {advice}"
    return ""
