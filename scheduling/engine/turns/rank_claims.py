"""Jobs of higher rank take the GPUs of running jobs of lower rank, if they find a place on them.

Live clusters, and replays that are compared with them, use this instead of the walk in `preempting`, which counts GPUs:
there a job may be stopped for a gang that finds no place. Here waiting jobs are tried in order of rank. A job that does
not fit on free GPUs may stop running jobs behind it in rank, but only jobs that agreed to be preempted (`EngineJob.
may_stop`), and only if it fits on their nodes afterwards. Of these, those that lose the least work since their last
checkpoint stop, and none that is not needed.

A job that needs GPUs of stopped jobs keeps its place for the rest of the turn and starts in a later one, when they have
stopped. That is how a live cluster works, and a replay decides again at the same moment (`replay.kernel`). This ends: a
stopped job may only stop jobs behind itself.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heapify, heappop, heappush

from scheduling.engine.engine import Engine
from scheduling.engine.job import EngineJob, QueueEntry, RequestGroup
from scheduling.engine.resources import GpuPlacement, NodeResources
from scheduling.engine.turns.claiming import preemption_loss, required_victims

RankedGroup = tuple[int, float, int, RequestGroup]


def claim_by_rank(engine: Engine, now: float) -> None:
    """Start the jobs that fit, in order of rank, and stop jobs of lower rank for those that fit only without them."""
    heads = [_ranked_group(engine, group, now) for group in engine.waiting_groups]
    heapify(heads)
    claims: list[tuple[QueueEntry, GpuPlacement]] = []
    unclaimed: NodeResources | None = None  # what is free without this turn's stops; set at the first of them
    while heads:
        band, rank, _, group = heappop(heads)
        if engine.is_over_quota(group):
            continue
        places = engine.place(engine.resources, group.need, group.eligible_nodes)
        if places is None:
            before = unclaimed or engine.resources.copy()
            places = _stop_jobs_behind(engine, group, band, rank, now)
            if places is None:
                continue
            unclaimed = before
        entry: QueueEntry = heappop(group.queue)
        if unclaimed is None or unclaimed.take_if_free(places, group.need):
            engine.begin(entry[3], places, now)
        else:
            claims.append((entry, places))
            engine.hold_claim(group, places, -1)
        if group.queue:
            heappush(heads, _ranked_group(engine, group, now))
    for group in list(engine.waiting_groups):
        engine.tidy(group)
    _let_claims_wait(engine, claims)


def _ranked_group(engine: Engine, group: RequestGroup, now: float) -> RankedGroup:
    """The group at the place of its first job."""
    job: EngineJob = group.queue[0][3]
    return job.band, engine.rules.rank(job, now), job.number, group


def _stop_jobs_behind(engine: Engine, group: RequestGroup, band: int, rank: float, now: float) -> GpuPlacement | None:
    """Stop jobs behind this place so that the group's first job fits, and return where; None if it does not fit."""
    behind = _jobs_behind(engine, band, rank, now)
    if not behind or engine.place(_without(engine, behind), group.need, group.eligible_nodes) is None:
        return None
    for victim in _cheapest_victims(engine, group, behind, now):
        victim.preempted_by = group.queue[0][3]
        engine.stop_job(victim, now)
    return engine.place(engine.resources, group.need, group.eligible_nodes)


def _jobs_behind(engine: Engine, band: int, rank: float, now: float) -> list[EngineJob]:
    """The running jobs of lower rank that may be stopped, in the order in which they lose the least work."""
    by_rank = engine.running.by_rank
    first = bisect_right(by_rank, (band, rank), key=lambda entry: entry[:2])
    behind = [entry[3] for entry in by_rank[first:] if entry[3].may_stop(now)]
    return sorted(behind, key=lambda job: (preemption_loss(engine, job, now), job.number))


def _cheapest_victims(engine: Engine, group: RequestGroup, behind: list[EngineJob], now: float) -> list[EngineJob]:
    """The fewest of `behind`, from the front, after which the job fits, without those that turn out to be unnecessary.
    It must fit without all of them.
    """
    low, high = 1, len(behind)
    while low < high:
        middle = (low + high) // 2
        fits = engine.place(_without(engine, behind[:middle]), group.need, group.eligible_nodes) is not None
        low, high = (low, middle) if fits else (middle + 1, high)
    chosen = behind[:low]
    return required_victims(engine, group, group.eligible_nodes, _without(engine, chosen), chosen[::-1])


def _without(engine: Engine, stopped: list[EngineJob]) -> NodeResources:
    resources = engine.resources.copy()
    for job in stopped:
        resources.give(job.places or (), job.group.need)
    return resources


def _let_claims_wait(engine: Engine, claims: list[tuple[QueueEntry, GpuPlacement]]) -> None:
    """Let the claiming jobs wait for the next turn. Their places stay taken until `Engine.return_claims`, so that
    explanations of a live cluster do not call them free.
    """
    for entry, places in claims:
        job = entry[3]
        heappush(job.group.queue, entry)
        engine.waiting_groups[job.group] = None
        engine.claims.append((job, places))
