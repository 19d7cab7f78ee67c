"""AlloX (EuroSys'20): the shortest mean completion time on GPUs of several types, for jobs of one GPU.

Whenever it is asked, it plans the waiting jobs on the free GPUs: a job that is k-th from the end on its GPU adds k
times its run time there to the sum of completion times, so the cheapest assignment of jobs to (GPU, k) is the best
plan. The first job of each GPU gets it until its end. The others are planned again next time. If the assignment would
be too large, only the oldest jobs are planned.
"""

from __future__ import annotations

import math

import numpy as np

from jobs.traces.trace import Floats
from scheduling.engine.settings import check_scipy
from scheduling.research.rounds.values import Indices, RoundPolicy, RoundView, TimeShares

MAX_COSTS = 4_000_000  # numbers in an assignment: 32 MB, at most a second or two
NEVER_S = 1e12  # the run time on a type on which a job cannot run


class AlloX(RoundPolicy):
    name = "allox"

    def __init__(self) -> None:
        self._type_of: dict[int, int] = {}  # jobs that hold a GPU, by number

    def shares(self, view: RoundView) -> TimeShares:
        numbers = view.numbers.tolist()
        self._type_of = {number: self._type_of[number] for number in numbers if number in self._type_of}
        waiting = np.array([at for at, number in enumerate(numbers) if number not in self._type_of], np.intp)
        for at, gpu_type in first_jobs(run_times(view)[waiting], self._free_gpus(view)):
            self._type_of[numbers[waiting[at]]] = gpu_type
        fractions = np.zeros((len(numbers), len(view.types.counts)))
        for at, number in enumerate(numbers):
            if number in self._type_of:
                fractions[at, self._type_of[number]] = 1.0
        return TimeShares.alone(fractions)

    def _free_gpus(self, view: RoundView) -> Indices:
        """The type of each free GPU."""
        held = np.bincount(list(self._type_of.values()), minlength=len(view.types.counts))
        return np.repeat(np.arange(len(held)), view.types.counts.astype(int) - held)


def run_times(view: RoundView) -> Floats:
    """Remaining run time of each job on each type."""
    speeds = view.job_speeds
    return np.where(speeds > 0, view.remaining[:, None] / np.where(speeds > 0, speeds, 1.0), NEVER_S)


def first_jobs(run_time: Floats, gpus: Indices) -> list[tuple[int, int]]:
    """(job, type) for the first job of each GPU in the plan with the smallest sum of completion times."""
    check_scipy("Policies with assignments")
    from scipy.optimize import linear_sum_assignment

    if not len(run_time) or not len(gpus):
        return []
    run_time = run_time[: max(1, math.isqrt(MAX_COSTS // len(gpus)))]
    count = len(run_time)
    from_end = np.arange(1, count + 1)
    cost = (from_end[None, :, None] * run_time[:, gpus][:, None, :]).reshape(count, -1)
    first: dict[int, tuple[int, int]] = {}  # GPU -> (place from the end, job)
    for job, column in zip(*linear_sum_assignment(cost), strict=True):
        place, gpu = divmod(int(column), len(gpus))
        first[gpu] = max(first.get(gpu, (-1, -1)), (place, int(job)))
    return [(job, int(gpus[gpu])) for gpu, (_, job) in first.items()]
