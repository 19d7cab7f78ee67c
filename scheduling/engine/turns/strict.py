"""The first job that does not fit blocks all jobs behind it. Jobs that are over a quota block no others."""

from __future__ import annotations

from heapq import heappop, heappush

from scheduling.engine.engine import Engine
from scheduling.engine.job import QueueEntry


def strict_turn(engine: Engine, now: float) -> None:
    """Start jobs in order up to the first one that does not fit."""
    queue, place, resources = engine.queue, engine.place, engine.resources
    if not queue:
        return
    first = queue[0][3]
    if first is engine.changes.blocked_job and not engine.changes.may_fit(first.group):
        return
    aside: list[QueueEntry] = []
    engine.changes.blocked_job = None
    while queue:
        job = queue[0][3]
        group = job.group
        if engine.quota_usage and engine.is_over_quota(group):
            aside.append(heappop(queue))
        elif (places := place(resources, group.need, group.eligible_nodes)) is not None:
            heappop(queue)
            engine.begin(job, places, now)
        else:
            engine.changes.blocked_job = job
            break
    for entry in aside:
        heappush(queue, entry)
