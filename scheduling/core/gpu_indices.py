"""Which GPU indices of one node the record must change, so that each attempt has those that its cluster chose. Pure.

Clusters choose GPUs by themselves. Attempts may have each other's GPUs, in cycles of any length, and the GPU of an
attempt may belong in the record to one whose GPUs the cluster does not say, because it has not started there or is
ending. Such an attempt gets a GPU that was freed. Nothing is corrected where the reports contradict each other, such as
telemetry of different moments.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jobs.core.gpu_shares import WHOLE_GPU


class HeldGpus(NamedTuple):
    indices: Sequence[int]
    milli: int = WHOLE_GPU  # of each


def index_corrections(held: Mapping[int, HeldGpus], given: Mapping[int, Sequence[int]]) -> list[tuple[int, int, int]]:
    """Return (attempt, index in the record, index to record instead). `held` has all attempts of the node, `given` what
    the cluster gave to those of which it says so. What differs in number was not allocated as requested, and stays.
    """
    known = {attempt: gpus for attempt, gpus in given.items() if len(gpus) == len(held[attempt].indices)}
    moves = [(attempt, *pair) for attempt, gpus in known.items() for pair in _swaps(held[attempt].indices, gpus)]
    if not moves:
        return []
    used: Counter[int] = Counter()
    for attempt, gpus in known.items():
        used.update(dict.fromkeys(gpus, held[attempt].milli))
    others: dict[int, list[int]] = defaultdict(list)
    for attempt in held.keys() - known.keys():
        for index in held[attempt].indices:
            others[index].append(attempt)
    amounts = {index: sum(held[attempt].milli for attempt in attempts) for index, attempts in others.items()}
    displaced = sorted(index for index, milli in amounts.items() if used[index] + milli > WHOLE_GPU)
    free = sorted({old for _, old, _ in moves if not used[old] and old not in others})
    if len(free) < len(displaced) or max(used.values()) > WHOLE_GPU:
        return []
    pairs = zip(displaced, free, strict=False)  # those who share a GPU stay together
    return moves + [(attempt, old, new) for old, new in pairs for attempt in others[old]]


def _swaps(promised: Sequence[int], actual: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(sorted(set(promised) - set(actual)), sorted(set(actual) - set(promised)), strict=True))
