import numpy as np
import pytest

from scheduling.research.widths.goodput import BatchLimits, BatchSplit, Goodput, GradientNoise, split_of
from scheduling.research.widths.step_times import StepMeasurement, StepModel, fitted_model

LIMITS = BatchLimits(initial=100, largest=1000, smallest_per_gpu=10, largest_per_gpu=50)
TRUE = StepModel(0.05, 0.002, 0.2, 0.01, 0.03, 0.004, 1.5)


def measured(*shapes):
    rows = []
    for gpus, nodes, per_gpu in shapes:
        shape = np.array([gpus]), np.array([nodes]), np.array([per_gpu])
        compute, step = TRUE.compute_times(shape[2])[0], TRUE.step_times(*shape)[0]
        rows.append(StepMeasurement(gpus, nodes, per_gpu, float(compute), float(step)))
    return rows


def step_s(model, gpus, nodes, per_gpu):
    return float(model.step_times(np.array([gpus]), np.array([nodes]), np.array([per_gpu]))[0])


def test_step_at_a_width_that_was_not_measured_is_predicted():
    pytest.importorskip("scipy")
    shapes = [(gpus, nodes, size) for gpus, nodes in ((1, 1), (2, 1), (4, 1), (8, 2), (16, 4)) for size in (10, 30, 50)]

    model = fitted_model(measured(*shapes))

    assert step_s(model, 12, 3, 20) == pytest.approx(step_s(TRUE, 12, 3, 20), rel=0.05)


def test_width_is_believed_to_cost_nothing_until_it_is_measured():
    pytest.importorskip("scipy")
    model = fitted_model(measured((1, 1, 10), (1, 1, 20)))

    assert step_s(model, 4, 1, 20) == pytest.approx(step_s(TRUE, 1, 1, 20), rel=0.05)


def test_one_measurement_is_reproduced():
    pytest.importorskip("scipy")
    model = fitted_model(measured((8, 2, 20)))

    assert step_s(model, 8, 2, 20) == pytest.approx(step_s(TRUE, 8, 2, 20), rel=0.02)


def test_batch_that_does_not_fit_a_gpu_is_computed_in_rounds():
    assert split_of(400, 2, LIMITS) == BatchSplit(per_gpu=50, rounds=4)


def test_single_gpu_computes_a_larger_batch_in_two_rounds():
    assert split_of(100, 4, LIMITS) == BatchSplit(per_gpu=25, rounds=1)
    assert split_of(101, 1, BatchLimits(initial=100, largest=1000, smallest_per_gpu=1, largest_per_gpu=500)).rounds == 2


def test_steps_with_noisy_gradients_are_worth_their_batch():
    gains = [float(GradientNoise(1.0, variance).gain(8.0)) for variance in (0.0, 7.0, 1e9)]

    assert gains == pytest.approx([1.0, 8 / 1.875, 8.0])


def test_batch_grows_with_the_noise():
    widths = np.array([8]), np.array([2])
    quiet, noisy = (Goodput(TRUE, GradientNoise(1.0, variance), LIMITS).best_split(8, 2) for variance in (0.01, 1e6))

    assert quiet.batch(8) < noisy.batch(8) <= LIMITS.largest
    assert Goodput(TRUE, GradientNoise(1.0, 1e6), LIMITS).best(*widths)[0][0] > 0


def test_width_that_needs_more_than_the_largest_batch_has_no_goodput():
    goodputs, _, _ = Goodput(TRUE, GradientNoise(1.0, 1.0), LIMITS).best(np.array([100, 128]), np.array([25, 32]))

    assert goodputs[0] > 0 and goodputs[1] == 0
