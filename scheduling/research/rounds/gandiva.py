"""Gandiva (OSDI'18) as Gavel compares with it: jobs share GPUs in random pairs while there are more jobs than GPUs.

Pairs stay together until one of the two ends. All pairs, and the jobs without a partner, get the same fraction of every
type. Pairs that cannot run on some type, or are together slower than one job in all types added up, are drawn again.
Only jobs with equally many GPUs share them.
"""

from __future__ import annotations

from random import Random

import numpy as np

from scheduling.research.rounds.values import RoundPolicy, RoundView, TimeShares

Pair = tuple[int, int]


class RandomPairs(RoundPolicy):
    name = "gandiva"

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)
        self._pairs: list[Pair] = []  # job numbers

    def shares(self, view: RoundView) -> TimeShares:
        place = {number: at for at, number in enumerate(view.numbers.tolist())}
        kept = [(place[a], place[b]) for a, b in self._pairs if a in place and b in place]
        pairs = [pair for pair in kept if _are_fast_enough(view, pair)]
        shared = view.gpus.sum() > view.types.total
        if shared:
            pairs += self._drawn_pairs(view, pairs)
        self._pairs = [(int(view.numbers[a]), int(view.numbers[b])) for a, b in pairs]
        return _equal_shares(view, pairs if shared else [])

    def _drawn_pairs(self, view: RoundView, pairs: list[Pair]) -> list[Pair]:
        """Random pairs of the jobs that have no partner."""
        paired = {at for pair in pairs for at in pair}
        single = [at for at in range(len(view.numbers)) if at not in paired]
        drawn: list[Pair] = []
        for _ in range(len(single)):
            if len(single) < 2:
                break
            first, second = sorted(self._random.sample(single, 2))
            if view.gpus[first] == view.gpus[second]:
                drawn.append((first, second))
                single.remove(first)
                single.remove(second)
        return drawn


def _are_fast_enough(view: RoundView, pair: Pair) -> bool:
    assert view.speeds.shared is not None
    first, second = view.classes[pair[0]], view.classes[pair[1]]
    together = np.stack([view.speeds.shared[first, second], view.speeds.shared[second, first]])
    alone = np.stack([view.speeds.alone[first], view.speeds.alone[second]])
    return bool(together.all() and (together / alone).sum() >= 1)


def _equal_shares(view: RoundView, pairs: list[Pair]) -> TimeShares:
    """The same fraction of every type for each pair and each job without a partner."""
    first, second = np.array(pairs, np.intp).reshape(-1, 2).T
    rows = len(view.numbers) - len(pairs)
    parts = view.types.counts / rows / view.gpus[:, None]
    parts = parts / np.maximum(1.0, parts.sum(axis=1, keepdims=True))
    alone = parts.copy()
    alone[np.concatenate([first, second])] = 0.0
    return TimeShares.alone(alone).with_pairs(first, second, parts[first])
