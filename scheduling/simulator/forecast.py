"""When will who waits start? The Picture is replayed forward, with the engine that will really decide. Pure and seeded.

How long jobs take is drawn: each runs for a part of its time limit, and the parts are those of past jobs. Several draws
give a median and a late estimate (P90). Nobody else comes in the meantime, so under a policy that lets newcomers go
first an estimate is early; under `fifo` and `easy` newcomers change nothing for those before them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random

from scheduling.engine.cluster import Picture
from scheduling.engine.live import Opened
from scheduling.engine.rules import Rules
from scheduling.simulator.kernel import Arrivals, replay

DAY_S = 86_400.0
# Parts of their limits that jobs take where there is no history: most end early, some use it up
PARTS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.55, 0.75, 1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class StartEstimate:
    p50: datetime
    p90: datetime


def start_estimates(
    picture: Picture,
    rules: Callable[[], Rules],
    *,
    parts: Sequence[float] = PARTS,
    draws: int = 5,
    seed: int = 0,
) -> dict[int, StartEstimate]:
    """By job id. Who is held, not yet due or dependent has none; neither has who can never fit."""
    dice = Random(seed)
    starts: dict[int, list[float]] = {}
    for _ in range(draws):
        for job_id, at in _once(picture, rules(), parts, dice).items():
            starts.setdefault(job_id, []).append(at)
    return {job_id: _estimate(sorted(times)) for job_id, times in starts.items() if len(times) == draws}


def _once(picture: Picture, rules: Rules, parts: Sequence[float], dice: Random) -> dict[int, float]:
    opened = Opened(picture, rules)
    now = picture.now.timestamp()
    running = opened.adopt(picture.running)
    for job in running:
        # It has not ended yet, so it takes at least what it has had, and at most the longer of that and its limit
        past = now - job.began
        limit = max(past, _known(job.expected_s))
        job.remaining_s = past + (limit - past) * dice.choice(parts)
    jobs = [job for job, _ in opened.jobs]
    coming = Arrivals(
        submit_s=[now] * len(jobs),
        runtime_s=[_known(job.expected_s) * dice.choice(parts) for job in jobs],
        expected_s=[job.expected_s for job in jobs],
        asks=[job.ask for job in jobs],
        users=[0] * len(jobs),
        names=[0] * len(jobs),
        bands=[job.band for job in jobs],
    )
    outcome = replay(opened.engine, coming, running=running)
    began = zip(opened.jobs, outcome.started, strict=False)
    return {asked.id: at for (_, asked), at in began if math.isfinite(at)}


def _known(limit_s: float) -> float:
    """A job without a limit is taken to ask for a day."""
    return limit_s if math.isfinite(limit_s) else DAY_S


def _estimate(times: list[float]) -> StartEstimate:
    late = times[min(len(times) - 1, math.ceil(len(times) * 0.9) - 1)]
    return StartEstimate(p50=_when(times[(len(times) - 1) // 2]), p90=_when(late))


def _when(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
