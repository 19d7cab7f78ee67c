"""The first job that does not fit blocks all jobs behind it. Jobs that are over a quota block no others."""

from __future__ import annotations

from heapq import heappop, heappush

from scheduling.engine.engine import Engine, QueueEntry


def strict_turn(engine: Engine, now: float) -> None:
    """Start jobs in order up to the first one that does not fit."""
    queue, place, resources = engine.queue, engine.place, engine.resources
    if not queue:
        return
    first = queue[0][3]
    if first is engine.blocked and (not engine.freed or first.group.min_node_gpus > engine.opened):
        return
    aside: list[QueueEntry] = []
    engine.blocked = None
    while queue:
        job = queue[0][3]
        group = job.group
        if engine.quota_usage and engine.is_over_quota(group):
            aside.append(heappop(queue))
        elif (places := place(resources, group.need, group.eligible_nodes)) is not None:
            heappop(queue)
            engine.begin(job, places, now)
        else:
            engine.blocked = job
            break
    for entry in aside:
        heappush(queue, entry)
