"""Goodput, ETTR and MTTF against hand-made sums and published limits."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.ledger.buckets import Bucket, LedgerEntry
from scheduling.ledger.reliability import JobLifetime, ettr, goodput, held_gpu_us, lost_by_cause, mttf, poisson_cdf

SUMS = {Bucket.PRODUCTIVE: 60, Bucket.LOST_WORK: 20, Bucket.FREE: 20}


def test_goodput_is_the_productive_part():
    assert goodput(SUMS, 100) == 0.6
    assert goodput(SUMS, held_gpu_us(SUMS)) == 0.75
    assert goodput({}, 0) is None


def test_a_wait_between_attempts_lowers_ettr():
    assert ettr({Bucket.PRODUCTIVE: 60}, [JobLifetime(job=1, gpus=1, start=0, end=100)], 0, 200) == 0.6


def test_ettr_counts_the_part_of_a_run_that_lies_in_the_window():
    assert ettr({Bucket.PRODUCTIVE: 80}, [JobLifetime(job=1, gpus=2, start=-100, end=50)], 0, 200) == 0.8
    assert ettr({}, [], 0, 200) is None


def test_what_failures_cost_is_told_by_cause():
    found = [
        LedgerEntry(0, 10, 8, Bucket.LOST_WORK, "n1", 1, "ECCError"),
        LedgerEntry(10, 12, 8, Bucket.RECOVERY, "n1", 2, "ECCError"),
        LedgerEntry(12, 99, 8, Bucket.PRODUCTIVE, "n1", 2),
    ]

    assert lost_by_cause(found) == {("ECCError", Bucket.LOST_WORK): 80, ("ECCError", Bucket.RECOVERY): 16}


# The limits of a Poisson mean, as every table of Garwood's interval has them
@pytest.mark.parametrize(
    ("count", "confidence", "low", "high"),
    [(1, 0.95, 0.0253, 5.572), (5, 0.95, 1.623, 11.668), (10, 0.95, 4.795, 18.390), (20, 0.9, 13.255, 29.062)],
)
def test_the_interval_is_that_of_a_poisson_count(count, confidence, low, high):
    found = mttf(count, 1000, confidence)

    assert found.mean == 1000 / count
    assert found.low == pytest.approx(1000 / high, rel=1e-3)
    assert found.high == pytest.approx(1000 / low, rel=2e-3)


def test_without_a_failure_there_is_a_lower_limit_and_no_more():
    found = mttf(0, 300, 0.9)

    assert (found.mean, found.high) == (None, None)
    assert found.low == pytest.approx(300 / 2.9957, rel=1e-3)  # the rule of three: -ln 0.05


def test_many_failures_pass_over_to_the_approximation_without_a_step():
    assert poisson_cdf(101, 96.0) == pytest.approx(poisson_cdf(100, 95.0), abs=0.01)
    assert mttf(101, 101).low == pytest.approx(mttf(100, 100).low, rel=5e-3)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 300), st.floats(0.5, 0.99))
def test_the_estimate_lies_in_its_interval(count, confidence):
    found = mttf(count, 1.0, confidence)

    assert found.low > 0
    assert found.mean is None or found.high is None or found.low < found.mean < found.high


def test_no_exposure_says_nothing():
    assert mttf(0, 0.0).low == 0
