"""The recommended checkpoint interval (Young, Daly)."""

import math

import pytest

from jobs.core.checkpoint_interval import advise_checkpoint_interval, optimal_interval_s

HOUR = 3600.0


@pytest.mark.parametrize(
    ("mttf_h", "stall_s", "minutes"),
    [(7.9, 60, 31), (7.9, 5, 8.9), (3.09, 60, 19), (3.09, 1, 2.5), (1.8, 300, 30), (0.23, 60, 5)],
)
def test_interval_agrees_with_published_tables(mttf_h, stall_s, minutes):
    assert optimal_interval_s(mttf_s=mttf_h * HOUR, stall_s=stall_s) / 60 == pytest.approx(minutes, rel=0.08)


def test_interval_is_the_mean_time_between_failures_if_a_save_takes_twice_as_long():
    assert optimal_interval_s(mttf_s=10, stall_s=20) == 10


@pytest.mark.parametrize("mttf_h", [0.5, 3, 24])
@pytest.mark.parametrize("stall_s", [1, 10, 60])
def test_no_other_interval_wastes_less(mttf_h, stall_s):
    mttf_s = mttf_h * HOUR

    def waste(interval):  # Daly's model: saves, and work done again at exponential failures
        whole = interval + stall_s
        return mttf_s * math.expm1(whole / mttf_s) / interval

    best = min(waste(interval) for interval in range(1, int(2 * mttf_s), max(1, int(mttf_s / 2000))))
    assert waste(optimal_interval_s(mttf_s=mttf_s, stall_s=stall_s)) <= best * 1.005


@pytest.mark.parametrize(("mttf_s", "stall_s"), [(0, 1), (10, 0), (-1, 1)])
def test_interval_needs_positive_inputs(mttf_s, stall_s):
    with pytest.raises(ValueError, match="above 0"):
        optimal_interval_s(mttf_s=mttf_s, stall_s=stall_s)


def advice(**overrides):
    usual = {"failures": 2, "ran_s": 27 * HOUR, "stalls_s": (2.0, 2.0, 40.0), "saved_s": (0.0, 1800.0, 3600.0)}
    return advise_checkpoint_interval(**(usual | overrides))


def test_advice_uses_the_median_stall_and_the_failures_of_the_job():
    one = advice()

    assert (one.stall_s, one.mttf_s, one.current_interval_s) == (2.0, 10 * HOUR, 1800.0)
    assert one.interval_s == pytest.approx(optimal_interval_s(mttf_s=10 * HOUR, stall_s=2.0))
    assert one.saved_fraction > 0 and one.lost_fraction < one.current_lost_fraction


def test_job_without_failures_should_save_less_often_the_longer_it_runs():
    every = [advice(failures=0, ran_s=hours * HOUR).interval_s for hours in (1, 10, 100)]

    assert every == sorted(every)


@pytest.mark.parametrize("lack", [{"stalls_s": ()}, {"stalls_s": (0.0,)}, {"ran_s": 0.0}])
def test_job_without_measured_stalls_gets_no_advice(lack):
    assert advice(**lack) is None


def test_job_that_follows_the_advice_is_shown_no_loss():
    every = advice().interval_s

    assert "costs" not in advice(saved_s=(0.0, every, 2 * every)).why


def test_one_failure_is_written_in_the_singular():
    assert advice(failures=1).why.startswith("1 failure in 27.0 h")
