"""Jobs on GPUs of several types: forecasts for types on which they have not run, and replays with such jobs."""

import numpy as np
import pytest

from scheduling.research.widths.goodput import BatchLimits
from scheduling.research.widths.jobs import FixedBatchJob, Training
from scheduling.research.widths.replay import ElasticJob, ElasticSetting, NodeGroup, replay_elastic
from scheduling.research.widths.sia import GoodputByType
from scheduling.research.widths.typed_jobs import TypeTraining, typed_models
from scheduling.research.widths.values import WidthPolicy

pytest.importorskip("scipy")

SETTING = ElasticSetting(groups=(NodeGroup(1, 4), NodeGroup(2, 2)), round_s=60.0, restart_s=30.0)
LIMITS = BatchLimits(initial=8, largest=64, smallest_per_gpu=1, largest_per_gpu=16)


def on_type(example_s, work=1000.0, *, node_gpus=4, largest=16, start_s=0.0):
    """An example takes so long, besides `start_s` for all that are computed together. Communication takes no time."""

    def times(spread, per_gpu):
        return start_s + example_s * per_gpu, start_s + example_s * per_gpu

    training = Training((work,), (8, 64), np.ones((2, 1)), np.full((2, 1), 4.0), LIMITS, times)
    return TypeTraining(
        training=training, node_gpus=node_gpus, examples_per_s=1 / example_s, largest_per_gpu=lambda spread: largest
    )


def at_one_gpu(model):
    return float(model.forecast(0.0).speeds(np.array([1]), np.array([1]))[0])


def test_type_on_which_a_job_has_not_run_is_expected_from_another_one():
    slow, fast = typed_models([on_type(0.4), on_type(0.1)], 8)

    slow.speed((1,), 0.0)

    assert at_one_gpu(fast) == pytest.approx(4 * at_one_gpu(slow))
    assert fast.forecast(0.0).seconds_left(1, 1) == pytest.approx(slow.forecast(0.0).seconds_left(1, 1) / 4)


def test_nodes_of_a_projection_are_those_of_the_type_that_was_measured():
    """Four GPUs are two nodes there, so they pay for communication between nodes."""
    pairs, quads = typed_models([on_type(0.1, node_gpus=2), on_type(0.1)], 8)

    pairs.speed((2, 2), 0.0)

    wide = np.array([4])
    speeds = [
        float(model.forecast(0.0).speeds(wide, np.array([nodes]))[0]) for model, nodes in ((pairs, 2), (quads, 1))
    ]
    assert speeds[0] == pytest.approx(speeds[1])


def test_widest_width_and_noise_are_known_to_all_types():
    first, second = typed_models([on_type(0.4), on_type(0.1)], 64)
    assert [first.widest, second.widest] == [1, 1]

    first.speed((4,), 0.0)
    second.speed((1,), 0.0)

    assert [first.widest, second.widest] == [8, 8]


def test_batch_is_no_larger_than_fits_on_each_gpu():
    def speed(largest):
        (model,) = typed_models([on_type(0.1, largest=largest, start_s=1.0)], 8)
        return model.speed((1,), 0.0)

    # Eight examples at once, or four times two
    assert [speed(16), speed(2)] == [pytest.approx(1 / 1.8), pytest.approx(1 / 4.8)]


def test_job_moves_to_the_faster_type_when_it_is_free():
    def end(*kinds):
        jobs = [ElasticJob(submit_s=0.0, gpus=1, models=typed_models(kinds, 2))]
        return replay_elastic(jobs, GoodputByType(), SETTING)

    slow, fast = on_type(0.4), on_type(0.1, node_gpus=2)

    assert end(slow, fast).ended_s[0] < end(slow, on_type(0.4, node_gpus=2)).ended_s[0]


class TypeByTurns(WidthPolicy):
    """Job 0 on one GPU, each round on another type."""

    name = "turns"
    rounds = 0

    def places_by_type(self, views):
        self.rounds += 1
        return [{0: ((0, 1),)} if number == self.rounds % 2 else {} for number in range(len(views))]


def test_change_of_type_costs_a_restart_even_on_a_node_of_the_same_number():
    models = FixedBatchJob(on_type(0.1).training, 8), FixedBatchJob(on_type(0.1).training, 8)

    outcome = replay_elastic([ElasticJob(submit_s=0.0, gpus=1, models=models, restart_s=20.0)], TypeByTurns(), SETTING)

    # 1,000 steps of 0.8 s in rounds with 40 s of progress each
    assert outcome.ended_s.tolist() == [pytest.approx(20 * 60)]
    assert outcome.restarts == 19
