"""The linear programs of policies that share GPUs by time, solved by HiGHS.

Jobs with the same speeds and the same number of GPUs are one class: their fractions are equal, so a program has a
variable per class and GPU type, and does not grow with the number of jobs. An arrangement is one class, or two classes
that share GPUs.

SciPy contains HiGHS. It is optional (it comes with `acme[prediction]`), so it is imported at the first use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jobs.traces.trace import Floats
from scheduling.engine.settings import check_scipy
from scheduling.research.rounds.values import ALONE, Indices, RoundView


@dataclass(frozen=True, kw_only=True)
class JobClasses:
    """The jobs of a view, grouped by speeds and GPUs."""

    kinds: Indices  # row of the table of speeds
    gpus: Floats
    counts: Floats
    of_job: Indices  # class of each job

    @staticmethod
    def of(view: RoundView) -> JobClasses:
        keys = np.stack([view.classes, view.gpus], axis=1)
        found, of_job, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
        return JobClasses(
            kinds=found[:, 0].astype(np.intp),
            gpus=found[:, 1].astype(float),
            counts=counts.astype(float),
            of_job=of_job.reshape(-1),
        )

    def __len__(self) -> int:
        return len(self.kinds)

    def speeds(self, view: RoundView) -> Floats:
        return view.speeds.alone[self.kinds]

    def per_job(self, time: Floats) -> Floats:
        """The time of each class on each type, in equal parts to its jobs."""
        return (time / self.counts[:, None])[self.of_job]

    def jobs_of(self, number: int) -> Indices:
        """The jobs of a class, as positions in the view."""
        return np.flatnonzero(self.of_job == number)


@dataclass(frozen=True, kw_only=True)
class Arrangements:
    """What can run on GPUs: class `first` alone, or together with a job of class `second`.

    `first_speeds` and `second_speeds` are what a job gains in a second, in the unit of the objective.
    """

    first: Indices
    second: Indices
    first_speeds: Floats  # arrangement × type
    second_speeds: Floats

    @staticmethod
    def alone(speeds: Floats) -> Arrangements:
        """Each class alone."""
        count = len(speeds)
        return Arrangements(
            first=np.arange(count),
            second=np.full(count, ALONE),
            first_speeds=speeds,
            second_speeds=np.zeros_like(speeds),
        )

    def with_pairs(self, first: Indices, second: Indices, first_speeds: Floats, second_speeds: Floats) -> Arrangements:
        return Arrangements(
            first=np.concatenate([self.first, first]),
            second=np.concatenate([self.second, second]),
            first_speeds=np.concatenate([self.first_speeds, first_speeds]),
            second_speeds=np.concatenate([self.second_speeds, second_speeds]),
        )


def most_equal_gain(classes: JobClasses, able: Arrangements, capacity: Floats) -> Floats:
    """Maximize the smallest gain of a job. Returns the time of each arrangement on each type, summed over its jobs."""
    rows, limits = _limits(classes, able, capacity)
    smallest = -_gains(classes, able)
    column = classes.counts.reshape(-1, 1)
    objective = np.zeros(smallest.shape[1] + 1)
    objective[-1] = -1.0
    matrix = np.block([[rows, np.zeros((len(rows), 1))], [smallest, column]])
    return _solve(objective, matrix, np.concatenate([limits, np.zeros(len(classes))]))[:-1].reshape(len(able.first), -1)


def most_total_gain(classes: JobClasses, able: Arrangements, capacity: Floats) -> Floats:
    """Maximize the sum of the gains of all jobs."""
    rows, limits = _limits(classes, able, capacity)
    return _solve(-_gains(classes, able).sum(axis=0), rows, limits).reshape(len(able.first), -1)


def _limits(classes: JobClasses, able: Arrangements, capacity: Floats) -> tuple[Floats, Floats]:
    """No job runs more than all the time, and no type more than all its GPUs."""
    types = len(capacity)
    jobs = np.kron(_membership(classes, able), np.ones((1, types)))
    gpus = np.kron(classes.gpus[able.first].reshape(1, -1), np.eye(types))
    return np.concatenate([jobs, gpus]), np.concatenate([classes.counts, capacity])


def _membership(classes: JobClasses, able: Arrangements) -> Floats:
    """How many jobs of each class run in each arrangement."""
    matrix = np.zeros((len(classes), len(able.first)))
    columns = np.arange(len(able.first))
    matrix[able.first, columns] = 1
    paired = able.second != ALONE
    np.add.at(matrix, (able.second[paired], columns[paired]), 1)
    return matrix


def _gains(classes: JobClasses, able: Arrangements) -> Floats:
    """What each class gains in a second of each arrangement on each type."""
    types = able.first_speeds.shape[1]
    gains = np.zeros((len(classes), len(able.first), types))
    columns = np.arange(len(able.first))
    gains[able.first, columns] = able.first_speeds
    paired = able.second != ALONE
    np.add.at(gains, (able.second[paired], columns[paired]), able.second_speeds[paired])
    return gains.reshape(len(classes), -1)


class JobDemands:
    """The program that gives each job the speed that it demands with the smallest part of the GPUs.

    Each job has variables of its own, so the cost grows with the number of jobs.
    """

    def __init__(self, view: RoundView) -> None:
        check_scipy("Policies with linear programs")
        from scipy.sparse import block_array, csr_array, diags_array, eye_array, kron

        jobs, types = view.job_speeds.shape
        ones = np.ones((1, types))
        cells = csr_array(kron(eye_array(jobs), ones))  # sums the types of each job
        speeds = cells @ diags_array(view.job_speeds.reshape(-1))
        gpus = csr_array(kron(view.gpus.reshape(1, -1), eye_array(types)))
        capacity = csr_array(view.types.counts.reshape(-1, 1))
        self._rows = csr_array(block_array([[-speeds, None], [cells, None], [gpus, -capacity]]))
        self._others = np.concatenate([np.ones(jobs), np.zeros(types)])
        self._objective = np.zeros(jobs * types + 1)
        self._objective[-1] = 1.0
        self._shape = jobs, types

    def part(self, demands: Floats) -> tuple[float, Floats]:
        """The part of the GPUs that is needed, above 1 if there are too few, and the fractions of the jobs."""
        solution = _solve(self._objective, self._rows, np.concatenate([-demands, self._others]))
        return float(solution[-1]), solution[:-1].reshape(self._shape)


def _solve(objective: Floats, rows: Any, limits: Floats) -> Floats:
    """Minimize the objective under rows · x <= limits, x >= 0."""
    check_scipy("Policies with linear programs")
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    solution = linprog(objective, A_ub=csr_array(rows), b_ub=limits, method="highs")
    if solution.x is None:
        raise ArithmeticError(f"HiGHS found no shares: {solution.message}")
    shares: Floats = np.clip(solution.x, 0.0, None)
    return shares
