"""Least attained service (LAS) of Gavel (OSDI'20): the smallest share of any job is as large as possible.

Aware of GPU types, a job's share is its speed divided by the speed that it would have with an equal part of every type,
times its GPUs. Otherwise its speed is the same everywhere. With packing, two jobs may share GPUs if that helps the
smallest share; only jobs with equally many GPUs do.
"""

from __future__ import annotations

import math

import numpy as np

from jobs.traces.trace import Floats, Ints
from scheduling.research.rounds.programs import Arrangements, JobClasses, most_equal_gain
from scheduling.research.rounds.values import ALONE, Indices, RoundPolicy, RoundView, TimeShares


class LeastAttained(RoundPolicy):
    """Does not tell GPU types apart: each job gets the same part of all GPUs."""

    name = "las"
    aware = False

    def shares(self, view: RoundView) -> TimeShares:
        fractions = np.minimum(1.0, _gpus_for_each(view.gpus, view.types.total) / view.gpus)
        return TimeShares.alone(fractions[:, None] * view.types.parts)


class AwareLeastAttained(RoundPolicy):
    """Knows the speeds of the jobs on each type."""

    name = "las-aware"

    def shares(self, view: RoundView) -> TimeShares:
        classes = JobClasses.of(view)
        alone = Arrangements.alone(classes.speeds(view) * _worth_of_step(view, classes))
        return TimeShares.alone(classes.per_job(most_equal_gain(classes, alone, view.types.counts)))


class PackedLeastAttained(RoundPolicy):
    """Knows the speeds of the jobs on each type, also of two that share GPUs."""

    name = "las-packed"

    def shares(self, view: RoundView) -> TimeShares:
        classes = JobClasses.of(view)
        able = _with_pairs(view, classes)
        time = most_equal_gain(classes, able, view.types.counts)
        shares = TimeShares.alone(classes.per_job(time[: len(classes)]))
        for first, second, of_pair in zip(able.first, able.second, time, strict=True):
            if second != ALONE and of_pair.any():
                shares = shares.with_pairs(*_job_pairs(classes, int(first), int(second), of_pair))
        return shares


def _gpus_for_each(gpus: Ints, total: float) -> float:
    """The GPUs that each job gets over time, if it requests as many and all are used. No program is needed, because the
    jobs differ only in their GPUs.
    """
    ordered = np.sort(gpus)
    for_rest = (total - (np.cumsum(ordered) - ordered)) / (len(ordered) - np.arange(len(ordered)))
    limited = for_rest <= ordered
    return float(for_rest[limited][0]) if limited.any() else math.inf


def _worth_of_step(view: RoundView, classes: JobClasses) -> Floats:
    """What a step adds to the share: the GPUs, divided by the speed with an equal part of every type."""
    equal_part = classes.speeds(view) @ view.types.parts
    return (classes.gpus / equal_part).reshape(-1, 1)


def _with_pairs(view: RoundView, classes: JobClasses) -> Arrangements:
    """Each class alone, and all pairs that are faster together than in turns on at least one type."""
    alone = Arrangements.alone(classes.speeds(view) * _worth_of_step(view, classes))
    assert view.speeds.shared is not None
    first, second = np.triu_indices(len(classes))
    together = view.speeds.shared[classes.kinds[first], classes.kinds[second]]
    other = view.speeds.shared[classes.kinds[second], classes.kinds[first]]
    own, others = classes.speeds(view)[first], classes.speeds(view)[second]
    faster = (together / own + other / others > 1).any(axis=1)
    faster &= (classes.gpus[first] == classes.gpus[second]) & ((first != second) | (classes.counts[first] > 1))
    worth = _worth_of_step(view, classes)
    first, second = first[faster], second[faster]
    return alone.with_pairs(first, second, together[faster] * worth[first], other[faster] * worth[second])


def _job_pairs(classes: JobClasses, first: int, second: int, time: Floats) -> tuple[Indices, Indices, Floats]:
    """All pairs of jobs of two classes, with equal parts of the time of the pair of classes."""
    firsts, seconds = classes.jobs_of(first), classes.jobs_of(second)
    left, right = (side.reshape(-1) for side in np.meshgrid(firsts, seconds, indexing="ij"))
    if first == second:
        left, right = left[left < right], right[left < right]
    return left, right, np.tile(time / len(left), (len(left), 1))
