"""How likely each failure reason is for a job, so that many jobs fail as often for each as the study counted. Pure.

The failure table has the median size of the jobs of each reason, and most jobs are smaller than that. Drawn by the
similarity of sizes alone, the reasons of large jobs would be too rare. So each reason gets a factor: the one with
which the given jobs fail for it as often as in the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jobs.core.lifecycle import JobKind
from scheduling.simulation.machines.failure_reasons import FAILURE_TABLE, reason_weights

# Not drawn for jobs: machine faults have their own rate, and only the gang of a drill simulates a bad loss
EXCLUDED_REASONS = frozenset({"loss_nan", *(reason.name for reason in FAILURE_TABLE if reason.breaks)})
DRAWN_REASONS = tuple(reason for reason in FAILURE_TABLE if reason.name not in EXCLUDED_REASONS)
EVEN_ODDS: Mapping[str, float] = {reason.name: float(reason in DRAWN_REASONS) for reason in FAILURE_TABLE}
ROUNDS = 60  # of scaling; the shares then differ from the table by less than a thousandth


@dataclass(frozen=True)
class LikelyFailures:
    """Jobs of one kind and size that end so late, and how many failures are expected of them."""

    kind: JobKind
    gpus: int
    at_s: float
    expected: float


def table_odds(jobs: Sequence[LikelyFailures]) -> Mapping[str, float]:
    """The factors with which these jobs fail for each reason in the proportions of the table, by iterative scaling."""
    if not jobs:
        return EVEN_ODDS
    weights = np.array([_weights_of_drawn_reasons(job) for job in jobs])
    expected = np.array([job.expected for job in jobs])
    wanted = np.array([reason.count for reason in DRAWN_REASONS], dtype=float)
    wanted *= expected.sum() / wanted.sum()
    odds = np.ones(len(DRAWN_REASONS))
    for _ in range(ROUNDS):
        scaled = weights * odds
        drawn = (expected / np.maximum(scaled.sum(axis=1), 1e-300)) @ scaled
        odds *= wanted / np.maximum(drawn, 1e-12 * wanted)
        odds /= odds.max()
    return {**EVEN_ODDS, **dict(zip((reason.name for reason in DRAWN_REASONS), odds.tolist(), strict=True))}


def _weights_of_drawn_reasons(job: LikelyFailures) -> list[float]:
    by_name = reason_weights(job.kind, job.gpus, job.at_s)
    return [by_name.get(reason.name, 0.0) for reason in DRAWN_REASONS]
