"""Compares the jobs of a simulated history with the published figures of the study. Pure.

A job gets at most half of the cluster's GPUs, so the figures are those of the published distribution with sizes up to
this limit. Errors are standard errors of the sample, from resampling the jobs of the history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobs.core.lifecycle import JobKind
from scheduling.simulation.drill.failure_odds import DRAWN_REASONS, EVEN_ODDS
from scheduling.simulation.drill.history import SiteHistory
from scheduling.simulation.machines.failure_reasons import REASONS_BY_NAME, FailureFamily
from scheduling.whatif.replay import acme_trace
from scheduling.whatif.replay.acme_figures import PUBLISHED_CLUSTERS

POPULATION = 400_000  # jobs drawn from the published distribution
RESAMPLES = 100


@dataclass(frozen=True, kw_only=True)
class FigureComparison:
    figure: str
    subject: str
    history: float
    study: float
    error: float  # standard error of the history's figure

    @property
    def deviation(self) -> float:
        """Difference in standard errors."""
        return abs(self.history - self.study) / max(self.error, 1e-9)


@dataclass(frozen=True, kw_only=True)
class JobColumns:
    kinds: Any  # index among the kinds of the site
    gpus: Any
    seconds: Any

    def take(self, rows: Any) -> JobColumns:
        return JobColumns(kinds=self.kinds[rows], gpus=self.gpus[rows], seconds=self.seconds[rows])


FIGURES: dict[str, Callable[[JobColumns, int], float]] = {
    "jobs, %": lambda jobs, kind: 100.0 * float((jobs.kinds == kind).mean()),
    "GPU time, %": lambda jobs, kind: 100.0 * _gpu_time_share(jobs, kind),
    "median run time, s": lambda jobs, kind: float(np.median(jobs.seconds[jobs.kinds == kind])),
}


def _gpu_time_share(jobs: JobColumns, kind: int) -> float:
    used = jobs.gpus * jobs.seconds
    return float(used[jobs.kinds == kind].sum() / used.sum())


def compare_jobs(history: SiteHistory, most_gpus: int) -> Iterator[FigureComparison]:
    """Yield job shares, shares of the requested GPU time, and median run times of each kind."""
    site = history.plan.site
    kinds = list(PUBLISHED_CLUSTERS[site].work)
    ours, study = _columns_of_history(history, kinds), _columns_of_study(site, most_gpus)
    dice = np.random.default_rng(1)
    resampled = [ours.take(dice.integers(len(ours.kinds), size=len(ours.kinds))) for _ in range(RESAMPLES)]
    for name, figure in FIGURES.items():
        for number, kind in enumerate(kinds):
            error = float(np.nanstd([figure(jobs, number) for jobs in resampled]))
            yield FigureComparison(
                figure=name, subject=kind.value, history=figure(ours, number), study=figure(study, number), error=error
            )


def _columns_of_history(history: SiteHistory, kinds: Sequence[JobKind]) -> JobColumns:
    return JobColumns(
        kinds=np.array([kinds.index(job.kind) for job in history.jobs]),
        gpus=np.array([job.gpus for job in history.jobs], dtype=float),
        seconds=np.array([job.need_s for job in history.jobs]),
    )


def _columns_of_study(site: str, most_gpus: int) -> JobColumns:
    published = PUBLISHED_CLUSTERS[site]
    trace = acme_trace.draw_trace(published, site, jobs=POPULATION, seed=7)
    number_of = {word: list(published.work).index(JobKind(word)) for word in trace.kinds.words}
    return JobColumns(
        kinds=np.array([number_of[word] for word in trace.kinds.words])[trace.kinds.codes],
        gpus=trace.gpus.clip(max=most_gpus).astype(float),
        seconds=trace.runtime_s,
    )


def compare_failures(history: SiteHistory) -> Iterator[FigureComparison]:
    """Yield the share of each family of reasons in the failures of programs, in percent."""
    causes = [str(life.cause) for job in history.jobs for life in job.lives]
    ours = [REASONS_BY_NAME[cause].family for cause in causes if EVEN_ODDS.get(cause)]
    total = sum(reason.count for reason in DRAWN_REASONS)
    for family in FailureFamily:
        share = sum(one is family for one in ours) / max(len(ours), 1)
        study = sum(reason.count for reason in DRAWN_REASONS if reason.family is family) / total
        error = (max(share * (1 - share), 1e-6) / max(len(ours), 1)) ** 0.5
        yield FigureComparison(
            figure="failures of programs, %", subject=family.value, history=100 * share, study=100 * study,
            error=100 * error,
        )  # fmt: skip
