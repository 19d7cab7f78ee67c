"""Young's and Daly's interval."""

import math

import pytest

from scheduling.intervals import advised_s

HOUR = 3600.0


@pytest.mark.parametrize(
    ("mttf_h", "stall_s", "minutes"),
    [(7.9, 60, 31), (7.9, 5, 8.9), (3.09, 60, 19), (3.09, 1, 2.5), (1.8, 300, 30), (0.23, 60, 5)],
)
def test_it_agrees_with_the_usual_tables(mttf_h, stall_s, minutes):
    assert advised_s(mttf_s=mttf_h * HOUR, stall_s=stall_s) / 60 == pytest.approx(minutes, rel=0.08)


def test_a_save_that_takes_longer_than_twice_the_time_between_failures_is_made_once_in_that_time():
    assert advised_s(mttf_s=10, stall_s=20) == 10


@pytest.mark.parametrize("mttf_h", [0.5, 3, 24])
@pytest.mark.parametrize("stall_s", [1, 10, 60])
def test_no_other_interval_wastes_noticeably_less(mttf_h, stall_s):
    mttf_s = mttf_h * HOUR

    def waste(interval):  # Daly's model: saves, and work done again at exponential failures
        whole = interval + stall_s
        return mttf_s * math.expm1(whole / mttf_s) / interval

    best = min(waste(interval) for interval in range(1, int(2 * mttf_s), max(1, int(mttf_s / 2000))))
    assert waste(advised_s(mttf_s=mttf_s, stall_s=stall_s)) <= best * 1.005


@pytest.mark.parametrize(("mttf_s", "stall_s"), [(0, 1), (10, 0), (-1, 1)])
def test_without_both_figures_there_is_no_advice(mttf_s, stall_s):
    with pytest.raises(ValueError, match="above 0"):
        advised_s(mttf_s=mttf_s, stall_s=stall_s)
