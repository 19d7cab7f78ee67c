"""The step time of a data-parallel job as a function of its width and its batch size per GPU (Pollux, OSDI'21).

A step computes gradients, in a time that grows with the batch size per GPU, and sums them over all GPUs, in a time that
depends on whether the GPUs are on one node and grows with their number. The two overlap to some degree. The seven
parameters are fitted to the step times that a job has measured; what it has not measured yet is believed to be fast, so
that a policy tries it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

from scheduling.engine.settings import check_scipy
from scheduling.research.widths.values import Floats, Ints

SMALLEST_S = 1e-8
START = (0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001)
OVERLAP = (1.0, 10.0)
LONGEST_S = 1e4
EFFORT = {"maxiter": 60, "ftol": 1e-6}  # a fit is repeated after every new measurement
DIFFERENCE = 1e-7  # of the logarithm of a parameter
OVERLAP_WEIGHT, GROWTH_WEIGHT = 1e-3, 1e-2  # prefer little overlap, and times that grow little with the width


@dataclass(frozen=True)
class StepModel:
    """Seconds. `overlap` is 1 if computation and communication follow each other, and 10 if they run together.

    A search compares many models at once: columns instead of numbers.
    """

    compute_s: float | Floats
    compute_per_item_s: float | Floats
    between_nodes_s: float | Floats
    between_nodes_per_gpu_s: float | Floats
    within_node_s: float | Floats
    within_node_per_gpu_s: float | Floats
    overlap: float | Floats

    def compute_times(self, per_gpu: Floats | Ints) -> Floats:
        return np.asarray(self.compute_s + self.compute_per_item_s * per_gpu, np.float64)

    def step_times(self, gpus: Ints, nodes: Ints, per_gpu: Floats | Ints) -> Floats:
        compute, sync = self.compute_times(per_gpu), self._sync_times(gpus, nodes)
        return np.asarray((compute**self.overlap + sync**self.overlap) ** (1 / self.overlap), np.float64)

    def _sync_times(self, gpus: Ints, nodes: Ints) -> Floats:
        further = np.maximum(gpus - 2, 0)
        between = self.between_nodes_s + self.between_nodes_per_gpu_s * further
        within = self.within_node_s + self.within_node_per_gpu_s * further
        return np.where(nodes > 1, between, np.where(gpus > 1, within, SMALLEST_S))


@dataclass(frozen=True)
class StepMeasurement:
    gpus: int
    nodes: int
    per_gpu: int
    compute_s: float
    step_s: float


def fitted_model(measured: Sequence[StepMeasurement]) -> StepModel:
    """The model whose times differ least from the measured ones, as ratios. Needs SciPy."""
    check_scipy("Fitted step times")
    from scipy.optimize import minimize

    fit = _Fit(measured)
    result = minimize(fit.error_and_slope, fit.start, jac=True, bounds=fit.bounds, method="L-BFGS-B", options=EFFORT)
    return _with_prior(fit.model(result.x), any(row.nodes > 1 for row in measured))


def _with_prior(model: StepModel, has_crossed_nodes: bool) -> StepModel:
    """Between nodes, communication is at least 10 % slower than within one, until it has been measured."""
    if has_crossed_nodes:
        return model
    values = list(astuple(model))
    values[2] = max(values[2], 1.1 * values[4])
    values[3] = max(values[3], 1.1 * values[5])
    return StepModel(*values)


class _Fit:
    """Searches the logarithms of the parameters that the measurements say something about."""

    def __init__(self, measured: Sequence[StepMeasurement]) -> None:
        columns = zip(*((row.gpus, row.nodes, row.per_gpu) for row in measured), strict=True)
        self._gpus, self._nodes, self._per_gpu = (np.array(column, np.int64) for column in columns)
        self._log_compute = np.log([row.compute_s for row in measured])
        self._log_step = np.log([row.step_s for row in measured])
        self._values = np.array(START)
        self._free = self._parameters_to_search()
        self._values[2:6][~self._free[2:6]] = SMALLEST_S
        self.start = np.log(self._values[self._free])
        limits = [(np.log(SMALLEST_S), np.log(LONGEST_S))] * 6 + [(np.log(OVERLAP[0]), np.log(OVERLAP[1]))]
        self.bounds = [limit for limit, free in zip(limits, self._free, strict=True) if free]

    def _parameters_to_search(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which parameters are searched. The time of one batch size is half constant, half per item."""
        crossed = bool((self._nodes > 1).any())
        shared = bool(((self._nodes == 1) & (self._gpus > 1)).any())
        wide = bool((self._gpus > 2).any())
        sizes = len(np.unique(self._per_gpu)) > 1
        if not sizes:
            self._values[0] = np.exp(self._log_compute).mean() / 2
        return np.array([sizes, True, crossed, crossed and wide, shared, shared and wide, True])

    def model(self, logs: Floats) -> StepModel:
        return StepModel(*self._parameters(logs).tolist())

    def error_and_slope(self, logs: Floats) -> tuple[float, Floats]:
        """The error, and how it grows with each parameter, by finite differences."""
        errors = self._errors(np.vstack([logs, logs + DIFFERENCE * np.eye(len(logs))]))
        return float(errors[0]), (errors[1:] - errors[0]) / DIFFERENCE

    def _parameters(self, logs: Floats) -> Floats:
        values = np.broadcast_to(self._values, (*logs.shape[:-1], len(self._values))).copy()
        values[..., self._free] = np.exp(logs)
        return values

    def _errors(self, logs: Floats) -> Floats:
        """One error for each row of parameters."""
        columns = self._parameters(logs).T
        model = StepModel(*columns[:, :, None])
        compute = np.log(model.compute_times(self._per_gpu)) - self._log_compute
        step = np.log(model.step_times(self._gpus, self._nodes, self._per_gpu)) - self._log_step
        misses = np.sqrt((compute**2).mean(axis=1)) + np.sqrt((step**2).mean(axis=1))
        growth = (columns[3] / columns[2]) ** 2 + (columns[5] / columns[4]) ** 2
        errors: Floats = misses + OVERLAP_WEIGHT * (columns[6] - 1) ** 2 + GROWTH_WEIGHT * growth
        return errors
