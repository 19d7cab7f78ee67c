"""Which of an attempt's time was work, and which of the work was kept."""

import pytest

from scheduling.ledger.rules.attempt_intervals import AttemptHistory, SlowPeriod, bucket_intervals
from scheduling.ledger.rules.buckets import (
    Bucket,
    BucketInterval,
    GpuAllocation,
    LedgerInput,
    NodeHistory,
    ledger_entries,
    sum_by_key,
)

WORKED = {"promised": 0, "confirmed": 5, "first_step": 10}


def spent(one, end=100):
    """One GPU, held from the promised start to the end."""
    held = GpuAllocation(1, one.promised, one.ended or end, (0,))
    facts = LedgerInput(
        machines=[NodeHistory(name="n", capacity=((0, 1),), holdings=[held])], lives={1: bucket_intervals(one)}
    )
    sums_by_bucket = sum_by_key(ledger_entries(facts, (0, end)), lambda _: 0)[0]
    return {bucket: part for bucket, part in sums_by_bucket.items() if bucket != Bucket.FREE}


def test_time_until_the_first_step_is_start_up():
    assert spent(AttemptHistory(**WORKED)) == {Bucket.START_UP: 10, Bucket.PRODUCTIVE: 90}


def test_start_up_without_step_reports_ends_when_the_cluster_runs_it():
    assert spent(AttemptHistory(promised=0, confirmed=5)) == {Bucket.START_UP: 5, Bucket.PRODUCTIVE: 95}


def test_attempt_that_never_ran_is_start_up_only():
    assert spent(AttemptHistory(promised=0, ended=40, keeps_work=False)) == {Bucket.START_UP: 40}


def test_start_after_a_failure_is_recovery_under_its_cause():
    facts = bucket_intervals(AttemptHistory(**WORKED, after="ECCError"))

    assert (facts[0].bucket, facts[0].cause) == (Bucket.RECOVERY, "ECCError")


def test_failure_loses_work_since_the_last_checkpoint():
    done = AttemptHistory(**WORKED, ended=90, keeps_work=False, saved=60, cause="NVLinkError")

    assert spent(done) == {Bucket.START_UP: 10, Bucket.PRODUCTIVE: 50, Bucket.LOST_WORK: 30}


def test_failure_without_checkpoint_loses_all_work_after_start_up():
    assert spent(AttemptHistory(**WORKED, ended=90, keeps_work=False)) == {Bucket.START_UP: 10, Bucket.LOST_WORK: 80}


def test_intended_end_loses_nothing():
    assert spent(AttemptHistory(**WORKED, ended=90, saved=60)) == {Bucket.START_UP: 10, Bucket.PRODUCTIVE: 80}


def test_hang_before_the_end_counts_as_hung_not_lost():
    done = AttemptHistory(**WORKED, ended=90, keeps_work=False, saved=60, hangs=[(70, 90)])

    assert spent(done) == {Bucket.START_UP: 10, Bucket.PRODUCTIVE: 50, Bucket.LOST_WORK: 10, Bucket.HUNG: 20}


def test_only_the_excess_of_slow_steps_is_slow():
    slow = SlowPeriod(start=20, end=80, observed=1.5, expected=1.0)

    assert spent(AttemptHistory(**WORKED, slows=[slow])) == {
        Bucket.START_UP: 10,
        Bucket.PRODUCTIVE: 70,
        Bucket.SLOW: 20,
    }


@pytest.mark.parametrize(("observed", "expected"), [(1.0, 1.0), (0.8, 1.0), (1.0, 0.0)])
def test_pace_as_predicted_costs_nothing(observed, expected):
    slow = SlowPeriod(start=20, end=80, observed=observed, expected=expected)

    assert Bucket.SLOW not in spent(AttemptHistory(**WORKED, slows=[slow]))


def test_checkpoint_stalls_are_no_work():
    assert spent(AttemptHistory(**WORKED, stalls=[(20, 25), (50, 55)])) == {
        Bucket.START_UP: 10,
        Bucket.CHECKPOINT_STALL: 10,
        Bucket.PRODUCTIVE: 80,
    }


def lost(**fields):
    """The intervals of lost work, as (start, end, cause)."""
    attempt = AttemptHistory(**({"promised": 100, "confirmed": 110, "ended": 300, "keeps_work": False} | fields))
    return [(part.start, part.end, part.cause) for part in bucket_intervals(attempt) if part.bucket == Bucket.LOST_WORK]


def test_work_is_lost_between_the_save_and_the_end_under_its_cause():
    assert lost(saved=250, cause="Hang") == [(250, 300, "Hang")]
    assert lost(saved=None) == [(100, 300, "")]
    assert lost(saved=40) == [(100, 300, "")]  # the save of an earlier attempt
    assert lost(ended=None) == []
    assert lost(keeps_work=True) == []


def test_start_up_ends_with_the_attempt():
    for fields, end in (({"confirmed": 500}, 300), ({"confirmed": None}, 300), ({"first_step": 130}, 130), ({}, 110)):
        attempt = AttemptHistory(**({"promised": 100, "confirmed": 110, "ended": 300} | fields))

        assert bucket_intervals(attempt) == [BucketInterval(100, end, Bucket.START_UP)]


def test_causes_are_those_of_the_end_and_of_the_slow_period():
    slow = SlowPeriod(start=20, end=80, observed=3.0, expected=2.0, cause="SlowNode")
    attempt = AttemptHistory(promised=0, first_step=10, cause="Hang", hangs=[(85, 90)], slows=[slow])

    assert bucket_intervals(attempt)[1:] == [
        BucketInterval(85, 90, Bucket.HUNG, "Hang"),
        BucketInterval(60, 80, Bucket.SLOW, "SlowNode"),
    ]


def test_slow_period_without_duration_costs_nothing():
    slow = SlowPeriod(start=80, end=80, observed=2.0, expected=1.0)

    assert len(bucket_intervals(AttemptHistory(**WORKED, slows=[slow]))) == 1
