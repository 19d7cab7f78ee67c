"""Leases: who gets GPUs is decided again at the end of each lease, for all jobs together.

`LeasePlan` is the timetable of guaranteed jobs in slots of a quarter of a lease. It answers whether one more job can be
guaranteed its deadline, and which guaranteed jobs cannot wait any longer. Each job is put into its latest slots, so
that earlier ones stay free for jobs that arrive later. Capacity is counted in GPUs.

`leasing_turn` walks over the jobs in a given order, gives GPUs to each that still fits by count, stops the running jobs
that get none, and places the others. A gang that finds no place among scattered GPUs waits for the next turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from heapq import heapify

import numpy as np

from scheduling.engine.engine import Engine
from scheduling.engine.job import EngineJob

SLOTS_PER_LEASE = 4
GROWTH = 1024


class LeasePlan:
    """GPUs that guaranteed jobs need, by slot."""

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
    """Give the GPUs to these jobs, running or waiting, in this order."""
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
