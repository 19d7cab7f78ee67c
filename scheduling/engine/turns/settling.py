"""What a turn may do at once, if a job that is preempted has to stop before another one gets its GPUs.

A job that starts on GPUs of victims waits until they have stopped; the next turn starts it. This is how a live cluster
preempts. A replay with the knowledge of a live cluster does the same (`replay/kernel`).
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.engine.engine import Engine
from scheduling.engine.job import EngineJob
from scheduling.engine.resources import NodeResources


@dataclass(frozen=True, kw_only=True)
class SettledTurn:
    """The jobs that start at once, that wait for their victims, and that must stop.

    `restored` have started and been preempted within the turn, so they have done neither.
    """

    starts: list[EngineJob]
    delayed: list[EngineJob]
    stops: list[EngineJob]
    restored: list[EngineJob]


def settle_turn(engine: Engine, free: NodeResources) -> SettledTurn:
    """Separate the starts of the last turn that need a preemption first.

    `free` is what was really free before the turn, without GPUs that victims still hold. The starts take it.
    """
    started = set(engine.started_jobs)
    stops = [job for job in engine.stopped_jobs if job not in started]
    holding = [job for job in engine.started_jobs if job.places is not None]
    delayed = [job for job in holding if not free.take_if_free(job.places or (), job.group.need)] if stops else []
    later = set(delayed)
    return SettledTurn(
        starts=[job for job in holding if job not in later] if later else holding,
        delayed=delayed,
        stops=stops,
        restored=[job for job in engine.started_jobs if job.places is None],
    )


def settle_replayed_turn(engine: Engine, free: NodeResources, now: float) -> bool:
    """Take back the starts that need a preemption first, and let these jobs and the victims wait. Whether any job was
    stopped, so that another turn follows. The engine must not requeue stopped jobs itself.
    """
    turn = settle_turn(engine, free)
    engine.return_claims()
    for job in turn.delayed:
        engine.withdraw_start(job, now)
    for job in turn.restored:
        job.runs -= 1
        engine.submit(job, now)
    for job in turn.stops:
        engine.submit(job, now)
    engine.started_jobs[:], engine.stopped_jobs[:] = turn.starts, turn.stops
    return bool(turn.stops)
