"""Jobs start on free GPUs or on those of others. No job blocks another.

A waiting job that was tried before is only tried with sets of GPUs that have changed since, and only if a job of its
size may find free GPUs. This decides the same as trying all jobs with all sets, because the rules answer the same while
a set stays the same. Jobs that start in a turn are sets of their own, which others may join: the walk is repeated until
no set changes any more.
"""

from __future__ import annotations

from heapq import heapify
from typing import TYPE_CHECKING

from scheduling.engine.job import EngineJob, QueueEntry, RequestGroup
from scheduling.engine.packing.shared_gpus import GpuHolders, PackingEngine

if TYPE_CHECKING:
    from scheduling.engine.packing.rules import PackingRules


def packing_turn(engine: PackingEngine, rules: PackingRules, now: float) -> None:
    """Start all jobs that fit on free GPUs or on those of others, in order."""
    fitting = {group.shape for group in engine.groups_to_try()}
    while engine.waiting_groups:
        changed, engine.news = engine.news, []
        sizes = {holders.jobs[0].group.gpus for holders in changed if holders.entry}
        new = engine.changes.groups_with_arrivals
        groups = [group for group in engine.waiting_groups if _is_tried(group, fitting, sizes) or group in new]
        if not groups:
            break
        _walk(engine, rules, groups, changed, fitting, now)
        new.clear()
        if not engine.news:
            break
    engine.news.clear()


def _is_tried(group: RequestGroup, fitting: set[int], sizes: set[int]) -> bool:
    return group.shape in fitting or group.gpus in sizes


def _walk(
    engine: PackingEngine,
    rules: PackingRules,
    groups: list[RequestGroup],
    changed: list[GpuHolders],
    fitting: set[int],
    now: float,
) -> None:
    """Try all jobs of these groups once. Removes from `fitting` what fits on no free GPUs."""
    entries: list[QueueEntry] = []
    for group in groups:
        entries += group.queue
    entries.sort()
    any_started = False
    for entry in entries:
        job = entry[3]
        started = rules.shares_first and _join(engine, rules, job, changed, now)
        started = started or _take_free(engine, job, fitting, now)
        if started or (not rules.shares_first and _join(engine, rules, job, changed, now)):
            any_started = True
    if any_started:
        for group in groups:
            _drop_started(engine, group)


def _take_free(engine: PackingEngine, job: EngineJob, fitting: set[int], now: float) -> bool:
    """Start the job on free GPUs, if it fits."""
    group = job.group
    if group.shape not in fitting:
        return False
    if (places := engine.place(engine.resources, group.need, group.eligible_nodes)) is None:
        fitting.discard(group.shape)
        return False
    engine.begin(job, places, now)
    return True


def _join(engine: PackingEngine, rules: PackingRules, job: EngineJob, changed: list[GpuHolders], now: float) -> bool:
    """Start the job on the GPUs of the best set that it may join. A job that was tried before looks at changed sets."""
    if (profile := engine.profile(job)) is None:
        return False
    gpus = job.group.gpus
    if job.number in engine.tried:
        recent = (*changed, *engine.news)  # those that opened within this walk too
        candidates = [one.entry for one in recent if one.entry and one.jobs[0].group.gpus == gpus]
        candidates.sort()
    else:
        candidates = engine.open_sets(gpus)
        engine.tried.add(job.number)
    best: GpuHolders | None = None
    lowest = 0.0
    for _, _, holders in candidates:
        cost = rules.sharing_cost(job, profile, holders, engine.profiles)
        if cost is not None and (best is None or cost < lowest) and engine.has_cpu_memory(holders, job):
            best, lowest = holders, cost
            if cost <= 0.0:
                break
    if best is None:
        return False
    engine.join(best, job, now)
    return True


def _drop_started(engine: PackingEngine, group: RequestGroup) -> None:
    """Remove the jobs that run now from the queue of their group."""
    group.queue = [entry for entry in group.queue if entry[3].places is None]
    heapify(group.queue)
    engine.tidy(group)
