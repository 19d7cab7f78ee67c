import numpy as np
import pytest

from scheduling.research.widths.goodput import BatchLimits
from scheduling.research.widths.jobs import AdaptiveBatchJob, FixedBatchJob, Training, packed
from scheduling.research.widths.optimus import MarginalGains
from scheduling.research.widths.pollux import HarmonicSpeedups
from scheduling.research.widths.replay import ElasticJob, ElasticSetting, NodeGroup, replay_elastic
from scheduling.research.widths.tiresias import TwoQueues
from scheduling.research.widths.values import WidthPolicy

SETTING = ElasticSetting(groups=(NodeGroup(2, 4),), round_s=60.0, restart_s=30.0)
LIMITS = BatchLimits(initial=8, largest=64, smallest_per_gpu=1, largest_per_gpu=16)


def times(spread, per_gpu):
    """A tenth of a second for each example, and nothing for communication."""
    return 0.1 * per_gpu, 0.1 * per_gpu


def slow_start(spread, per_gpu):
    """The same, and a second for each step."""
    return 1.0 + 0.1 * per_gpu, 1.0 + 0.1 * per_gpu


def training(*ends, noise=0.0, step_times=times):
    shape = 2, len(ends)
    return Training(ends, (8, 64), np.ones(shape), np.full(shape, noise), LIMITS, step_times)


def fixed(submit_s, work, *, gpus=1, batch=8):
    return ElasticJob(submit_s=submit_s, gpus=gpus, models=(FixedBatchJob(training(work), batch),))


class Places(WidthPolicy):
    """The given places of job 0, round by round; the last ones for the rest."""

    name = "given"

    def __init__(self, *rounds):
        self.rounds = list(rounds)

    def places(self, view):
        return {0: self.rounds.pop(0) if len(self.rounds) > 1 else self.rounds[0]}


def ends(jobs, policy):
    return replay_elastic(jobs, policy, SETTING).ended_s.tolist()


def test_start_takes_the_time_of_a_restart():
    assert ends([fixed(0, 100)], TwoQueues()) == [pytest.approx(30 + 80)]


def test_job_starts_in_the_round_after_its_submission():
    assert ends([fixed(61, 10)], TwoQueues()) == [pytest.approx(120 + 30 + 8)]


def test_wider_job_is_faster_at_the_same_batch_size():
    assert ends([fixed(0, 100, gpus=4)], TwoQueues()) == [pytest.approx(30 + 20)]


def test_change_of_width_costs_a_restart_and_no_progress():
    narrow, wide = ((0, 1),), ((0, 4),)
    outcome = replay_elastic([fixed(0, 100)], Places(narrow, wide), SETTING)

    # 30 s of the first round are 37.5 steps; the others take 12.5 s on four GPUs
    assert outcome.ended_s.tolist() == [pytest.approx(60 + 30 + 12.5)]
    assert (outcome.restarts, outcome.busy_gpu_s) == (1, pytest.approx(60 + 4 * 42.5))


def test_stopped_job_goes_on_where_it_was():
    assert ends([fixed(0, 50)], Places(((0, 1),), (), ((1, 1),))) == [pytest.approx(120 + 30 + 10)]


def test_policy_that_uses_too_many_gpus_is_refused():
    with pytest.raises(ValueError, match="given used more GPUs of a node than there are"):
        ends([fixed(0, 50)], Places(((0, 5),)))


def test_job_that_is_wider_than_the_cluster_is_refused():
    with pytest.raises(ValueError, match="Job 1 needs more GPUs than any group of nodes has"):
        replay_elastic([fixed(0, 10), fixed(0, 10, gpus=9)], TwoQueues(), SETTING)


def test_policy_that_never_runs_the_waiting_jobs_is_refused():
    with pytest.raises(ValueError, match="given gives no job any GPUs, although jobs wait"):
        replay_elastic([fixed(0, 10)], Places(()), SETTING)


def test_speed_changes_where_an_epoch_ends():
    """In the second epoch, a step with twice the batch is worth two."""
    noise = np.array([[0.0, 1e12], [0.0, 1e12]])
    model = FixedBatchJob(Training((10.0, 30.0), (8, 64), np.ones((2, 2)), noise, LIMITS, times), 16)

    assert ends([ElasticJob(submit_s=0.0, gpus=1, models=(model,))], TwoQueues()) == [pytest.approx(30 + 16 + 16)]


def test_steps_that_are_left_are_counted_over_epochs():
    noise = np.array([[0.0, 1e12], [0.0, 1e12]])
    model = FixedBatchJob(Training((10.0, 30.0), (8, 64), np.ones((2, 2)), noise, LIMITS, times), 16)

    assert model.forecast(5.0).seconds_left(1, 1) == pytest.approx((5 + 10) * 1.6)


def test_elastic_widths_end_sooner_than_requested_ones():
    def jobs():
        return [fixed(0, 1000), fixed(0, 4000)]

    assert max(ends(jobs(), MarginalGains())) < max(ends(jobs(), TwoQueues()))


def test_adaptive_job_enlarges_its_batch_where_gradients_are_noisy():
    pytest.importorskip("scipy")

    def end(noise):
        model = AdaptiveBatchJob(training(50.0, 100.0, noise=noise, step_times=slow_start), 8)
        return ends([ElasticJob(submit_s=0.0, gpus=1, models=(model,))], HarmonicSpeedups())[0]

    assert end(1e9) < end(0.01)


def test_adaptive_job_is_widened_step_by_step():
    """Twice the widest width that it has tried, because its forecasts beyond are guesses."""
    pytest.importorskip("scipy")
    model = AdaptiveBatchJob(training(1000.0), 64)
    seen = [model.widest]
    for spread in ((1,), (2,), (4, 4)):
        model.speed(spread, 0.0)
        seen.append(model.widest)

    assert seen == [1, 2, 4, 16]


def test_packed_width_fills_nodes_in_order():
    assert [packed(gpus, nodes) for gpus, nodes in ((3, 1), (8, 2), (6, 2), (10, 3))] == [
        (3,),
        (4, 4),
        (3, 3),
        (4, 4, 2),
    ]
