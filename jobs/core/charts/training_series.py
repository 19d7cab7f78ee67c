"""Training metrics of all attempts of a job: throughput, and the steps that a later attempt repeated. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise


@dataclass(frozen=True, kw_only=True)
class TokenCount:
    """How many tokens the training had consumed at a time; None if the job did not report it."""

    at: datetime
    tokens: int | None


def tokens_per_second(counts: Sequence[TokenCount]) -> list[float | None]:
    """The mean throughput since the previous count, for each count.

    None where it is unknown: at the first count, without token counts, and where the count went down, because the
    program continued from an earlier step.
    """
    return [None] * bool(counts) + [_rate(before, after) for before, after in pairwise(counts)]


def _rate(before: TokenCount, after: TokenCount) -> float | None:
    seconds = (after.at - before.at).total_seconds()
    if before.tokens is None or after.tokens is None or seconds <= 0 or after.tokens < before.tokens:
        return None
    return (after.tokens - before.tokens) / seconds


def repeated_from_steps(steps: Sequence[Sequence[int]]) -> list[int | None]:
    """The first step of each attempt that a later attempt repeated; None if none was repeated.

    `steps` has the steps of each attempt, in the order of the attempts. A restart continues from a checkpoint, so the
    steps after it are done again.
    """
    repeated: list[int | None] = []
    first_later: int | None = None
    for own in reversed(steps):
        is_repeated = bool(own) and first_later is not None and max(own) >= first_later
        repeated.append(first_later if is_repeated else None)
        first_later = min([*own, *([] if first_later is None else [first_later])], default=None)
    return repeated[::-1]
