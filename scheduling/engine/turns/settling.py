"""What a turn may do at once, if a job that is preempted has to stop before another one gets its GPUs.

A job that starts on GPUs of victims waits until they have stopped; the next turn starts it. This is how a live cluster
preempts. A replay with the knowledge of a live cluster does the same (`replay/kernel`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduling.engine.engine import Engine
from scheduling.engine.job import EngineJob


class UnclaimedResources:
    """What was really free before a turn, without GPUs that victims still hold."""

    def __init__(self, gpus: Sequence[int], cpus: Sequence[int], memory_mb: Sequence[int]) -> None:
        self._gpus, self._cpus, self._memory_mb = list(gpus), list(cpus), list(memory_mb)

    def take(self, job: EngineJob) -> bool:
        """Take the resources of the job's placement; False if they are not all free."""
        need, places = job.group.need, job.places
        assert places is not None
        cpus, memory_mb = need.cpus, need.memory_mb
        for number, gpus in places:
            if self._gpus[number] < gpus or self._cpus[number] < cpus or self._memory_mb[number] < memory_mb:
                return False
        for number, gpus in places:
            self._gpus[number] -= gpus
            self._cpus[number] -= cpus
            self._memory_mb[number] -= memory_mb
        return True


@dataclass(frozen=True, kw_only=True)
class SettledTurn:
    """The jobs that start at once, that wait for their victims, and that must stop.

    `restored` have started and been preempted within the turn, so they have done neither.
    """

    starts: list[EngineJob]
    delayed: list[EngineJob]
    stops: list[EngineJob]
    restored: list[EngineJob]


def settle_turn(engine: Engine, free: UnclaimedResources) -> SettledTurn:
    """Separate the starts of the last turn that need a preemption first."""
    started = set(engine.started_jobs)
    stops = [job for job in engine.stopped_jobs if job not in started]
    holding = [job for job in engine.started_jobs if job.places is not None]
    delayed = [job for job in holding if not free.take(job)] if stops else []
    later = set(delayed)
    return SettledTurn(
        starts=[job for job in holding if job not in later] if later else holding,
        delayed=delayed,
        stops=stops,
        restored=[job for job in engine.started_jobs if job.places is None],
    )


def settle_replayed_turn(engine: Engine, free: UnclaimedResources, now: float) -> bool:
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
