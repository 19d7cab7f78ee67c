"""Jobs of higher rank take the GPUs of jobs of lower rank.

The result equals a walk over all jobs, running and waiting, in order of rank, that gives GPUs to each job that still
fits; no other job keeps any. It is computed without the walk. A waiting job fits at its place if the free GPUs and
those held by jobs behind it suffice. The jobs furthest behind are tried first, and few are enough. Only the first job
of each queue is tried, because the others have the same request and a lower place. By induction over the order, a state
in which no waiting job fits at its place is the state that the walk would produce.

GPUs are counted here, as in HeliosArtifact and Tiresias. Then victims stop and the chosen jobs are placed. A gang that
finds no place among scattered free GPUs keeps waiting and is tried again at the next event.
"""

from __future__ import annotations

from bisect import insort
from heapq import heapify, heappop, heappush

from scheduling.engine.engine import Engine, EngineJob, QueueEntry, RequestGroup

RankHead = tuple[int, float, int, RequestGroup, EngineJob | None]  # the job is set only if it runs and may have to stop


def preempting_turn(engine: Engine, now: float) -> None:
    """Choose starts and victims by GPU count, stop the victims, then place the chosen jobs."""
    asks = engine.hungry if engine.freed or engine.blocked else engine.fresh
    if not asks:
        return
    chosen, victims = _choose_starts(engine, asks, now)
    for job in victims:
        insort(engine.ranked, (job.band, job.key, job.number, job))
        engine.stop_job(job, now)
    engine.blocked = None
    for entry in chosen:
        job = entry[3]
        ask = job.ask
        if (places := engine.place(engine.room, ask.need, ask.able)) is not None:
            engine.begin(job, places, now)
            engine.tidy(ask)
        else:
            heappush(ask.line, entry)
            engine.hungry[ask] = None
            engine.blocked = job


def _choose_starts(
    engine: Engine, asks: dict[RequestGroup, None], now: float
) -> tuple[list[QueueEntry], list[EngineJob]]:
    """The entries to start, in order, and the jobs that must stop. Victims leave `ranked`, chosen entries
    their queues.
    """
    heads = [_group_head(engine, ask, now) for ask in asks]
    heapify(heads)
    chosen: list[QueueEntry] = []
    victims: dict[int, EngineJob] = {}
    hopeless: set[RequestGroup] = set()
    free = engine.room.free_gpus
    while heads:
        band, rank, number, ask, ousted = heappop(heads)
        at = None if ask in hopeless else _first_victim_index(engine.ranked, (band, rank, number), ask.gpus - free)
        if at is None:
            hopeless.add(ask)
            continue
        free -= ask.gpus
        if ousted:
            del victims[number]
            insort(engine.ranked, (band, rank, number, ousted))
        else:
            chosen.append(heappop(ask.line))
            if ask.line:
                heappush(heads, _group_head(engine, ask, now))
        if free < 0:
            free = _collect_victims(engine, at, free, victims, heads)
            if asks is engine.fresh:  # a wide job that stops may leave GPUs for other jobs than the new ones
                for other in engine.hungry:
                    if other not in asks:
                        heappush(heads, _group_head(engine, other, now))
                asks = engine.hungry
    return chosen, list(victims.values())


def _group_head(engine: Engine, ask: RequestGroup, now: float) -> RankHead:
    """The group's first job with its rank."""
    job: EngineJob = ask.line[0][3]
    return job.band, engine.rules.rank(job, now), job.number, ask, None


def _first_victim_index(ranked: list[QueueEntry], place: tuple[int, float, int], lack: int) -> int | None:
    """The index in `ranked` from which jobs must give up GPUs, none before `place`; None if that is not enough."""
    at = len(ranked)
    while lack > 0:
        at -= 1
        if at < 0 or ranked[at][:2] <= place[:2]:
            return None
        lack -= ranked[at][3].ask.gpus
    return at


def _collect_victims(engine: Engine, at: int, free: int, victims: dict[int, EngineJob], heads: list[RankHead]) -> int:
    """Let jobs from index `at` keep what still fits, in order; the others become victims. Return the free GPUs."""
    behind = engine.ranked[at:]
    del engine.ranked[at:]
    free += sum(entry[3].ask.gpus for entry in behind)
    for entry in behind:
        job = entry[3]
        if job.ask.gpus <= free:
            free -= job.ask.gpus
            engine.ranked.append(entry)
        else:
            victims[job.number] = job
            heappush(heads, (*entry[:3], job.ask, job))
    return free
