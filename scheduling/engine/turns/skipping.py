"""No job blocks another: all jobs that fit start, in order. Wide jobs may wait long, as freed GPUs are taken at once.

Only the first job of each queue is tried. If nothing was freed, only queues with new jobs are tried.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

from scheduling.engine.engine import Engine


def skipping_turn(engine: Engine, now: float) -> None:
    """Start all jobs that fit, in order."""
    asks = engine.groups_to_try()
    if not asks:
        return
    place, room = engine.place, engine.room
    heads = [(*ask.line[0][:3], ask) for ask in asks]
    heapify(heads)
    nowhere: set[int] = set()
    while heads:
        ask = heads[0][3]
        if ask.shape in nowhere or (engine.books and engine.is_over_quota(ask)):
            heappop(heads)
        elif (places := place(room, ask.need, ask.able)) is None:
            nowhere.add(ask.shape)
            heappop(heads)
        else:
            engine.begin(heappop(ask.line)[3], places, now)
            if ask.line:
                heapreplace(heads, (*ask.line[0][:3], ask))
            else:
                heappop(heads)
                engine.tidy(ask)
