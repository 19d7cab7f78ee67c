"""Goodput, ETTR and MTTF compared with hand-made sums and published limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.ledger.rules.buckets import Bucket, LedgerEntry
from scheduling.ledger.rules.parts import LedgerMoments, parts_by_window
from scheduling.ledger.rules.reliability import (
    CLOSED_BUCKETS,
    LOST_BUCKETS,
    JobLifetime,
    ettr,
    goodput,
    held_gpu_us,
    mttf,
    poisson_cdf,
)
from tests.properties import examples

SUMS = {Bucket.PRODUCTIVE: 60, Bucket.LOST_WORK: 20, Bucket.FREE: 20}


def test_goodput_is_the_productive_part():
    assert goodput(SUMS, 100) == 0.6
    assert goodput(SUMS, held_gpu_us(SUMS)) == 0.75
    assert goodput({}, 0) is None


def test_wait_between_attempts_lowers_ettr():
    assert ettr({Bucket.PRODUCTIVE: 60}, [JobLifetime(job=1, gpus=1, start=0, end=100)], 0, 200) == 0.6


def test_ettr_counts_only_the_part_of_a_run_in_the_window():
    assert ettr({Bucket.PRODUCTIVE: 80}, [JobLifetime(job=1, gpus=2, start=-100, end=50)], 0, 200) == 0.8
    assert ettr({}, [], 0, 200) is None


def _gpu_us_by_cause(entries, of):
    (part,) = parts_by_window((0, 1), entries, {}, [], LedgerMoments(), [])
    return part.by_cause(of)


def test_cost_of_failures_is_grouped_by_cause():
    estimate = [
        LedgerEntry(0, 80, Bucket.LOST_WORK, "n1", 1, "ECCError"),
        LedgerEntry(0, 16, Bucket.RECOVERY, "n1", 2, "ECCError"),
        LedgerEntry(0, 696, Bucket.PRODUCTIVE, "n1", 2),
    ]

    assert _gpu_us_by_cause(estimate, LOST_BUCKETS) == {"ECCError": 96}


# The limits of a Poisson mean from published tables of Garwood's interval
@pytest.mark.parametrize(
    ("count", "confidence", "low", "high"),
    [(1, 0.95, 0.0253, 5.572), (5, 0.95, 1.623, 11.668), (10, 0.95, 4.795, 18.390), (20, 0.9, 13.255, 29.062)],
)
def test_interval_is_that_of_a_poisson_count(count, confidence, low, high):
    estimate = mttf(count, 1000, confidence)

    assert estimate.mean == 1000 / count
    assert estimate.low == pytest.approx(1000 / high, rel=1e-3)
    assert estimate.high == pytest.approx(1000 / low, rel=2e-3)


def test_interval_without_failures_has_only_a_lower_limit():
    estimate = mttf(0, 300, 0.9)

    assert (estimate.mean, estimate.high) == (None, None)
    assert estimate.low == pytest.approx(300 / 2.9957, rel=1e-3)  # the rule of three: -ln 0.05


def test_exact_and_approximate_intervals_meet():
    assert poisson_cdf(101, 96.0) == pytest.approx(poisson_cdf(100, 95.0), abs=0.01)
    assert mttf(101, 101).low == pytest.approx(mttf(100, 100).low, rel=5e-3)


@examples(50)
@given(st.integers(0, 300), st.floats(0.5, 0.99))
def test_estimate_lies_in_its_interval(count, confidence):
    estimate = mttf(count, 1.0, confidence)

    assert estimate.low > 0
    assert estimate.mean is None or estimate.high is None or estimate.low < estimate.mean < estimate.high


def test_no_exposure_gives_no_estimate():
    assert mttf(0, 0.0).low == 0


def test_ettr_adds_the_gpu_time_of_all_runs():
    runs = [
        JobLifetime(job=1, gpus=2, start=0, end=100),
        JobLifetime(job=2, gpus=1, start=50, end=400),
        JobLifetime(job=3, gpus=8, start=200, end=300),  # after the window
        JobLifetime(job=4, gpus=8, start=-50, end=-10),
    ]

    assert ettr({Bucket.PRODUCTIVE: 70}, runs, 0, 200) == 70 / (2 * 100 + 150)
    assert ettr({Bucket.FREE: 70}, runs, 0, 200) == 0


def test_time_lost_to_failures_excludes_time_that_no_failure_cost():
    entries = [LedgerEntry(0, 20, bucket, "n1", 1, "Hang") for bucket in [*Bucket, Bucket.HUNG]]

    assert _gpu_us_by_cause(entries, LOST_BUCKETS) == {"Hang": 20 + 20 + 40 + 20}
    assert _gpu_us_by_cause(entries, CLOSED_BUCKETS) == {"Hang": 20 + 20}


@pytest.mark.parametrize(
    ("count", "mean", "probability"),
    [
        (-1, 3.0, 0.0),
        (-1, 0.0, 0.0),
        (0, 0.0, 1.0),
        (0, 2.0, 0.135335),
        (2, 2.0, 0.676676),
        (100, 100.0, 0.526562),
        (101, 100.0, 0.566029),
        (120, 100.0, 0.977331),
    ],
)
def test_distribution_is_that_of_a_poisson_count(count, mean, probability):
    assert poisson_cdf(count, mean) == pytest.approx(probability, abs=1e-4)


def test_confidence_is_ninety_percent_by_default():
    assert mttf(5, 1000) == mttf(5, 1000, 0.9)
    assert mttf(5, 1000).failures == 5 and mttf(5, 1000).exposure == 1000
