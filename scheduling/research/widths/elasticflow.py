"""ElasticFlow (ASPLOS'23): a job with a deadline is admitted only if all admitted jobs can still meet theirs.

Each admitted job gets a timetable of widths, in order of deadlines: it is as narrow as its deadline permits, because
every doubling of the width adds less speed. A job that does not fit is refused. GPUs that no deadline needs before the
timetable changes go to the jobs that wait, also those without a deadline, then to those whose next width costs the
fewest GPU-seconds. Wider now means narrower or shorter later, so the deadlines still hold.

Widths are powers of two, and nodes must be: then all widths that fit the GPUs also fit the nodes. A timetable that is
made again from what is left may be worse than the previous one, since widths are not continuous. Then the previous one
goes on. So admitted jobs meet their deadlines if their speeds are known and moves between nodes are free. A restart
after a change of the width is part of the timetable; one after a move is not, and makes a few of them late.

Differences: the authors rank jobs by the GPU time of a whole new timetable; here by that at a constant width.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from scheduling.research.widths.placing import pack_all
from scheduling.research.widths.scaling import ScalingCurve
from scheduling.research.widths.values import Floats, Ints, Places, WidthJob, WidthPolicy, WidthView

MOST_ROUNDS = 50_000  # a deadline after these counts as one at their end
ALMOST = 1 - 1e-9  # of the work, because of rounding
Curves = Mapping[int, ScalingCurve]


class GuaranteedDeadlines(WidthPolicy):
    name = "elasticflow"

    def __init__(self) -> None:
        self._known: set[int] = set()  # the jobs of the last view
        self._plan: dict[int, Ints] = {}  # the widths of each admitted job, by round
        self._planned_at = 0.0
        self._decided: dict[int, int] = {}
        self._decided_for: set[int] = set()
        self._decide_again_at = -math.inf

    def refused(self, views: Sequence[WidthView]) -> frozenset[int]:
        (view,) = views
        check_nodes(view)
        new = [job for job in view.jobs if job.number not in self._known and math.isfinite(job.deadline_s)]
        self._known = {job.number for job in view.jobs}
        return frozenset(job.number for job in new if not self._admit(view, job))

    def places(self, view: WidthView) -> dict[int, Places]:
        numbers = {job.number for job in view.jobs}
        if numbers != self._decided_for or view.now > self._decide_again_at - view.round_s / 2:
            self._decide(view)
            self._decided_for = numbers
        return pack_all(view, self._decided)

    def _admit(self, view: WidthView, job: WidthJob) -> bool:
        continued = self._continued(view)
        curves = curves_of(view, {*continued, job.number})
        table = filled(view, curves.values())
        if table is None:
            table = Timetable(view, continued)
            widths = table.narrowest(curves[job.number])
            if widths is None:
                return False
            table.reserve(job.number, widths)
        self._plan, self._planned_at = table.widths, view.now
        return True

    def _continued(self, view: WidthView) -> dict[int, Ints]:
        """What is left of the plan. A job that should have ended is no longer in it."""
        done = round((view.now - self._planned_at) / view.round_s)
        numbers = {job.number for job in view.jobs}
        return {
            number: widths[done:] for number, widths in self._plan.items() if number in numbers and len(widths) > done
        }

    def _decide(self, view: WidthView) -> None:
        continued = self._continued(view)
        curves = curves_of(view, {job.number for job in view.jobs})
        admitted = filled(view, [curves[number] for number in continued])
        table = admitted or Timetable(view, continued)
        rounds = table.rounds_without_change()
        grow(table, curves, rounds)
        self._decided = {number: int(widths[0]) for number, widths in table.widths.items() if widths[0]}
        self._plan = {number: table.widths[number] for number in continued}
        self._planned_at = view.now
        self._decide_again_at = view.now + rounds * view.round_s if continued else math.inf


class Timetable:
    """The widths of jobs in the coming rounds, and the GPUs that these leave free."""

    def __init__(self, view: WidthView, reserved: Mapping[int, Ints] | None = None) -> None:
        self._view = view
        deadlines = [job.deadline_s for job in view.jobs if math.isfinite(job.deadline_s)]
        self.free: Ints = np.full(max([1, *map(self._rounds_until, deadlines)]), view.gpus, np.int64)
        self.widths: dict[int, Ints] = {}
        for number, widths in (reserved or {}).items():
            self.reserve(number, widths)

    def reserve(self, number: int, widths: Ints) -> None:
        self.free[: len(widths)] -= widths
        self.widths[number] = widths

    def release(self, number: int) -> Ints:
        widths = self.widths.pop(number)
        self.free[: len(widths)] += widths
        return widths

    def narrowest(self, curve: ScalingCurve, first: int = 0, rounds: int = 0) -> Ints | None:
        """The widths up to the lowest limit with which the job meets its deadline, from a level in the first rounds."""
        seconds = self._seconds_until(curve.job.deadline_s)
        fitting = np.searchsorted(curve.widths, self.free[: len(seconds)], side="right") - 1
        for limit in range(len(curve.widths)):
            levels = np.minimum(fitting, limit)
            levels[:rounds] = first
            has_ended = curve.progress(levels, seconds) >= curve.work * ALMOST
            if has_ended.any():
                widths: Ints = curve.widths[levels[: int(has_ended.argmax()) + 1]]
                return widths
        return None

    def rounds_without_change(self) -> int:
        """How long all widths stay as they are now."""
        return min((constant_rounds(widths) for widths in self.widths.values()), default=1)

    def _rounds_until(self, time_s: float) -> int:
        return min(MOST_ROUNDS, max(0, math.ceil((time_s - self._view.now) / self._view.round_s)))

    def _seconds_until(self, time_s: float) -> Floats:
        """The length of each round, of which the last one may be cut by the deadline."""
        rounds = self._rounds_until(time_s)
        seconds = np.full(rounds, self._view.round_s)
        seconds[rounds - 1 :] = min(self._view.round_s, time_s - self._view.now - (rounds - 1) * self._view.round_s)
        return seconds


def check_nodes(view: WidthView) -> None:
    if view.node_gpus & (view.node_gpus - 1):
        raise ValueError(f"elasticflow needs nodes with a power of two of GPUs; these have {view.node_gpus}.")


def constant_rounds(widths: Ints) -> int:
    """The rounds until the first change of the width, or until the end."""
    changes = np.flatnonzero(np.diff(widths))
    return int(changes[0]) + 1 if len(changes) else len(widths)


def curves_of(view: WidthView, numbers: set[int]) -> dict[int, ScalingCurve]:
    return {job.number: ScalingCurve.of(job, view) for job in view.jobs if job.number in numbers}


def filled(view: WidthView, curves: Iterable[ScalingCurve]) -> Timetable | None:
    """A timetable in which all these jobs meet their deadlines, the earliest first. None if one does not."""
    table = Timetable(view)
    for curve in sorted(curves, key=lambda curve: (curve.job.deadline_s, curve.job.number)):
        widths = table.narrowest(curve)
        if widths is None:
            return None
        table.reserve(curve.job.number, widths)
    return table


def grow(table: Timetable, curves: Curves, rounds: int) -> None:
    """Give the GPUs that are free in the next rounds to jobs, one width after the other."""
    admitted = set(table.widths)
    for number in curves.keys() - admitted:
        table.reserve(number, np.zeros(rounds, np.int64))
    queue = [(_cost(curve, table), number) for number, curve in curves.items()]
    heapq.heapify(queue)
    while queue:
        _, number = heapq.heappop(queue)
        if _widened(table, curves[number], rounds, number in admitted):
            heapq.heappush(queue, (_cost(curves[number], table), number))


def _cost(curve: ScalingCurve, table: Timetable) -> float:
    """The GPU-seconds that a job needs more at its next width, for each GPU more. A job that waits comes first."""
    level = curve.level(int(table.widths[curve.job.number][0]))
    if level == 0 or level + 1 == len(curve.widths):
        return -math.inf
    if not math.isfinite(curve.work):
        return math.inf
    more = int(curve.widths[level + 1] - curve.widths[level])
    return (curve.gpu_seconds(level + 1) - curve.gpu_seconds(level)) / more


def _widened(table: Timetable, curve: ScalingCurve, rounds: int, is_admitted: bool) -> bool:
    """Whether the job has got its next width in the next rounds: there are GPUs for it and it meets its deadline."""
    before = table.release(curve.job.number)
    level = curve.level(int(before[0])) + 1
    after: Ints | None = None
    if level < len(curve.widths) and curve.widths[level] <= table.free[:rounds].min():
        wider = np.full(rounds, curve.widths[level])
        after = table.narrowest(curve, level, rounds) if is_admitted else wider
    table.reserve(curve.job.number, before if after is None else after)
    return after is not None
