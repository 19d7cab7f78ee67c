"""Chronus (SoCC'21): leases, and a guarantee for jobs with a deadline that can still be met.

A job with a deadline is admitted if it fits into the timetable with all admitted jobs (`turns/leasing`): each needs its
GPUs for its run time before its deadline. At the end of each lease, the timetable is made again from what is left of
the admitted jobs, and the GPUs are given to, in this order:

1. admitted jobs that the timetable wants to run before the end of this lease, the least slack first;
2. other admitted jobs, ahead of time;
3. refused jobs that may still meet their deadline, the least GPU time left first;
4. jobs without a deadline, in the same order;
5. jobs that can no longer meet their deadline.

Within a lease nothing is stopped, except for an admitted job that cannot wait for the next one. Refused jobs ask again
at the end of each lease. Differences: the paper plans with a mixed integer program or greedily in order of slack; this
is greedy. The paper gives capacity that is left to jobs without a deadline first; here admitted jobs run ahead, which
leaves room for jobs that arrive later. Slots are a quarter of a lease. Runs are not slowed by their placement. Run
times are known, as in the authors' simulation: the true ones in a replay unless errors are configured. A live cluster
forgets between two turns which jobs it admitted, so this policy is for replays only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from scheduling.engine.engine import Engine
from scheduling.engine.job import EngineJob
from scheduling.engine.rules import PolicyRules
from scheduling.engine.settings import positive_number, reject_unknown
from scheduling.engine.turns.leasing import SLOTS_PER_LEASE, LeasePlan, leasing_turn, waiting_jobs
from scheduling.engine.turns.skipping import skipping_turn

LEASE_S = 1200.0
GUARANTEED, AHEAD, REFUSED, BEST_EFFORT, LATE = range(5)


class ChronusRules(PolicyRules):
    """Admits jobs with deadlines while all of them can be met, and reassigns the GPUs at the end of each lease."""

    name = "chronus"
    preempts = True

    def __init__(self, lease_s: float = LEASE_S) -> None:
        self._lease_s = lease_s
        self._plan: LeasePlan | None = None
        self._run_by: dict[int, float] = {}  # admitted jobs: the time by which they must run
        self._new: list[EngineJob] = []
        self._lease_began = -math.inf

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> PolicyRules:
        reject_unknown(settings, "lease_s")
        return cls(positive_number(settings, "lease_s")) if settings else cls()

    def key(self, job: EngineJob, now: float) -> float:
        if not job.runs and job.deadline < math.inf:
            self._new.append(job)
        return remaining_run_s(job, now) * job.group.gpus

    def rank(self, job: EngineJob, now: float) -> float:
        return 0.0  # no job is behind another within a lease

    def next_rank_change(self, job: EngineJob, now: float) -> float | None:
        """The end of the lease."""
        return self._lease_end(now)

    def on_rank_change(self, job: EngineJob, now: float) -> None:
        self._lease_began = now

    def on_job_end(self, job: EngineJob, now: float) -> None:
        self._run_by.pop(job.number, None)

    def turn(self, engine: Engine, now: float) -> None:
        is_urgent = [self._admit(engine, job, now) for job in self._new]
        self._new.clear()
        if now != self._lease_began and not any(is_urgent):
            skipping_turn(engine, now)
            return
        jobs = [*engine.running.values(), *waiting_jobs(engine)]
        self._plan_again(engine, jobs, now)
        leasing_turn(engine, now, sorted(jobs, key=lambda job: self._lease_order(job, now)))

    def _lease_end(self, now: float) -> float:
        return (math.floor(now / self._lease_s) + 1) * self._lease_s

    def _admit(self, engine: Engine, job: EngineJob, now: float) -> bool:
        """Admit the job if its deadline can be met beside those of the others. Whether it must run at once."""
        if self._plan is None:
            self._plan = self._new_plan(engine, now)
        run_by = self._plan.add(job, remaining_run_s(job, now), now)
        if run_by is None:
            return False
        self._run_by[job.number] = run_by
        return run_by < self._lease_end(now) and job.places is None

    def _plan_again(self, engine: Engine, jobs: list[EngineJob], now: float) -> None:
        """Make the timetable again. Admitted jobs that find no slots must run now; refused ones ask again."""
        self._plan = self._new_plan(engine, now)
        admitted = [job for job in jobs if job.number in self._run_by]
        for job in sorted(admitted, key=lambda job: (slack_s(job, now), job.number)):
            run_by = self._plan.add(job, remaining_run_s(job, now), now)
            self._run_by[job.number] = now if run_by is None else run_by
        refused = [job for job in jobs if job.number not in self._run_by and 0.0 <= slack_s(job, now) < math.inf]
        for job in sorted(refused, key=lambda job: (remaining_run_s(job, now) * job.group.gpus, job.number)):
            self._admit(engine, job, now)

    def _new_plan(self, engine: Engine, now: float) -> LeasePlan:
        gpus = engine.resources.free_gpus + sum(job.group.gpus for job in engine.running.values())
        return LeasePlan(self._lease_s / SLOTS_PER_LEASE, gpus, now)

    def _lease_order(self, job: EngineJob, now: float) -> tuple[int, float, int]:
        slack, run_by = slack_s(job, now), self._run_by.get(job.number, math.inf)
        if slack < 0.0:
            return LATE, remaining_run_s(job, now) * job.group.gpus, job.number
        if run_by < self._lease_end(now):
            return GUARANTEED, slack, job.number
        if run_by < math.inf:
            return AHEAD, slack, job.number
        return BEST_EFFORT if slack == math.inf else REFUSED, remaining_run_s(job, now) * job.group.gpus, job.number


def remaining_run_s(job: EngineJob, now: float) -> float:
    """The expected remaining run time, at least a second."""
    running_s = now - job.since if job.places is not None else 0.0
    return max(1.0, job.expected_s - job.attained / max(1, job.group.gpus) - running_s)


def slack_s(job: EngineJob, now: float) -> float:
    """How long the job could still wait; infinite without a deadline."""
    return job.deadline - now - remaining_run_s(job, now)
