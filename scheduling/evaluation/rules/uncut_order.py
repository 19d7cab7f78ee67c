"""The order of datasets that may not be split. Longest first is not optimal for them.

Each dataset takes some seconds on a GPU and then a metric, which runs in parallel with the next dataset. For a fixed
set of datasets on one GPU, the best order is the longest metric first. So the search is over the assignment to GPUs:
the best of some simple rules, then moves and swaps away from the GPU that ends last, then branch and bound within a
step limit. The result is one list: each free GPU takes the next dataset, so no dataset starts later than in the search.

The limit counts steps instead of time, so the same work gives the same order everywhere.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, product

DatasetTimes = tuple[float, float]  # seconds on a GPU, and of the metric
GpuAssignments = list[list[int]]  # dataset numbers by GPU

GOOD_ENOUGH_FACTOR = 1.0005  # relative to the lower bound; better results are not worth the effort
MAX_MOVES = 4000  # moves and swaps that are evaluated
MAX_SEARCH_STEPS = 4000  # assignments of a dataset to a GPU in the branch and bound

PRIORITY_RULES: tuple[Callable[[DatasetTimes], float], ...] = (
    lambda times: -times[0],
    lambda times: -times[0] - times[1],
    lambda times: -times[1],
)


def makespan_lower_bound_s(work: Sequence[DatasetTimes], gpus: int) -> float:
    """Return a lower bound: for each metric length, the datasets with at least this metric are spread evenly."""
    ranked = sorted(work, key=lambda times: -times[1])
    busy = accumulate(on_gpu for on_gpu, _ in ranked)
    spread = [on_gpus / gpus + score for on_gpus, (_, score) in zip(busy, ranked, strict=True)]
    return max([*spread, *(on_gpu + score for on_gpu, score in work)], default=0.0)


@lru_cache(maxsize=64)
def best_order(work: tuple[DatasetTimes, ...], gpus: int) -> tuple[int, ...]:
    """Return the indices of `work` in the order in which the GPUs should take them."""
    by_metric = sorted(range(len(work)), key=lambda place: (-work[place][1], -work[place][0]))
    ranked = [work[place] for place in by_metric]  # so a GPU's datasets in ascending order are in their best order
    good_s = makespan_lower_bound_s(ranked, gpus) * GOOD_ENOUGH_FACTOR
    groups = min(
        (_list_schedule(ranked, gpus, rule) for rule in PRIORITY_RULES), key=lambda groups: _makespan_s(ranked, groups)
    )
    _improve_by_moves(ranked, groups, good_s)
    if _makespan_s(ranked, groups) > good_s:
        groups = _branch_and_bound(ranked, gpus, groups, good_s)
    return tuple(by_metric[place] for _, place in sorted(_start_times(ranked, groups)))


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
    """Assign each dataset, in the order of the rule, to the GPU that is free first."""
    groups: GpuAssignments = [[] for _ in range(gpus)]
    free = [0.0] * gpus
    for place in sorted(range(len(work)), key=lambda place: (rule(work[place]), place)):
        first = free.index(min(free))
        groups[first].append(place)
        free[first] += work[place][0]
    return [sorted(group) for group in groups]


def _improve_by_moves(work: Sequence[DatasetTimes], groups: GpuAssignments, good_s: float) -> None:
    """Apply moves and swaps that shorten the GPU that ends last, until none helps."""
    spans = [_group_makespan_s(work, group) for group in groups]
    budget = MAX_MOVES
    while max(spans) > good_s:
        last = spans.index(max(spans))
        for other, ours, theirs in _moves_and_swaps(groups, last):
            budget -= 1
            spans_after = _group_makespan_s(work, ours), _group_makespan_s(work, theirs)
            if max(spans_after) < spans[last] - 1e-9:
                groups[last], groups[other] = ours, theirs
                spans[last], spans[other] = spans_after
                break
            if not budget:
                return
        else:
            return


def _moves_and_swaps(groups: GpuAssignments, last: int) -> Iterator[tuple[int, list[int], list[int]]]:
    """Yield another GPU, and the datasets of both GPUs after a move or a swap."""
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
    return [number for number in group if number != place]


def _group_with(group: Sequence[int], place: int) -> list[int]:
    more = list(group)
    insort(more, place)
    return more


def _branch_and_bound(work: Sequence[DatasetTimes], gpus: int, known: GpuAssignments, good_s: float) -> GpuAssignments:
    """Try all assignments that can still be shorter than the best known one, within the step limit."""
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
        """Assign `work[place:]`. The longest metrics come first, so earlier assignments do not change."""
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
