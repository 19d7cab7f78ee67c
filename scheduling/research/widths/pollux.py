"""Pollux (OSDI'21): the widths at which the harmonic mean of the jobs' speed-ups is highest.

The speed-up of a job is its forecast goodput, divided by that at an equal part of the GPUs on one node. A job whose
places change loses the time of a restart, so its speed-up counts less: by what the job would lose over its whole age if
it went on restarting as often. The authors search with a genetic algorithm. Here the widths are part of a node or whole
nodes, so the best widths are found exactly, by dynamic programming over the number of GPUs. Three sets of places are
then compared: jobs that keep their width stay where they are; all jobs are placed anew; no job changes its width, and
waiting jobs get free GPUs. No two jobs that span nodes share one, as in the authors' search.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduling.research.widths.placing import take_packed
from scheduling.research.widths.values import NOWHERE, Floats, Ints, Places, WidthJob, WidthPolicy, WidthView, width

WAITING_SPEEDUP = 0.004  # what a waiting job counts, so that the mean is defined


class HarmonicSpeedups(WidthPolicy):
    name = "pollux"

    def places(self, view: WidthView) -> dict[int, Places]:
        if not view.jobs:
            return {}
        costs = [JobCosts.of(job, view) for job in view.jobs]
        widths = best_widths([cost.by_width for cost in costs], view.gpus)
        present = [width(job.places) or wide for job, wide in zip(view.jobs, widths, strict=True)]
        plans = [_places(view, widths, costs, stay=stay) for stay in (True, False)]
        plans.append(_places(view, present, costs, stay=True))
        return min(plans, key=lambda plan: sum(cost.of_places(plan.get(cost.job.number, NOWHERE)) for cost in costs))


def widths_up_to(widest: int, node_gpus: int) -> Ints:
    """Parts of a node, then whole nodes."""
    parts = range(1, min(widest, node_gpus - 1) + 1)
    return np.array([*parts, *range(node_gpus, widest + 1, node_gpus)], np.int64)


@dataclass(frozen=True)
class JobCosts:
    """What a job adds to the sum of reciprocal speed-ups, which is smallest where the harmonic mean is highest."""

    job: WidthJob
    waiting: float
    changed: dict[int, float]  # by width, if its places change
    unchanged: float  # if its places stay

    @staticmethod
    def of(job: WidthJob, view: WidthView) -> JobCosts:
        gpus = widths_up_to(min(job.widest, view.gpus), view.node_gpus)
        speedups = _speedups(job, view, gpus)
        factor = job.useful_part
        changed = dict(zip(gpus.tolist(), _cost(speedups * factor).tolist(), strict=True))
        now = dict(zip(gpus.tolist(), _cost(speedups).tolist(), strict=True)).get(width(job.places))
        waiting = float(_cost(np.zeros(1))[0])
        return JobCosts(job, waiting, changed, waiting if now is None else now)

    @property
    def by_width(self) -> dict[int, float]:
        """The cost of each width. The present width costs no restart."""
        costs = {0: self.waiting} | self.changed
        present = width(self.job.places)
        return costs | ({present: self.unchanged} if present in self.changed else {})

    def of_places(self, places: Places) -> float:
        if not places:
            return self.waiting
        return self.unchanged if places == self.job.places else self.changed[width(places)]


def _cost(speedups: Floats) -> Floats:
    costs: Floats = 1.0 / (speedups + WAITING_SPEEDUP)
    return costs


def _speedups(job: WidthJob, view: WidthView, gpus: Ints) -> Floats:
    """Goodput at each width, in units of that at an equal part of the GPUs, as if these were on one node."""
    equal = -(-view.gpus // len(view.jobs))
    nodes = -(-gpus // view.node_gpus)
    speeds = job.forecast.speeds(np.append(gpus, min(equal, job.widest)), np.append(nodes, 1))
    return speeds[:-1] / speeds[-1] if speeds[-1] > 0 else np.zeros(len(gpus))


def best_widths(costs: list[dict[int, float]], gpus: int) -> list[int]:
    """The width of each job for which the sum of costs is smallest, with at most so many GPUs. Exact."""
    total = np.zeros(gpus + 1)  # the smallest sum of the jobs so far with at most so many GPUs
    choices: list[Ints] = []
    for options in costs:
        sums = np.full((len(options), gpus + 1), np.inf)
        for row, (wide, cost) in enumerate(options.items()):
            sums[row, wide:] = total[: gpus + 1 - wide] + cost
        chosen = sums.argmin(axis=0)
        choices.append(np.array(list(options))[chosen])
        total = sums.min(axis=0)
    widths: list[int] = []
    for choice in reversed(choices):
        widths.append(int(choice[gpus]))
        gpus -= widths[-1]
    return widths[::-1]


def _places(view: WidthView, widths: list[int], costs: list[JobCosts], *, stay: bool) -> dict[int, Places]:
    """Places for these widths, the widest jobs first. A job for which no nodes are left gets the next smaller width."""
    wanted = {job.number: wide for job, wide in zip(view.jobs, widths, strict=True) if wide}
    staying = {job.number: job.places for job in view.jobs if stay and width(job.places) == wanted.get(job.number)}
    free = view.free(staying.values())
    placed = dict(staying)
    options = {cost.job.number: sorted(cost.changed, reverse=True) for cost in costs}
    for number, wide in sorted(wanted.items(), key=lambda item: -item[1]):
        if number not in placed:
            fitting = (take_packed(free, less, view.node_gpus) for less in options[number] if less <= wide)
            placed[number] = next((places for places in fitting if places), NOWHERE)
    return placed
