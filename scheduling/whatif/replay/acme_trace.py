"""Draw traces from the distributions of the Acme datacenter, any number of jobs within a second. Pure and seeded.

Run times follow the published curves, interpolated on a log scale; sizes come from the mixture of each kind
(`acme_figures`). Arrivals follow a working day and week; evaluations arrive in batches, because one checkpoint is
tested on many datasets. `distances` measures how far a drawn trace is from the published figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jobs.traces.trace import Floats, Ints, Trace, trace_from_columns
from scheduling.whatif.replay.acme_figures import BOUNDS_S, PUBLISHED_CLUSTERS, KindFigures, PublishedCluster

__all__ = ["PUBLISHED_CLUSTERS", "TRACE_TEAMS", "Distance", "PublishedCluster", "distances", "draw_trace"]

DAY_S = 86_400
EVALUATION_BATCH = 16  # mean number of evaluations per checkpoint
TRACE_TEAMS = tuple(f"t{number}" for number in range(12))  # users are distributed over these
# Submissions by hour of the day: low at night, high in the afternoon
HOUR_WEIGHTS = (4, 3, 2, 2, 2, 2, 2, 3, 5, 8, 10, 9, 6, 8, 10, 10, 10, 9, 7, 7, 7, 7, 6, 5)
WEEKDAY_WEIGHTS = (1.1, 1.1, 1.1, 1.1, 1.1, 0.8, 0.7)


def draw_trace(site: PublishedCluster, name: str, *, jobs: int | None = None, seed: int = 0) -> Trace:
    """A trace with `jobs` jobs; fewer jobs than the site had cover a shorter time at the same rate."""
    dice = np.random.default_rng(seed)
    count = site.jobs if jobs is None else jobs
    shares = np.array([work.share for work in site.work.values()])
    kinds = dice.choice(len(shares), size=count, p=shares / shares.sum())
    durations, gpus = np.empty(count), np.empty(count, dtype=np.int32)
    for number, work in enumerate(site.work.values()):
        rows = np.flatnonzero(kinds == number)
        durations[rows] = _draw_run_times(work, len(rows), dice)
        gpus[rows] = _sizes(work, len(rows), dice)
    submit = _arrivals(count, site.days * count / site.jobs, dice)
    batches = np.flatnonzero(kinds == [kind.value for kind in site.work].index("evaluation"))
    # All jobs of a batch arrive with its first
    submit[batches] = submit[batches[(np.arange(len(batches)) // EVALUATION_BATCH) * EVALUATION_BATCH]]
    words = [kind.value for kind in site.work]
    users = np.minimum(dice.zipf(1.4, size=count), site.users).tolist()
    return trace_from_columns(
        f"acme:{name}",
        submit_s=np.floor(submit),
        runtime_s=np.ceil(durations),
        gpus=gpus,
        kinds=[words[kind] for kind in kinds.tolist()],
        names=[words[kind] for kind in kinds.tolist()],
        users=[f"u{user}" for user in users],
        pools=[TRACE_TEAMS[user % len(TRACE_TEAMS)] for user in users],
    )


def _draw_run_times(work: KindFigures, count: int, dice: np.random.Generator) -> Floats:
    """Draw run times. The minimum is one second; curves that begin above it start at their first point."""
    shares = np.array((0.0, *work.at_most))
    bounds = np.log((1.0, *BOUNDS_S))
    # Use only the last point at 0% and the first at 100%, because no job lies beyond them
    first = int(np.flatnonzero(shares <= 0)[-1])
    last = int(np.flatnonzero(shares >= 100)[0])
    at = dice.uniform(0, 100, size=count)
    drawn: Floats = np.exp(np.interp(at, shares[first : last + 1], bounds[first : last + 1]))
    return drawn


def _sizes(work: KindFigures, count: int, dice: np.random.Generator) -> Ints:
    weights = np.array(list(work.sizes.values()))
    return dice.choice(np.array(list(work.sizes), dtype=np.int32), size=count, p=weights / weights.sum())


def _arrivals(count: int, days: float, dice: np.random.Generator) -> Floats:
    """Times in order; hours are drawn by their weight."""
    hours = max(1, round(days * 24))
    weights = np.array([HOUR_WEIGHTS[hour % 24] * WEEKDAY_WEIGHTS[hour // 24 % 7] for hour in range(hours)])
    chosen = dice.choice(hours, size=count, p=weights / weights.sum())
    times: Floats = np.sort(chosen * 3600.0 + dice.uniform(0, 3600, size=count)) * (days * 24 / hours)
    return times


@dataclass(frozen=True, kw_only=True)
class Distance:
    """The largest gap between the curves of drawn and published jobs, in percentage points."""

    of: str
    points: float
    jobs: int

    def __str__(self) -> str:
        return f"{self.of}: {self.points:.2f} points over {self.jobs:,} jobs"


def distances(trace: Trace, site: PublishedCluster) -> list[Distance]:
    """The gaps for sizes, run times, and shares of jobs and GPU time."""
    kinds = np.array(trace.kinds.words)[trace.kinds.codes]
    work_s = trace.gpus * trace.runtime_s
    gaps = [Distance(of="sizes of all", points=_gap(trace.gpus, site.widths), jobs=len(trace))]
    all_shares = sum(work.share for work in site.work.values())
    for kind, work in site.work.items():
        of_kind = kinds == kind.value
        count = int(of_kind.sum())
        if not count:
            continue
        curve = dict(zip(BOUNDS_S, work.at_most, strict=True))
        part, time = count / len(trace) * 100, work_s[of_kind].sum() / work_s.sum() * 100
        for of, points in (
            ("run times", _gap(trace.runtime_s[of_kind], curve)),
            ("share of jobs", abs(part - work.share / all_shares * 100)),
            ("share of GPU time", abs(float(time) - work.gpu_time)),
        ):
            gaps.append(Distance(of=f"{kind.value}, {of}", points=points, jobs=count))
    return gaps


def _gap(values: np.ndarray[Any, Any], curve: dict[Any, float]) -> float:
    """The largest gap between the distribution of the values and a curve."""
    share = np.searchsorted(np.sort(values), list(curve), side="right") / len(values) * 100
    return float(np.abs(share - np.array(list(curve.values()))).max())
