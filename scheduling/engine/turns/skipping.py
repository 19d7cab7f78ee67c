"""No job blocks another: all jobs that fit start, in order. Wide jobs may wait long, as freed GPUs are taken at once.

Only the first job of each queue is tried. If nothing was freed, only queues with new jobs are tried.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

from scheduling.engine.engine import Engine


def skipping_turn(engine: Engine, now: float) -> None:
    """Start all jobs that fit, in order."""
    groups = engine.groups_to_try()
    if not groups:
        return
    place, resources = engine.place, engine.resources
    heads = [(*group.queue[0][:3], group) for group in groups]
    heapify(heads)
    nowhere: set[int] = set()
    while heads:
        group = heads[0][3]
        if group.shape in nowhere or (engine.quota_usage and engine.is_over_quota(group)):
            heappop(heads)
        elif (places := place(resources, group.need, group.eligible_nodes)) is None:
            nowhere.add(group.shape)
            heappop(heads)
        else:
            engine.begin(heappop(group.queue)[3], places, now)
            if group.queue:
                heapreplace(heads, (*group.queue[0][:3], group))
            else:
                heappop(heads)
                engine.tidy(group)
