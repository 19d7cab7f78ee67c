"""Energy between samples: which value counts, whose it is, and that nothing is lost or counted twice."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from scheduling.power.rules.energy import EnergySums, GpuHold, PowerSample, add_node, model_power_w
from scheduling.power.rules.predictions import attempt_peaks

HOUR = 3600


def energy(samples, holds=(), model="a100", gpus=1):
    sums = defaultdict(EnergySums)
    add_node(sums, samples, holds, model, gpus)
    return dict(sums)


def counter(at_s, *joules, **more):
    return PowerSample(at_s=at_s, energy_mj=[None if one is None else one * 1000 for one in joules], **more)


def test_counter_is_preferred_to_power_and_utilization():
    samples = [counter(at, at * 200.0, power_w=[999.0], util_percent=[50.0]) for at in (0, 15)]

    (sums,) = energy(samples).values()

    assert (sums.counter_j, sums.power_j, sums.estimate_j, sums.gpu_s) == (3000.0, 0.0, 0.0, 15.0)


def test_without_a_counter_the_mean_power_counts():
    samples = [PowerSample(at_s=0, power_w=[100.0]), PowerSample(at_s=15, power_w=[300.0])]

    assert energy(samples)[0, None].power_j == 200 * 15


def test_without_power_the_model_and_its_utilization_give_an_estimate():
    samples = [PowerSample(at_s=at, util_percent=[50.0]) for at in (0, 15)]

    assert energy(samples, model="NVIDIA H100 80GB HBM3")[0, None].estimate_j == pytest.approx(700 * 0.575 * 15)
    assert energy(samples, model="unheard-of") == {}


@pytest.mark.parametrize(
    ("name", "watts"),
    [("a100", 400), ("NVIDIA A100-SXM4-80GB", 400), ("NVIDIA L40S", 350), ("Tesla V100-SXM2-32GB", 300), ("", None)],
)
def test_power_of_a_model_follows_from_its_name(name, watts):
    assert model_power_w(name) == watts


def test_counter_covers_missing_samples_and_power_does_not():
    assert energy([counter(0, 0.0), counter(1800, 360_000.0)])[0, None].counter_j == 360_000
    assert energy([PowerSample(at_s=at, power_w=[200.0]) for at in (0, 1800)]) == {}


def test_counter_that_restarts_counts_what_it_shows_since_then():
    samples = [counter(0, 50_000.0), counter(15, 1_000.0), counter(30, 4_000.0)]

    assert energy(samples)[0, None].counter_j == 4_000


def test_difference_that_no_gpu_can_use_is_not_believed():
    samples = [counter(0, 10.0, power_w=[100.0]), counter(15, 9e9, power_w=[100.0])]

    sums = energy(samples)[0, None]

    assert (sums.counter_j, sums.power_j) == (0.0, 1500.0)


def test_gpu_without_readings_leaves_a_gap_and_others_count():
    samples = [counter(0, 0.0, None), counter(15, 1500.0, None)]

    assert energy(samples, gpus=2)[0, None].gpu_s == 15


def test_energy_is_divided_at_the_start_and_end_of_an_attempt_and_at_the_hour():
    samples = [counter(HOUR - 10, 0.0), counter(HOUR + 10, 4000.0)]

    sums = energy(samples, [GpuHold(7, 0, HOUR - 5, HOUR + 5)])

    assert {key: one.counter_j for key, one in sums.items()} == {
        (0, None): 1000.0, (0, 7): 1000.0, (HOUR, 7): 1000.0, (HOUR, None): 1000.0,
    }  # fmt: skip


def test_attempts_without_indices_share_the_gpus_that_no_index_holds():
    samples = [counter(at, *[at * 100.0] * 4) for at in (0, 10)]
    holds = [GpuHold(1, 0, 0, 10), GpuHold(2, None, 0, 10, gpus=2)]

    sums = energy(samples, holds, gpus=4)

    assert {attempt: one.counter_j for (_, attempt), one in sums.items()} == pytest.approx(
        {1: 1000, 2: 2000, None: 1000}
    )


def test_rest_of_the_node_is_shared_by_its_gpus():
    samples = [counter(at, at * 100.0, at * 100.0, node_power_w=600.0) for at in (0, 10)]

    sums = energy(samples, [GpuHold(3, 0, 0, 10)], gpus=2)

    assert (sums[0, 3].host_j, sums[0, None].host_j) == (2000.0, 2000.0)


@pytest.mark.parametrize("seed", range(20))
def test_sums_equal_the_counters_whatever_is_missing(seed):
    """Random samples are missing and attempts come and go; no counter restarts."""
    chance, gpus = random.Random(seed), 4
    readings, level = [], [0.0] * gpus
    for at in range(0, 4 * HOUR, 15):
        level = [one + 15 * chance.uniform(60, 700) for one in level]
        if at == 0 or at == 4 * HOUR - 15 or chance.random() < 0.8:
            readings.append(counter(at, *level))
    holds, number = [], 0
    for gpu in range(gpus):
        now = 0.0
        while (now := now + chance.uniform(0, 1200)) < 4 * HOUR:
            number += 1
            holds.append(GpuHold(number, gpu, now, now := now + chance.uniform(1, 3000)))

    sums = energy(readings, holds, gpus=gpus)

    moved = sum(last - first for first, last in zip(readings[0].energy_mj, readings[-1].energy_mj, strict=True)) / 1000
    assert sum(one.counter_j for one in sums.values()) == pytest.approx(moved, rel=1e-9)
    for (_, attempt), one in sums.items():
        assert attempt is None or one.gpu_s <= HOUR + 1e-6


def test_shares_of_a_gpu_get_their_part_of_its_energy_and_the_rest_is_idle():
    samples = [counter(0, 0.0), counter(100, 10_000.0)]
    holds = [
        GpuHold(attempt=1, gpu=0, start_s=0, end_s=100, share=0.5),
        GpuHold(attempt=2, gpu=0, start_s=50, end_s=100, share=0.25),
    ]

    found = energy(samples, holds)

    assert {key[1]: (sums.counter_j, sums.gpu_s) for key, sums in found.items()} == {
        1: (5000.0, 50.0),
        2: (1250.0, 12.5),
        None: (3750.0, 37.5),
    }


def test_mig_slice_counts_the_part_of_a_gpu_that_it_is():
    """Its samples have its part of the power already."""
    hold = GpuHold(attempt=1, gpu=0, start_s=0, end_s=100, part=0.25)
    samples = [PowerSample(at_s=0, power_w=[50.0]), PowerSample(at_s=100, power_w=[50.0])]

    (sums,) = energy(samples, [hold]).values()

    assert (sums.power_j, sums.gpu_s) == (5000, 25)
    assert attempt_peaks([(samples, [hold])]) == {1: 200.0}
