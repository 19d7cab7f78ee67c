"""When to stop trying again: two ledgers over the attempts of one job. Pure.

A job that ends again and again for the same cause gets nowhere by itself. The first ledger counts ends of one cause
without progress between them; the second, which is shorter, those of one cause on one node. Progress is a step further
than any attempt before had come; it closes both ledgers. An attempt whose progress is not known consumes nothing, and
what people or the scheduler ended is no failure. Other causes in between do not close a ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

MAX_RETRIES = 3
MAX_RETRIES_PER_NODE = 2


@dataclass(frozen=True, kw_only=True)
class PastAttempt:
    """How one attempt ended. `cause` is empty where somebody wanted it to end."""

    cause: str
    nodes: frozenset[str] = frozenset()
    step: int | None = None  # the furthest that is known to be done


def failure_cause(*, label: str, state: str, exit_code: int | None, signal: int | None) -> str:
    """The diagnosis where there is one; until then, how the command ended."""
    if label:
        return label
    if signal:
        return f"signal {signal}"
    return f"exit code {exit_code}" if exit_code else state


def crash_loop_reason(tries: Sequence[PastAttempt]) -> str:
    """Why the last of these, oldest first, should not be tried again; empty: it may."""
    cause, best = tries[-1].cause if tries else "", 0
    again, on_node = 0, Counter[str]()
    if not cause:
        return ""
    for one in tries:
        if one.step is None:
            continue
        if one.step > best:
            best, again = one.step, 0
            on_node.clear()
        if one.cause == cause:
            again += 1
            on_node.update(one.nodes)
    if tries[-1].step is None:
        return ""
    return _crash_loop_text(cause, again, on_node, tries[-1].nodes)


def _crash_loop_text(cause: str, again: int, on_node: Counter[str], here: frozenset[str]) -> str:
    end = "without a step of progress; a person must look before it starts again."
    if again > MAX_RETRIES:
        return f"It ended {again} times by {cause} {end}"
    # Of a gang any node may be the one; only what a small job meets again is a place
    worst = max(sorted(here), key=lambda node: on_node[node], default="")
    if len(here) == 1 and on_node[worst] > MAX_RETRIES_PER_NODE:
        return f"It ended {on_node[worst]} times by {cause} on {worst} {end}"
    return ""
