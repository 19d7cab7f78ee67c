"""The order of datasets that may not be cut, for longest first is no optimum where nothing can be cut.

Each takes some seconds on a GPU, and a metric after it that runs beside. Once it is known which of them one GPU gets,
their best order there is too: the longest metric first. So what is searched is who gets which: the best of a few simple
rules, then moves and swaps that take from the GPU that ends last, then all there is, as long as the effort lasts. What
comes out is one list: whoever is free takes the next, so no dataset begins later than the search had it.

Effort is counted in steps and not in time: the same work gives the same order everywhere.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, product

DatasetTimes = tuple[float, float]  # seconds on a GPU, and of the metric
GpuAssignments = list[list[int]]  # what each GPU gets

GOOD_ENOUGH_FACTOR = 1.0005  # times what nobody can beat: not worth any effort
MAX_MOVES = 4000  # a GPU's part looked at anew
MAX_SEARCH_STEPS = 4000  # of the search to the end: a dataset put onto a GPU

PRIORITY_RULES: tuple[Callable[[DatasetTimes], float], ...] = (
    lambda one: -one[0],
    lambda one: -one[0] - one[1],
    lambda one: -one[1],
)


def makespan_lower_bound_s(work: Sequence[DatasetTimes], gpus: int) -> float:
    """No deal can end earlier: those whose metrics take at least so long are spread evenly at best."""
    ranked = sorted(work, key=lambda one: -one[1])
    busy = accumulate(on_gpu for on_gpu, _ in ranked)
    spread = [on_gpus / gpus + score for on_gpus, (_, score) in zip(busy, ranked, strict=True)]
    return max([*spread, *(on_gpu + score for on_gpu, score in work)], default=0.0)


@lru_cache(maxsize=64)
def best_order(work: tuple[DatasetTimes, ...], gpus: int) -> tuple[int, ...]:
    """The places of `work` in the order in which they are to be taken by so many GPUs."""
    by_metric = sorted(range(len(work)), key=lambda place: (-work[place][1], -work[place][0]))
    ranked = [work[place] for place in by_metric]  # so a GPU's part in ascending order is in its best order
    good_s = makespan_lower_bound_s(ranked, gpus) * GOOD_ENOUGH_FACTOR
    dealt = min(
        (_list_schedule(ranked, gpus, rule) for rule in PRIORITY_RULES), key=lambda groups: _makespan_s(ranked, groups)
    )
    _improve_by_moves(ranked, dealt, good_s)
    if _makespan_s(ranked, dealt) > good_s:
        dealt = _branch_and_bound(ranked, gpus, dealt, good_s)
    return tuple(by_metric[place] for _, place in sorted(_start_times(ranked, dealt)))


def _group_makespan_s(work: Sequence[DatasetTimes], group: Sequence[int]) -> float:
    at = ends = 0.0
    for place in group:
        on_gpu, score = work[place]
        at += on_gpu
        ends = max(ends, at + score)
    return ends


def _makespan_s(work: Sequence[DatasetTimes], groups: GpuAssignments) -> float:
    return max(_group_makespan_s(work, group) for group in groups)


def _start_times(work: Sequence[DatasetTimes], groups: GpuAssignments) -> Iterator[tuple[float, int]]:
    for group in groups:
        at = 0.0
        for place in group:
            yield at, place
            at += work[place][0]


def _list_schedule(work: Sequence[DatasetTimes], gpus: int, rule: Callable[[DatasetTimes], float]) -> GpuAssignments:
    """In the order of the rule, each to the GPU that is free first."""
    groups: GpuAssignments = [[] for _ in range(gpus)]
    free = [0.0] * gpus
    for place in sorted(range(len(work)), key=lambda place: (rule(work[place]), place)):
        first = free.index(min(free))
        groups[first].append(place)
        free[first] += work[place][0]
    return [sorted(group) for group in groups]


def _improve_by_moves(work: Sequence[DatasetTimes], groups: GpuAssignments, good_s: float) -> None:
    """Moves and swaps from the GPU that ends last, as long as one of them helps."""
    spans = [_group_makespan_s(work, group) for group in groups]
    left = MAX_MOVES
    while max(spans) > good_s:
        last = spans.index(max(spans))
        for other, ours, theirs in _moves_and_swaps(groups, last):
            left -= 1
            spans_after = _group_makespan_s(work, ours), _group_makespan_s(work, theirs)
            if max(spans_after) < spans[last] - 1e-9:
                groups[last], groups[other] = ours, theirs
                spans[last], spans[other] = spans_after
                break
            if not left:
                return
        else:
            return


def _moves_and_swaps(groups: GpuAssignments, last: int) -> Iterator[tuple[int, list[int], list[int]]]:
    """Another GPU, and what both would have after a move or a swap."""
    others = [number for number in range(len(groups)) if number != last]
    for place, other in product(groups[last], others):
        yield other, _group_without(groups[last], place), _group_with(groups[other], place)
    for place, other in product(groups[last], others):
        for back in groups[other]:
            yield (
                other,
                _group_with(_group_without(groups[last], place), back),
                _group_with(_group_without(groups[other], back), place),
            )


def _group_without(group: Sequence[int], place: int) -> list[int]:
    return [one for one in group if one != place]


def _group_with(group: Sequence[int], place: int) -> list[int]:
    more = list(group)
    insort(more, place)
    return more


def _branch_and_bound(work: Sequence[DatasetTimes], gpus: int, known: GpuAssignments, good_s: float) -> GpuAssignments:
    """Each dataset onto each GPU, as far as that can still end earlier than what is known."""
    search = _BranchAndBound(work, gpus, _makespan_s(work, known), good_s)
    search.go(0, [0.0] * gpus, 0.0)
    if search.best is None:
        return known
    groups: GpuAssignments = [[] for _ in range(gpus)]
    for place, gpu in enumerate(search.best):
        groups[gpu].append(place)
    return groups


class _BranchAndBound:
    def __init__(self, work: Sequence[DatasetTimes], gpus: int, best_s: float, good_s: float) -> None:
        self.best: list[int] | None = None
        self._work, self._gpus = work, gpus
        self._best_s, self._good_s = best_s, good_s
        self._left_s = [sum(on_gpu for on_gpu, _ in work[place:]) for place in range(len(work) + 1)]
        self._least_score = work[-1][1]
        self._onto: list[int] = []
        self._steps = MAX_SEARCH_STEPS

    def go(self, place: int, free: list[float], ends_s: float) -> None:
        """`work[place:]` is still to be put somewhere; longest metrics came first, so nothing that was put moves."""
        if place == len(self._work):
            self.best, self._best_s = list(self._onto), ends_s
            return
        on_gpu, score = self._work[place]
        for at_s, gpu in sorted({at_s: gpu for gpu, at_s in enumerate(free)}.items()):
            after_s = max(ends_s, at_s + on_gpu + score)
            if after_s >= self._best_s - 1e-9 or not self._steps or self._best_s <= self._good_s:
                return
            self._steps -= 1
            free[gpu] += on_gpu
            self._onto.append(gpu)
            if self._can_still_fit(place + 1, free):
                self.go(place + 1, free, after_s)
            self._onto.pop()
            free[gpu] = at_s

    def _can_still_fit(self, place: int, free: Sequence[float]) -> bool:
        until_s = self._best_s - self._least_score
        return sum(until_s - at_s for at_s in free if at_s < until_s) > self._left_s[place]
