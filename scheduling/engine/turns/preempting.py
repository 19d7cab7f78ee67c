"""Jobs of higher rank take the GPUs of jobs of lower rank.

The result equals a walk over all jobs, running and waiting, in order of rank, that gives GPUs to each job that still
fits; no other job keeps any. It is computed without the walk. A waiting job fits at its place if the free GPUs and
those held by jobs behind it suffice. The jobs furthest behind are tried first, and few are enough. Only the first job
of each queue is tried, because the others have the same request and a lower place. By induction over the order, a state
in which no waiting job fits at its place is the state that the walk would produce.

GPUs are counted here, as in HeliosArtifact and Tiresias. Then victims stop and the chosen jobs are placed. A gang that
finds no place among scattered free GPUs keeps waiting and is tried again at the next event. Live clusters use
`rank_claims` instead.
"""

from __future__ import annotations

from bisect import insort
from heapq import heapify, heappop, heappush

from scheduling.engine.engine import Engine
from scheduling.engine.job import EngineJob, QueueEntry, RequestGroup
from scheduling.engine.turns.rank_claims import claim_by_rank

RankHead = tuple[int, float, int, RequestGroup, EngineJob | None]  # the job is set only if it runs and may have to stop


def preempting_turn(engine: Engine, now: float) -> None:
    """Choose starts and victims by GPU count, stop the victims, then place the chosen jobs."""
    if engine.claims_by_rank:
        claim_by_rank(engine, now)
        return
    changes = engine.changes
    only_new = changes.only_arrivals and not changes.blocked_job
    groups = changes.groups_with_arrivals if only_new else engine.waiting_groups
    if not groups:
        return
    chosen, victims = _choose_starts(engine, groups, now)
    for job in victims:
        engine.running.add_rank(job)
        engine.stop_job(job, now)
    changes.blocked_job = None
    for entry in chosen:
        job = entry[3]
        group = job.group
        if (places := engine.place(engine.resources, group.need, group.eligible_nodes)) is not None:
            engine.begin(job, places, now)
            engine.tidy(group)
        else:
            heappush(group.queue, entry)
            engine.waiting_groups[group] = None
            changes.blocked_job = job


def _choose_starts(
    engine: Engine, groups: dict[RequestGroup, None], now: float
) -> tuple[list[QueueEntry], list[EngineJob]]:
    """The entries to start, in order, and the jobs that must stop. Victims leave `ranked`, chosen entries
    their queues.
    """
    heads = [_group_head(engine, group, now) for group in groups]
    heapify(heads)
    chosen: list[QueueEntry] = []
    victims: dict[int, EngineJob] = {}
    hopeless: set[RequestGroup] = set()
    free = engine.resources.free_gpus
    by_rank, new_groups = engine.running.by_rank, engine.changes.groups_with_arrivals
    while heads:
        band, rank, number, group, ousted = heappop(heads)
        at = None if group in hopeless else _first_victim_index(by_rank, (band, rank, number), group.gpus - free)
        if at is None:
            hopeless.add(group)
            continue
        free -= group.gpus
        if ousted:
            del victims[number]
            insort(by_rank, (band, rank, number, ousted))
        else:
            chosen.append(heappop(group.queue))
            if group.queue:
                heappush(heads, _group_head(engine, group, now))
        if free < 0:
            free = _collect_victims(engine, at, free, victims, heads)
            if groups is new_groups:  # a wide job that stops may leave GPUs for other jobs than the new ones
                for other in engine.waiting_groups:
                    if other not in groups:
                        heappush(heads, _group_head(engine, other, now))
                groups = engine.waiting_groups
    return chosen, list(victims.values())


def _group_head(engine: Engine, group: RequestGroup, now: float) -> RankHead:
    """The group's first job with its rank."""
    job: EngineJob = group.queue[0][3]
    return job.band, engine.rules.rank(job, now), job.number, group, None


def _first_victim_index(ranked: list[QueueEntry], place: tuple[int, float, int], lack: int) -> int | None:
    """The index in `ranked` from which jobs must give up GPUs, none before `place`; None if that is not enough."""
    at = len(ranked)
    while lack > 0:
        at -= 1
        if at < 0 or ranked[at][:2] <= place[:2]:
            return None
        lack -= ranked[at][3].group.gpus
    return at


def _collect_victims(engine: Engine, at: int, free: int, victims: dict[int, EngineJob], heads: list[RankHead]) -> int:
    """Let jobs from index `at` keep what still fits, in order; the others become victims. Return the free GPUs."""
    by_rank = engine.running.by_rank
    behind = by_rank[at:]
    del by_rank[at:]
    free += sum(entry[3].group.gpus for entry in behind)
    for entry in behind:
        job = entry[3]
        if job.group.gpus <= free:
            free -= job.group.gpus
            by_rank.append(entry)
        else:
            victims[job.number] = job
            heappush(heads, (*entry[:3], job.group, job))
    return free
