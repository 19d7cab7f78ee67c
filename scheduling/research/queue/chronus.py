"""Chronus (SoCC'21): leases, and a guarantee for jobs with a deadline that can still be met.

A job with a deadline is admitted if it fits into the timetable with all admitted jobs (`LeasePlan`): each needs its
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
from collections.abc import Iterable, Mapping
from heapq import heapify

import numpy as np

from scheduling.engine.engine import Engine, PolicyRules
from scheduling.engine.job import EngineJob
from scheduling.engine.settings import positive_number, reject_unknown
from scheduling.engine.turns.skipping import skipping_turn

LEASE_S = 1200.0
SLOTS_PER_LEASE = 4
GROWTH = 1024
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


class LeasePlan:
    """The timetable of guaranteed jobs: the GPUs that they need, by slot of a quarter of a lease.

    Each job is put into its latest slots, so that earlier ones stay free for jobs that arrive later. Capacity is
    counted in GPUs.
    """

    def __init__(self, slot_s: float, gpus: int, now: float) -> None:
        self._slot_s, self._gpus, self._first = slot_s, gpus, math.floor(now / slot_s)
        self._taken = np.zeros(GROWTH, dtype=np.int64)

    def add(self, job: EngineJob, left_s: float, now: float) -> float | None:
        """Reserve the latest slots in which the job meets its deadline. Return the time by which it must run; None if
        there are too few slots, and nothing is reserved.
        """
        need, gpus = math.ceil(left_s / self._slot_s), job.group.gpus
        begin, end = math.ceil(now / self._slot_s), math.floor(job.deadline / self._slot_s)
        if end - begin >= need:
            open_slots = np.flatnonzero(self._between(begin, end) <= self._gpus - gpus)
            if len(open_slots) >= need:
                chosen = begin - self._first + open_slots[len(open_slots) - need :]
                self._taken[chosen] += gpus
                return float((self._first + chosen[0]) * self._slot_s)
        return self._add_at_once(gpus, left_s, job.deadline, now)

    def _add_at_once(self, gpus: int, left_s: float, deadline: float, now: float) -> float | None:
        """Reserve all slots that the job overlaps if it runs from now on without a break."""
        if now + left_s > deadline:
            return None
        slots = self._between(math.floor(now / self._slot_s), math.ceil((now + left_s) / self._slot_s))
        if len(slots) and slots.max() > self._gpus - gpus:
            return None
        slots += gpus
        return now

    def _between(self, begin: int, end: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        while end - self._first > len(self._taken):
            self._taken = np.concatenate((self._taken, np.zeros(len(self._taken), dtype=np.int64)))
        return self._taken[max(0, begin - self._first) : max(0, end - self._first)]


def leasing_turn(engine: Engine, now: float, ranked: Iterable[EngineJob]) -> None:
    """Give GPUs to each of these jobs, running or waiting, that still fits by count, in this order. Running jobs that
    get none are stopped, then the others are placed. A gang that finds no place among scattered GPUs waits for the next
    turn.
    """
    free = engine.resources.free_gpus + sum(job.group.gpus for job in engine.running.values())
    chosen: dict[int, EngineJob] = {}
    for job in ranked:
        if job.group.gpus <= free:
            free -= job.group.gpus
            chosen[job.number] = job
    for job in [job for job in engine.running.values() if job.number not in chosen]:
        engine.stop_job(job, now)
    started = {job.number for job in chosen.values() if job.places is None and _start(engine, job, now)}
    for group in list(engine.waiting_groups):
        group.queue = [entry for entry in group.queue if entry[2] not in started]
        heapify(group.queue)
        engine.tidy(group)


def _start(engine: Engine, job: EngineJob, now: float) -> bool:
    places = engine.place(engine.resources, job.group.need, job.group.eligible_nodes)
    if places is None:
        return False
    engine.begin(job, places, now)
    return True


def waiting_jobs(engine: Engine) -> list[EngineJob]:
    return [entry[3] for group in engine.waiting_groups for entry in group.queue]
