"""Traces drawn from the distributions of the Acme datacenter, any number of jobs in a second. Pure and seeded.

Shares, durations and sizes by kind are those of the clusters Seren and Kalos, tabulated from the AcmeTrace dataset
(CC-BY-4.0; "Characterization of Large Language Model Development in the Datacenter", NSDI'24). Durations lie on the
published curves, straight between their points on a log scale; sizes are powers of two from the published boxes.
Arrivals follow a working day and week; evaluations come in batches, as one checkpoint is tried on many datasets.
Traps: Kalos' durations contain its (short) queueing; the ends of the boxes are whiskers, so the widest jobs are
missing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jobs.lifecycle import Kind
from jobs.traces.trace import Floats, Trace, made_of

PERCENTILES = (0, 10, 25, 50, 75, 90, 95, 99, 100)
DAY_S = 86_400
BATCH = 16  # evaluations of one checkpoint, in the mean
# Submissions by hour of the day: low at night, high in the afternoon
HOURS = (4, 3, 2, 2, 2, 2, 2, 3, 5, 8, 10, 9, 6, 8, 10, 10, 10, 9, 7, 7, 7, 7, 6, 5)
WEEKDAYS = (1.1, 1.1, 1.1, 1.1, 1.1, 0.8, 0.7)


@dataclass(frozen=True, kw_only=True)
class Work:
    share: float  # percent of all jobs
    durations_s: tuple[float, ...]  # at PERCENTILES
    gpus: tuple[int, int, int, int, int]  # whisker, quartiles, whisker


@dataclass(frozen=True, kw_only=True)
class Site:
    nodes: int
    jobs: int
    days: float
    users: int
    work: dict[Kind, Work]


SITES = {
    "seren": Site(
        nodes=286,
        jobs=663_813,
        days=184,
        users=250,
        work={
            Kind.EVALUATION: Work(
                share=64.9, durations_s=(1, 7.4, 15.9, 129, 391, 1207, 2753, 15619, 65536), gpus=(1, 1, 1, 4, 8)
            ),
            Kind.PRETRAIN: Work(
                share=0.9, durations_s=(4, 30, 50, 297, 1197, 24651, 77375, 313656, 1e6), gpus=(40, 64, 128, 256, 512)
            ),
            Kind.SFT: Work(
                share=14.9, durations_s=(1, 11.9, 47, 197, 452, 1128, 2318, 13237, 131072), gpus=(1, 2, 8, 8, 16)
            ),
            Kind.MLLM: Work(
                share=2.9, durations_s=(1, 8.6, 28, 253, 795, 5377, 22772, 75458, 524288), gpus=(1, 1, 2, 8, 16)
            ),
            Kind.DEBUG: Work(
                share=1.9, durations_s=(1, 6.4, 23, 114, 359, 935, 1889, 22590, 262144), gpus=(8, 8, 8, 8, 8)
            ),
            Kind.OTHER: Work(
                share=14.6, durations_s=(1, 4.1, 10, 77, 356, 2289, 6732, 55552, 524288), gpus=(1, 1, 1, 8, 16)
            ),
        },
    ),
    "kalos": Site(
        nodes=302,
        jobs=19_907,
        days=91.2,
        users=60,
        work={
            Kind.EVALUATION: Work(
                share=92.8, durations_s=(2, 22, 39, 111, 324, 1388, 2490, 6253, 65536), gpus=(1, 1, 1, 1, 1)
            ),
            Kind.PRETRAIN: Work(
                share=3.2,
                durations_s=(8, 110, 245, 707, 6283, 43161, 92588, 280332, 1e6),
                gpus=(96, 256, 512, 512, 512),
            ),
            Kind.DEBUG: Work(
                share=2.7, durations_s=(4, 60, 119, 327, 602, 1128, 1706, 3991, 16384), gpus=(1, 32, 128, 512, 1024)
            ),
            Kind.OTHER: Work(
                share=1.3, durations_s=(2, 17, 46, 293, 1010, 32768, 112981, 588493, 1e6), gpus=(1, 2, 8, 32, 64)
            ),
        },
    ),
}


def drawn(site: Site, name: str, *, jobs: int | None = None, seed: int = 0) -> Trace:
    """With fewer jobs than the site had, a shorter time at the same rate."""
    dice = np.random.default_rng(seed)
    count = site.jobs if jobs is None else jobs
    shares = np.array([work.share for work in site.work.values()])
    kinds = dice.choice(len(shares), size=count, p=shares / shares.sum())
    durations, gpus = np.empty(count), np.empty(count, dtype=np.int32)
    for number, work in enumerate(site.work.values()):
        rows = np.flatnonzero(kinds == number)
        durations[rows] = _durations(work, len(rows), dice)
        gpus[rows] = _sizes(work, len(rows), dice)
    submit = _arrivals(count, site.days * count / site.jobs, dice)
    batches = np.flatnonzero(kinds == list(site.work).index(Kind.EVALUATION))
    # Everybody in a batch comes when its first does
    submit[batches] = submit[batches[(np.arange(len(batches)) // BATCH) * BATCH]]
    words = [kind.value for kind in site.work]
    users = np.minimum(dice.zipf(1.4, size=count), site.users)
    return made_of(
        f"acme:{name}",
        submit_s=np.floor(submit),
        runtime_s=np.maximum(1.0, np.floor(durations)),
        gpus=gpus,
        kinds=[words[kind] for kind in kinds.tolist()],
        names=[words[kind] for kind in kinds.tolist()],
        users=[f"u{user}" for user in users.tolist()],
    )


def _durations(work: Work, count: int, dice: np.random.Generator) -> Floats:
    at = dice.uniform(0, 100, size=count)
    return np.exp(np.interp(at, PERCENTILES, np.log(work.durations_s)))


def _sizes(work: Work, count: int, dice: np.random.Generator) -> Floats:
    at = dice.uniform(0, 100, size=count)
    sizes = 2.0 ** np.round(np.interp(at, (0, 25, 50, 75, 100), np.log2(work.gpus)))
    return sizes


def _arrivals(count: int, days: float, dice: np.random.Generator) -> Floats:
    """Times in order: each hour draws its part by its weight."""
    hours = max(1, round(days * 24))
    weights = np.array([HOURS[hour % 24] * WEEKDAYS[hour // 24 % 7] for hour in range(hours)])
    chosen = dice.choice(hours, size=count, p=weights / weights.sum())
    times: Floats = np.sort(chosen * 3600.0 + dice.uniform(0, 3600, size=count)) * (days * 24 / hours)
    return times


def distances(trace: Trace, site: Site) -> dict[str, float]:
    """Per kind, the widest gap between the drawn durations and the published curve, in percentage points."""
    gaps = {}
    kinds = np.array(trace.kinds.words)[trace.kinds.codes]
    for kind, work in site.work.items():
        values = np.sort(trace.runtime_s[kinds == kind.value])
        if len(values):
            share = np.searchsorted(values, work.durations_s[1:-1], side="right") / len(values) * 100
            gaps[kind.value] = float(np.abs(share - PERCENTILES[1:-1]).max())
    return gaps
