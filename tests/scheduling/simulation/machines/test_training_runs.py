"""What simulated trainings train: shapes, parallelism, loss and learning rate that a practitioner would believe."""

from math import inf, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.lifecycle import JobKind
from scheduling.simulation.machines.scripts.training_runs import DEFAULT_SHAPE, shape_of_name, training_run


def run(name="llm-7b", ranks=64, kind=JobKind.PRETRAIN, planned_s=3_600.0, **environment):
    return training_run(kind, name, ranks, planned_s=planned_s, environment=environment, dice="1")


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llm-7b", 7), ("llm-20b", 20), ("llm-104b", 106), ("moe-8x7b", 48), ("tiny-1.8b", 2), ("chat-sft", 7),
        ("GPT3-175B", 106), ("llm-0b", 7),
    ],
)  # fmt: skip
def test_shape_has_about_the_size_in_the_name(name, billions):
    assert round(shape_of_name(name).parameters / 1e9) == billions


@given(st.text(max_size=40))
def test_any_name_has_a_shape(name):
    assert shape_of_name(name).parameters >= 1e9


def test_mixture_of_experts_computes_with_a_part_of_its_parameters():
    shape = shape_of_name("moe-8x7b")

    assert 12e9 < shape.active_parameters < 14e9 < shape.parameters
    assert DEFAULT_SHAPE.active_parameters == DEFAULT_SHAPE.parameters


@given(st.integers(1, 4096), st.sampled_from(["llm-7b", "llm-20b", "llm-104b", "moe-8x7b"]), st.sampled_from(JobKind))
def test_parallel_sizes_divide_the_ranks_and_steps_take_seconds(ranks, name, kind):
    training = run(name, ranks, kind)

    assert training.data_parallel * training.tensor_parallel * training.pipeline_parallel == ranks
    assert training.step_s > 0.9 and training.batch_tokens % training.sequence_length == 0
    assert 0.2 < training.mfu < 0.55


def test_large_model_is_divided_and_slower_per_gpu():
    small, large = run("llm-7b", 128), run("llm-104b", 128)

    assert (small.tensor_parallel, small.pipeline_parallel) == (1, 1)
    assert (large.tensor_parallel, large.pipeline_parallel) == (8, 2)
    assert 2_500 < small.tokens_per_s_per_gpu < 4_000
    assert 100 < large.tokens_per_s_per_gpu < 300


def test_pretraining_starts_at_a_guess_and_finetuning_does_not():
    assert run().expected_loss(0) == pytest.approx(log(DEFAULT_SHAPE.vocabulary))
    assert run("moe-8x7b").expected_loss(0) == pytest.approx(log(32_000))
    assert run(kind=JobKind.SFT).expected_loss(0) < 2


def test_loss_falls_and_a_larger_model_ends_lower():
    losses = [run().expected_loss(step) for step in (0, 10, 100, 1_000, 100_000, 1_000_000)]

    assert losses == sorted(losses, reverse=True) and 1.6 < losses[-1] < 2.2
    assert run("llm-104b").expected_loss(10**15) < run("llm-7b").expected_loss(10**15)


def test_learning_rate_warms_up_and_decays_to_a_tenth():
    training = run(planned_s=36_000.0)
    peak = training.peak_learning_rate

    assert peak == pytest.approx(3e-4, rel=0.03)
    assert training.learning_rate(1) < 0.1 * peak
    assert training.learning_rate(training.warmup_steps) == peak
    assert training.learning_rate(training.last_step) == pytest.approx(peak / 10)
    assert training.learning_rate(10 * training.last_step) == pytest.approx(peak / 10)


@pytest.mark.parametrize(("text", "first"), [("", 0), ("12000", 12_000), ("-1", 0), ("x", 0), ("9" * 20, 0), ("²", 0)])
def test_resumed_run_continues_from_its_checkpoint(text, first):
    training = run(ACME_CHECKPOINT_STEP=text)

    assert training.first_step == first
    assert training.last_step - first == run().last_step


def test_run_without_an_end_has_a_schedule():
    assert run(planned_s=inf).last_step == 500_000
