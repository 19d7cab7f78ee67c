"""Power budgets: the curves of a GPU, POLCA's rule, and runs of jobs under a budget."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from jobs.core.lifecycle import JobKind
from scheduling.power.rules.caps import (
    GRADUAL_STEPS,
    NO_CAP,
    POLCA_STEPS,
    CapSettings,
    CapState,
    CapStep,
    PowerReading,
    next_state,
    polca_steps,
    static_cap,
)
from scheduling.power.rules.clock_curves import MIN_MHZ
from scheduling.power.rules.gpu_clocks import GpuClocks, PowerFleet
from scheduling.whatif.replay.acme_trace import PUBLISHED_CLUSTERS, draw_trace
from scheduling.whatif.replay.power.budget_run import Actuator, PowerJobs, run_budget
from scheduling.whatif.replay.power.power_over_time import power_over_time
from scheduling.whatif.replay.power.profiles import PowerProfiles, draw_profiles
from scheduling.whatif.replay.power.report import power_jobs
from scheduling.whatif.replay.power.setting import PowerSetting
from scheduling.whatif.replay.run import ReplaySetting, run_policy

MEASURED = ReplaySetting(nodes=371, best_effort=(), seed=1, power=PowerSetting())
POLCA = CapSettings()
CLOCKS = GpuClocks()


def drawn_jobs(count=60, gpus=400, seed=0, load=1.5):
    """Jobs of all kinds that want more than the GPUs of the fleet for some time."""
    dice = np.random.default_rng(seed)
    work_s = np.ceil(dice.lognormal(5, 1, count))
    sizes = np.minimum(dice.choice([1, 8, 64, 128], count), gpus).astype(np.int32)
    span = float(work_s @ sizes) / gpus / load
    kinds = dice.choice([JobKind.PRETRAIN.value, JobKind.EVALUATION.value, JobKind.DEBUG.value], count).tolist()
    return PowerJobs(
        start_s=np.sort(np.floor(dice.uniform(0, span, count))),
        work_s=work_s,
        gpus=sizes.astype(float),
        is_low=np.array(kinds) != JobKind.PRETRAIN.value,
        profiles=draw_profiles(kinds, work_s, seed),
    )


def steady_jobs(*, watts, gpus, is_low, work_s=1000.0, start_s=0.0):
    """Jobs that draw the same power all the time."""
    count = len(gpus)
    constant = PowerProfiles(
        high_w=np.full(count, float(watts)),
        low_w=np.full(count, float(watts)),
        high_share=np.ones(count),
        period_s=np.full(count, 10.0),
        offset_s=np.zeros(count),
    )
    return PowerJobs(
        start_s=np.full(count, start_s),
        work_s=np.full(count, work_s),
        gpus=np.array(gpus, dtype=float),
        is_low=np.array(is_low, dtype=bool),
        profiles=constant,
    )


def levels(shares, settings=POLCA, failed=(), step_s=1.0):
    """The level after each reading."""
    state, found = CapState(), []
    for number, share in enumerate(shares):
        state = next_state(
            state, PowerReading(at_s=number * step_s, share=share, command_failed=number in failed), settings
        )
        found.append(state.level)
    return found


# --- Clocks ---


def test_published_clock_saves_a_fifth_of_the_power_for_seven_percent_of_the_speed():
    assert CLOCKS.power_w(np.array([400.0]), np.array([1110.0]))[0] == pytest.approx(320)
    assert CLOCKS.speed(np.array([1110.0]))[0] == pytest.approx(0.93)


def test_power_falls_faster_than_speed_at_every_clock():
    mhz = np.arange(MIN_MHZ, CLOCKS.max_mhz, 15.0)
    power, speed = CLOCKS.power_w(np.full(len(mhz), 400.0), mhz) / 400, CLOCKS.speed(mhz)

    assert (power < speed).all() and (np.diff(power) > 0).all() and (np.diff(speed) > 0).all()


@pytest.mark.parametrize("watts", [15.0, 60.0])
def test_idle_power_does_not_depend_on_the_clock(watts):
    assert CLOCKS.power_w(np.array([watts]), np.array([288.0]))[0] == watts


@pytest.mark.parametrize(("gpu_w", "node_w"), [(63.5, 1512), (407.7, 5040), (558.0, 6554)])
def test_power_of_a_node_fits_the_published_percentiles(gpu_w, node_w):
    assert PowerFleet(nodes=1).power_w(8, 8 * gpu_w) == pytest.approx(node_w, rel=0.03)


# --- A rise ---

LIVE = CapSettings(lead_s=2.0)


@pytest.mark.parametrize(
    ("before", "share", "elapsed_s", "expected"),
    [
        (0.7, 0.75, 1.0, 0.85),
        (0.7, 0.75, 4.0, 0.775),
        (0.7, 0.75, 15.0, 0.75),
        (0.9, 0.75, 1.0, 0.75),
        (None, 0.75, 1.0, 0.75),
    ],
    ids=["fast", "slow", "too long ago", "falls", "first reading"],
)
def test_rise_continues_for_the_lead(before, share, elapsed_s, expected):
    assert LIVE.expected_share(share, before, elapsed_s) == pytest.approx(expected)
    assert POLCA.expected_share(share, before, elapsed_s) == share


def test_expected_share_raises_the_level_as_far_as_high_priority_jobs_are_spared():
    reading = PowerReading(at_s=1.0, share=0.7, expected_share=1.3)

    assert next_state(CapState(), reading, LIVE).level == 2
    assert next_state(CapState(level=3, since_s=1.0), reading, LIVE).level == 3


def test_run_with_a_lead_is_never_longer_above_its_budget():
    jobs, fleet = drawn_jobs(seed=3), PowerFleet(nodes=50)
    budget_w = 0.8 * run_budget(jobs, fleet, 1e9, NO_CAP).peak_w
    plain, early = (run_budget(jobs, fleet, budget_w, settings) for settings in (POLCA, LIVE))

    assert early.above_s <= plain.above_s
    assert plain.level_s[0] > early.level_s[0] > 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("settings", [POLCA, LIVE, NO_CAP], ids=["polca", "live", "no cap"])
def test_steps_that_are_computed_together_equal_single_ones(settings, seed):
    jobs, fleet = drawn_jobs(seed=seed), PowerFleet(nodes=50)
    budget_w = 0.75 * run_budget(jobs, fleet, 1e9, NO_CAP).peak_w
    actuator = Actuator(failure_rate=0.3 * (seed % 2), seed=seed)
    many, single = (
        run_budget(jobs, fleet, budget_w, settings, actuator=actuator, max_equal_steps=count) for count in (64, 1)
    )

    assert many.level_s == pytest.approx(single.level_s) and many.peak_w == pytest.approx(single.peak_w)
    assert many.energy_j == pytest.approx(single.energy_j) and many.failed_commands == single.failed_commands
    assert np.array(many.excursions) == pytest.approx(np.array(single.excursions))
    assert many.held_s == pytest.approx(single.held_s) and many.worked_s == pytest.approx(single.worked_s)


@pytest.mark.parametrize("percents", [(80, 89, 100), (50, 50, 50), (60, 100, 100)])
def test_steps_have_the_given_thresholds(percents):
    low, every, lowest = (percent / 100 for percent in percents)
    steps = CapSettings(steps=polca_steps(percents)).steps

    assert [step.above for step in steps] == [low, every, every, lowest]


# --- The rule ---

RULE_CASES = {
    "nothing below the first threshold": ([0.5, 0.79, 0.80], [0, 0, 0]),
    "low priority first": ([0.81, 0.81, 0.81, 0.81, 0.81], [1, 1, 1, 1, 1]),
    "second step for low priority, then everybody": ([0.9] * 6, [2, 2, 2, 3, 3, 3]),
    "second threshold after the first": ([0.81, 0.9, 0.9, 0.9, 0.9], [1, 2, 2, 2, 3]),
    "high priority is spared if the second step suffices": ([0.9, 0.88, 0.88, 0.88, 0.88], [2, 2, 2, 2, 2]),
    "above the budget everybody at once": ([0.5, 1.01], [0, 4]),
    "exactly the budget is not above it": ([1.0], [2]),
}


@pytest.mark.parametrize(("shares", "expected"), RULE_CASES.values(), ids=RULE_CASES)
def test_rule_raises_the_level(shares, expected):
    assert levels(shares) == expected


def test_levels_are_released_one_at_a_time_in_reverse_order():
    found = levels([1.01, *[0.5] * 300])

    assert [level for number, level in enumerate(found) if not number or found[number - 1] != level] == [4, 3, 2, 1, 0]


def test_release_needs_readings_below_the_threshold_by_five_points_for_the_time_of_the_step():
    assert levels([0.81, *[0.76] * 300])[-1] == 1
    assert levels([0.81, *[0.74] * 59])[-1] == 1
    assert levels([0.81, *[0.74] * 60])[-1] == 0
    assert levels([0.81, *[0.74] * 40, 0.76, *[0.74] * 59])[-1] == 1


def test_failed_command_counts_as_no_cap_so_the_next_step_follows_at_once():
    assert levels([0.9, 0.9, 0.9]) == [2, 2, 2]
    assert levels([0.9, 0.9, 0.9], failed={1}) == [2, 3, 3]


def test_failed_command_does_not_take_steps_of_thresholds_that_are_not_exceeded():
    assert levels([0.81, 0.81, 0.81], failed={1, 2}) == [1, 1, 1]


@pytest.mark.parametrize(("share", "commands"), [(0.95, 4), (0.7, 2)], ids=["still above", "below: after settling"])
def test_failed_command_without_a_next_step_is_repeated(share, commands):
    state = CapState(level=3, since_s=0.0, command=1, commanded_s=0.0)
    for second in (1, 2, 3):
        state = next_state(state, PowerReading(at_s=second, share=share, command_failed=True), POLCA)

    assert (state.level, state.command) == (3, commands)


def test_failed_commands_do_not_delay_a_release():
    assert levels([0.81, *[0.5] * 60], failed=set(range(61)))[-1] == 0


@pytest.mark.parametrize("seed", range(20))
def test_level_falls_by_one_and_never_within_the_time_of_its_step(seed):
    dice = np.random.default_rng(seed)
    shares = np.clip(np.cumsum(dice.normal(0, 0.03, 2000)) + 0.85, 0.5, 1.1)
    found, since = levels(shares, failed=set(np.flatnonzero(dice.random(2000) < 0.1).tolist())), 0
    for now, (before, after) in enumerate(pairwise(found), 1):
        if after < before:
            held = POLCA_STEPS[before - 1]
            assert after == before - 1 and now - since >= held.hold_s
            assert max(shares[now - int(held.hold_s) + 1 : now + 1]) < held.above - POLCA.release
        if after > before:
            assert shares[now] > POLCA_STEPS[after - 1].above
        since = now if after != before else since


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        ((CapStep(above=0.9, low_mhz=1275), CapStep(above=0.8, low_mhz=1110)), "follows the higher one 0.9"),
        ((CapStep(above=0.8, low_mhz=1110), CapStep(above=0.9, low_mhz=1275)), "clocks at 0.9 are higher"),
    ],
    ids=["thresholds", "clocks"],
)
def test_steps_in_the_wrong_order_are_rejected(steps, sentence):
    with pytest.raises(ValueError, match=sentence):
        CapSettings(steps=steps)


@pytest.mark.parametrize("steps", [POLCA_STEPS, GRADUAL_STEPS], ids=["polca", "gradual"])
def test_steps_never_lower_high_priority_jobs_before_low_priority_jobs(steps):
    settings = CapSettings(steps=steps)

    assert all(low <= high for low, high in map(settings.clocks, range(len(steps) + 1)))


# --- Runs ---


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("step_s", "latency_s"), [(1.0, 1.0), (0.5, 1.0), (1.0, 5.0)])
def test_no_excursion_is_longer_than_the_delay_of_the_rule(seed, step_s, latency_s):
    jobs, fleet = drawn_jobs(seed=seed), PowerFleet(nodes=50)
    budget_w = 0.9 * run_budget(jobs, fleet, math.inf, NO_CAP).peak_w
    free = run_budget(jobs, fleet, budget_w, NO_CAP, step_s=step_s)
    run = run_budget(jobs, fleet, budget_w, POLCA, actuator=Actuator(latency_s=latency_s), step_s=step_s)

    assert free.longest_excursion_s > 0
    assert run.longest_excursion_s <= step_s + latency_s + 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_energy_and_excursions_do_not_depend_on_skipping_calm_time(seed):
    jobs, fleet = drawn_jobs(seed=seed), PowerFleet(nodes=50)
    budget_w = 0.95 * run_budget(jobs, fleet, 1.0, NO_CAP).peak_w
    skipping, stepping = run_budget(jobs, fleet, budget_w, NO_CAP), run_budget(jobs, fleet, 1.0, NO_CAP)

    assert skipping.stepped_s < stepping.stepped_s == pytest.approx(stepping.end_s - jobs.start_s[0])
    assert skipping.energy_j == pytest.approx(stepping.energy_j, rel=1e-9)
    assert skipping.peak_w == pytest.approx(stepping.peak_w, rel=1e-9)


def test_steady_jobs_draw_the_power_of_the_fleet():
    jobs, fleet = steady_jobs(watts=400, gpus=[8, 8], is_low=[False, True]), PowerFleet(nodes=3)
    run = run_budget(jobs, fleet, 1e6, NO_CAP)

    assert run.peak_w == pytest.approx(3 * 920 + 1.25 * (16 * 400 + 8 * 60))
    assert run.energy_j == pytest.approx(run.peak_w * 1000)
    assert run.stepped_s == 0


def test_static_cap_slows_everything_by_its_clock():
    jobs, fleet = drawn_jobs(), PowerFleet(nodes=50)
    run, free = run_budget(jobs, fleet, 1.0, static_cap(1110)), run_budget(jobs, fleet, 1.0, NO_CAP)

    assert run.worked_s == pytest.approx(jobs.work_s)
    assert run.held_s / run.worked_s == pytest.approx(np.full(len(jobs.work_s), 1 / 0.93))
    assert run.peak_w < free.peak_w and run.end_s > free.end_s


def test_only_low_priority_jobs_are_slower_below_the_second_threshold():
    jobs, fleet = steady_jobs(watts=400, gpus=[8, 8], is_low=[False, True]), PowerFleet(nodes=2)
    full_w = fleet.power_w(16, 16 * 400)
    run = run_budget(jobs, fleet, full_w / 0.85, POLCA)

    assert run.held_s[0] == pytest.approx(1000)
    assert run.held_s[1] > 1010
    assert run.level_s[1] > 0 and run.level_s[2:] == (0, 0, 0)


def test_jobs_wait_for_the_gpus_of_slower_ones():
    first = steady_jobs(watts=400, gpus=[8, 8], is_low=[False, False])
    jobs, fleet = replace(first, start_s=np.array([0.0, 1000.0])), PowerFleet(nodes=1)
    run = run_budget(jobs, fleet, 1e6, static_cap(1110))

    assert run.started_s[1] == pytest.approx(1000 / 0.93)
    assert run.end_s == pytest.approx(2000 / 0.93)


def test_actuator_that_always_fails_is_no_cap():
    jobs, fleet = drawn_jobs(), PowerFleet(nodes=50)
    budget_w = 0.9 * run_budget(jobs, fleet, math.inf, NO_CAP).peak_w
    free = run_budget(jobs, fleet, budget_w, NO_CAP)
    run = run_budget(jobs, fleet, budget_w, POLCA, actuator=Actuator(failure_rate=1.0))

    assert run.failed_commands > 0
    assert run.held_s == pytest.approx(run.worked_s)
    assert run.above_s == pytest.approx(free.above_s, rel=0.01)


def test_jobs_whose_commands_failed_once_are_capped_by_the_repetition():
    jobs, fleet = steady_jobs(watts=400, gpus=[1] * 400, is_low=[False] * 400), PowerFleet(nodes=50)
    budget_w = fleet.power_w(400, 400 * 400) / 1.01
    run = run_budget(jobs, fleet, budget_w, POLCA, actuator=Actuator(failure_rate=0.95))

    assert run.failed_commands > 1
    assert 2 <= run.longest_excursion_s < 30
    assert run.level_s[4] > 0


def test_run_ends_at_the_given_time_with_the_work_done_so_far():
    jobs, fleet = steady_jobs(watts=400, gpus=[8], is_low=[False]), PowerFleet(nodes=1)
    run = run_budget(jobs, fleet, 1e6, static_cap(1110), until_s=500.0)

    assert (run.end_s, run.held_s[0], run.worked_s[0]) == (500, 500, pytest.approx(465))


# --- Power over time without caps ---


@pytest.mark.parametrize("seed", range(6))
def test_power_over_time_is_that_of_a_run_without_caps(seed):
    """All starts and ends are at whole seconds, so that both have the same seconds."""
    jobs, fleet = drawn_jobs(seed=seed, load=0.2), PowerFleet(nodes=50)
    run = run_budget(jobs, fleet, 1.0, NO_CAP)
    power = power_over_time(jobs, fleet)
    budget_w = 0.9 * run.peak_w
    above = run_budget(jobs, fleet, budget_w, NO_CAP)

    assert power.interval_s == 1
    assert power.energy_j == pytest.approx(run.energy_j, rel=1e-9)
    assert power.peak_w == pytest.approx(run.peak_w, rel=1e-9)
    assert power.above_s(budget_w) == pytest.approx(above.above_s)
    assert power.longest_above_s(budget_w) == pytest.approx(above.longest_excursion_s)


def test_long_schedule_has_longer_intervals_and_the_same_energy():
    jobs, fleet = steady_jobs(watts=400, gpus=[8], is_low=[False], work_s=1e8), PowerFleet(nodes=2)
    power = power_over_time(jobs, fleet)

    assert power.interval_s > 1
    assert power.peak_w == pytest.approx(fleet.power_w(8, 8 * 400))
    assert power.energy_j == pytest.approx(fleet.power_w(8, 8 * 400) * 1e8)


@pytest.mark.parametrize("points", [1, 7, 10_000])
def test_curve_of_power_keeps_the_peak_with_few_points(points):
    power = power_over_time(drawn_jobs(load=0.2), PowerFleet(nodes=50))
    at_s, highest_w = power.highest_w(points)

    assert len(at_s) == len(highest_w) <= points
    assert (at_s[0], highest_w.max()) == (drawn_jobs(load=0.2).start_s[0], power.peak_w)


def test_power_of_a_schedule_without_jobs_is_nothing():
    none = steady_jobs(watts=400, gpus=[], is_low=[])
    power = power_over_time(none, PowerFleet(nodes=5))

    assert (power.energy_j, power.peak_w, power.above_s(1.0), power.longest_above_s(1.0)) == (0, 0, 0, 0)
    assert len(power.highest_w(10)[0]) == 0


def test_jobs_that_ran_for_no_time_draw_nothing():
    kinds = [JobKind.EVALUATION.value, JobKind.DEBUG.value, JobKind.PRETRAIN.value]
    jobs = PowerJobs(
        start_s=np.zeros(3),
        work_s=np.zeros(3),
        gpus=np.ones(3),
        is_low=np.zeros(3, dtype=bool),
        profiles=draw_profiles(kinds, np.zeros(3)),
    )

    assert power_over_time(jobs, PowerFleet(nodes=1)).energy_j == 0
    assert run_budget(jobs, PowerFleet(nodes=1), 1.0, NO_CAP).energy_j >= 0


# --- Replays ---


def test_replay_of_drawn_seren_becomes_a_schedule_with_all_its_work():
    trace = draw_trace(PUBLISHED_CLUSTERS["seren"], "seren", jobs=300, seed=1)
    replayed = run_policy(trace, "fifo-skip", replace(MEASURED, load=130))
    jobs = power_jobs(replayed)

    assert len(jobs.start_s) == 300 and (np.diff(jobs.start_s) >= 0).all()
    assert float(jobs.gpus @ jobs.work_s) == pytest.approx(float(trace.gpus @ trace.runtime_s))
    assert jobs.is_low.mean() == pytest.approx(0.668, abs=0.1)
    assert run_budget(jobs, PowerFleet(nodes=371), 1e9, NO_CAP).held_s == pytest.approx(jobs.work_s)


def test_replay_with_preemption_is_rejected_by_name_of_the_policy():
    trace = draw_trace(PUBLISHED_CLUSTERS["seren"], "seren", jobs=300, seed=1)
    replayed = run_policy(trace, "fifo-skip", MEASURED)

    with pytest.raises(ValueError, match="policy: tiresias stopped jobs"):
        power_jobs(replace(replayed, policy="tiresias", stops=np.ones(300, dtype=np.int32)))


# --- Profiles ---


def test_evaluation_computes_between_loading_and_metrics():
    profile = draw_profiles([JobKind.EVALUATION.value], np.array([1000.0]))

    assert profile.high_s(np.array([295.0]))[0] - profile.high_s(np.array([0.0]))[0] == pytest.approx(0)
    assert profile.high_s(np.array([810.0]))[0] - profile.high_s(np.array([295.0]))[0] == pytest.approx(515)
    assert profile.high_s(np.array([1000.0]))[0] - profile.high_s(np.array([810.0]))[0] == pytest.approx(0)


def test_profiles_are_the_same_for_the_same_seed_and_differ_between_kinds():
    kinds = [JobKind.PRETRAIN.value, JobKind.EVALUATION.value, JobKind.DEBUG.value, "unknown"] * 50
    first, second = (draw_profiles(kinds, np.full(200, 500.0), seed=3) for _ in range(2))

    assert np.array_equal(first.high_w, second.high_w) and np.array_equal(first.offset_s, second.offset_s)
    assert first.low_w[1::4].max() <= 96 < first.low_w[0::4].max()
    assert (first.high_w >= first.low_w).sum() > 190
