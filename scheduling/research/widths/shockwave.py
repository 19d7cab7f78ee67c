"""Shockwave (NSDI'23): plans the next rounds so that jobs progress fairly and none ends much later than the others.

The plan maximizes the sum of the logarithms of the jobs' progress, less a penalty for the longest time that a job has
left after the plan. A job whose expected end is later than with an equal part of the GPUs weighs more. The authors
solve an integer program and predict how batch sizes will change. Here the plan counts GPU-rounds and not single rounds.
For each limit on the time left, jobs get the rounds that the limit demands, then rounds go where they add the most; the
best of some limits is taken. What a job has left is its forecast.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from scheduling.research.widths.placing import spread_places
from scheduling.research.widths.turns import equal_part, fitting_widths, seconds_left
from scheduling.research.widths.values import Places, WidthJob, WidthPolicy, WidthView

ROUNDS = 20
ROUNDS_PER_PLAN = 8  # a plan is made anew after these rounds, or when jobs come or end
LIMITS_TRIED = 6
LATENESS_POWER = 12.0
PENALTY = 1e-3  # of a second that is left, in units of the mean logarithm per round
PROGRESS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
LOGARITHMS = (math.log(1e-6), *map(math.log, PROGRESS[1:]))  # lines between them: to start adds much, the rest little


@dataclass(frozen=True)
class PlannedJob:
    job: WidthJob
    round_s: float
    left_s: float
    total_s: float
    weight: float

    def seconds_left_after(self, rounds: int) -> float:
        return self.left_s - rounds * self.round_s

    def utility(self, rounds: int) -> float:
        done = 1 - self.seconds_left_after(rounds) / self.total_s
        return self.weight * float(np.interp(done, PROGRESS, LOGARITHMS))

    def gain_per_gpu(self, rounds: int) -> float:
        """What one more round adds."""
        return (self.utility(rounds + 1) - self.utility(rounds)) / self.job.requested

    def rounds_for_limit(self, limit_s: float) -> int:
        """The rounds after which at most so much is left."""
        return min(ROUNDS, max(0, math.ceil((self.left_s - limit_s) / self.round_s)))

    def rounds_to_end(self) -> int:
        return min(ROUNDS, math.ceil(self.left_s / self.round_s))


class FairProgress(WidthPolicy):
    name = "shockwave"

    def __init__(self) -> None:
        self._fair_ends: dict[int, tuple[int, float]] = {}  # how many estimates, and their mean
        self._plan = Plan(0.0, {})
        self._rounds_done = 0  # rounds of the plan

    def places(self, view: WidthView) -> dict[int, Places]:
        jobs = [self._planned_job(view, job) for job in view.jobs]
        if self._rounds_done >= ROUNDS_PER_PLAN or self._plan.rounds.keys() != {job.number for job in view.jobs}:
            self._plan = best_plan(jobs, view.gpus)
            self._rounds_done = 0
        self._rounds_done += 1
        widths = fitting_widths(view, [job.job for job in sorted(jobs, key=self._plan.turn)])
        for number in widths:
            self._plan.rounds[number] -= 1
        return spread_places(view, widths)

    def _planned_job(self, view: WidthView, job: WidthJob) -> PlannedJob:
        left_s = seconds_left(view, job)
        if not math.isfinite(left_s):
            raise ValueError(f"{self.name} needs the time that is left for each job; job {job.number} has no forecast.")
        total_s = job.attained_gpu_s / job.requested + left_s
        part = equal_part(view)
        count, mean = self._fair_ends.get(job.number, (0, 0.0))
        mean += (total_s / part - mean) / (count + 1)
        self._fair_ends[job.number] = count + 1, mean
        lateness = (job.age_s + left_s / part) / mean
        return PlannedJob(job, view.round_s, left_s, total_s, lateness**LATENESS_POWER if lateness > 1 else 1.0)


@dataclass(frozen=True)
class Plan:
    limit_s: float  # what a job may have left after the plan
    rounds: dict[int, int]  # that each job still has in the plan

    def value(self, jobs: list[PlannedJob]) -> float:
        utility = sum(job.utility(self.rounds[job.job.number]) for job in jobs) / max(1, len(jobs) * ROUNDS)
        left_s = [job.seconds_left_after(self.rounds[job.job.number]) for job in jobs]
        return utility - PENALTY * max([0.0, *left_s])

    def turn(self, job: PlannedJob) -> tuple[bool, bool, bool, bool, float]:
        """Jobs of the plan first: those that need all its rounds, those that run, those that it ends, late ones."""
        rounds = self.rounds[job.job.number]
        is_critical = min(rounds, job.rounds_for_limit(self.limit_s)) == ROUNDS
        return rounds <= 0, not is_critical, not job.job.places, rounds < job.rounds_to_end(), -job.weight


def best_plan(jobs: list[PlannedJob], gpus: int) -> Plan:
    longest_s = max((job.left_s for job in jobs), default=0.0)
    round_s = jobs[0].round_s if jobs else 0.0
    limits = [longest_s - ROUNDS * round_s * step / LIMITS_TRIED for step in range(LIMITS_TRIED + 1)]
    plans = [Plan(limit_s, plan_within(jobs, gpus, limit_s)) for limit_s in limits]
    return max(plans, key=lambda plan: plan.value(jobs))


def plan_within(jobs: list[PlannedJob], gpus: int, limit_s: float) -> dict[int, int]:
    """The rounds of each job: first those that the limit demands, the longest jobs first, then where they add most."""
    left = gpus * ROUNDS
    rounds: dict[int, int] = {}
    for job in sorted(jobs, key=lambda job: -job.left_s):
        rounds[job.job.number] = min(job.rounds_for_limit(limit_s), left // job.job.requested)
        left -= rounds[job.job.number] * job.job.requested
    queue = [(-job.gain_per_gpu(rounds[job.job.number]), at) for at, job in enumerate(jobs)]
    heapq.heapify(queue)
    while queue and left:
        _, at = heapq.heappop(queue)
        job, number = jobs[at], jobs[at].job.number
        if job.job.requested <= left and rounds[number] < job.rounds_to_end():
            rounds[number] += 1
            left -= job.job.requested
            heapq.heappush(queue, (-job.gain_per_gpu(rounds[number]), at))
    return rounds
