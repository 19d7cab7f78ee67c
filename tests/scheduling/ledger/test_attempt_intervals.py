"""What of an attempt's time was work, and what of the work was kept."""

import pytest

from scheduling.ledger.attempt_intervals import AttemptHistory, SlowPeriod, bucket_intervals
from scheduling.ledger.buckets import Bucket, GpuAllocation, LedgerInput, NodeHistory, ledger_entries, sum_by_key

WORKED = {"promised": 0, "confirmed": 5, "first_step": 10}


def spent(one, end=100):
    """One GPU, held from the promise to the end."""
    held = GpuAllocation(1, one.promised, one.ended or end, (0,))
    facts = LedgerInput(
        machines=[NodeHistory(name="n", capacity=((0, 1),), holdings=[held])], lives={1: bucket_intervals(one)}
    )
    found = sum_by_key(ledger_entries(facts, 0, end), lambda _: 0)[0]
    return {bucket: part for bucket, part in found.items() if bucket != Bucket.FREE}


def test_until_the_first_step_it_starts_up():
    assert spent(AttemptHistory(**WORKED)) == {Bucket.START_UP: 10, Bucket.PRODUCTIVE: 90}


def test_without_reports_it_starts_up_until_the_cluster_runs_it():
    assert spent(AttemptHistory(promised=0, confirmed=5)) == {Bucket.START_UP: 5, Bucket.PRODUCTIVE: 95}


def test_what_never_ran_only_started_up():
    assert spent(AttemptHistory(promised=0, ended=40, kept=False)) == {Bucket.START_UP: 40}


def test_starting_after_a_failure_is_recovery_under_its_cause():
    facts = bucket_intervals(AttemptHistory(**WORKED, after="ECCError"))

    assert (facts[0].bucket, facts[0].cause) == (Bucket.RECOVERY, "ECCError")


def test_a_failure_loses_what_came_after_the_last_save():
    done = AttemptHistory(**WORKED, ended=90, kept=False, saved=60, cause="NVLinkError")

    assert spent(done) == {Bucket.START_UP: 10, Bucket.PRODUCTIVE: 50, Bucket.LOST_WORK: 30}


def test_a_failure_without_any_save_loses_everything_but_its_start():
    assert spent(AttemptHistory(**WORKED, ended=90, kept=False)) == {Bucket.START_UP: 10, Bucket.LOST_WORK: 80}


def test_an_end_that_somebody_wanted_loses_nothing():
    assert spent(AttemptHistory(**WORKED, ended=90, saved=60)) == {Bucket.START_UP: 10, Bucket.PRODUCTIVE: 80}


def test_a_hang_before_the_end_is_hung_and_not_lost():
    done = AttemptHistory(**WORKED, ended=90, kept=False, saved=60, hangs=[(70, 90)])

    assert spent(done) == {Bucket.START_UP: 10, Bucket.PRODUCTIVE: 50, Bucket.LOST_WORK: 10, Bucket.HUNG: 20}


def test_of_slow_steps_only_the_excess_is_slow():
    slow = SlowPeriod(start=20, end=80, observed=1.5, expected=1.0)

    assert spent(AttemptHistory(**WORKED, slows=[slow])) == {
        Bucket.START_UP: 10,
        Bucket.PRODUCTIVE: 70,
        Bucket.SLOW: 20,
    }


@pytest.mark.parametrize(("observed", "expected"), [(1.0, 1.0), (0.8, 1.0), (1.0, 0.0)])
def test_a_pace_that_is_not_above_its_prediction_costs_nothing(observed, expected):
    slow = SlowPeriod(start=20, end=80, observed=observed, expected=expected)

    assert Bucket.SLOW not in spent(AttemptHistory(**WORKED, slows=[slow]))


def test_standing_still_to_save_and_idling_are_told_apart():
    assert spent(AttemptHistory(**WORKED, stalls=[(20, 25), (50, 55)], idles=[(22, 30)])) == {
        Bucket.START_UP: 10,
        Bucket.CHECKPOINT_STALL: 10,
        Bucket.IDLE: 5,
        Bucket.PRODUCTIVE: 75,
    }
