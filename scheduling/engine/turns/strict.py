"""The first job that does not fit blocks all jobs behind it. Jobs that are over a quota block no others."""

from __future__ import annotations

from heapq import heappop, heappush

from scheduling.engine.engine import Engine, QueueEntry


def strict_turn(engine: Engine, now: float) -> None:
    """Start jobs in order up to the first one that does not fit."""
    line, place, room = engine.line, engine.place, engine.room
    if not line:
        return
    first = line[0][3]
    if first is engine.blocked and (not engine.freed or first.ask.share > engine.opened):
        return
    aside: list[QueueEntry] = []
    engine.blocked = None
    while line:
        job = line[0][3]
        ask = job.ask
        if engine.books and engine.is_over_quota(ask):
            aside.append(heappop(line))
        elif (places := place(room, ask.need, ask.able)) is not None:
            heappop(line)
            engine.begin(job, places, now)
        else:
            engine.blocked = job
            break
    for entry in aside:
        heappush(line, entry)
