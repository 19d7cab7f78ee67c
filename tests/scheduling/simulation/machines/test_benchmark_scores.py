"""Scores of simulated checkpoints: they rise with training and differ by benchmark."""

from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.simulation.machines.scripts.benchmark_scores import CURVES, benchmark_curve, draw_score


def score(dataset, step, run="llm-7b"):
    """The mean over a thousand samples in shards of a hundred."""
    return mean(draw_score(f"/checkpoints/{run}/step-{step}", dataset, start, 100) for start in range(0, 1000, 100))


@pytest.mark.parametrize("dataset", sorted(CURVES))
def test_scores_start_at_chance_and_rise_with_training(dataset):
    curve = benchmark_curve(dataset)

    assert score(dataset, 0) == pytest.approx(curve.chance, abs=0.06)
    assert score(dataset, 1_000_000) - score(dataset, 0) > 0.07


def test_benchmarks_differ():
    assert score("piqa", 100_000) > score("mmlu", 100_000) > score("humaneval", 100_000)
    assert score("hellaswag", 20_000) - 0.25 > 2 * (score("mmlu", 20_000) - 0.25)


def test_larger_model_scores_higher():
    assert score("mmlu", 500_000, "llm-104b") > score("mmlu", 500_000) + 0.05


def test_checkpoint_without_a_step_has_a_score():
    assert 0.3 < draw_score("/models/final", "hellaswag", 0, 1000) < 0.9


def test_small_sample_has_a_larger_error():
    def spread(samples):
        scores = [draw_score("/ckpt/step-9", "mmlu", start, samples) for start in range(200)]
        return max(scores) - min(scores)

    assert spread(10) > 3 * spread(1000)


@given(st.text(max_size=60), st.text(max_size=30), st.integers(0, 10**6), st.integers(0, 10**6))
def test_any_name_gives_a_score_between_zero_and_one(checkpoint, dataset, start, samples):
    assert 0 <= draw_score(checkpoint, dataset, start, samples) <= 1
    assert draw_score(checkpoint, dataset, start, samples) == draw_score(checkpoint, dataset, start, samples)
