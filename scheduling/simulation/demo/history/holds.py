"""Which attempt held which GPU of a node, as columns of numbers. A history has 400,000 rows of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from scheduling.simulation.demo.history.values import PlacedAttempt


@dataclass(frozen=True, kw_only=True)
class GpuHolds:
    """The holds of one node. Times are seconds since the beginning."""

    attempts: Any  # places among all attempts of the history
    gpus: Any
    begins: Any
    ends: Any


def holds_by_node(placed: Sequence[PlacedAttempt], nodes: int) -> list[GpuHolds]:
    pairs = np.array([pair for attempt in placed for pair in attempt.gpus], dtype=np.int64).reshape(-1, 2)
    attempts = np.repeat(np.arange(len(placed)), [len(attempt.gpus) for attempt in placed])
    begins, ends = np.array([(attempt.life.promised, attempt.ended) for attempt in placed]).reshape(-1, 2).T
    order = np.argsort(pairs[:, 0], kind="stable")
    bounds = np.searchsorted(pairs[order, 0], np.arange(nodes + 1))
    return [
        GpuHolds(attempts=attempts[rows], gpus=pairs[rows, 1], begins=begins[attempts[rows]], ends=ends[attempts[rows]])
        for rows in (order[first:last] for first, last in pairwise(bounds))
    ]
