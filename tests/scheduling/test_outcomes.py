"""How a forgotten attempt ended: a table of what accounting, the record and the log say."""

from datetime import timedelta

import pytest

from jobs.lifecycle import State
from scheduling.batch_script import STARTED_BEFORE, AttemptRecord
from scheduling.outcomes import (
    ACCOUNTING_LAG,
    AWAY,
    GRACE,
    IN_FLIGHT,
    Evidence,
    KnownEnd,
    MissingAttempt,
    NeverStarted,
    NotYet,
    Unknown,
    finding,
)
from tests.make import NOON
from tests.scheduling.fake import seen_job

AGO = NOON - timedelta(hours=1)
LATE = NOON + GRACE + AWAY
NOTHING = AttemptRecord(started=False)
STARTED = AttemptRecord(started=True, started_at=AGO.timestamp())


def missing(**fields):
    defaults = {"key": "k.1", "backend_id": "7", "confirmed": True, "promised_at": AGO, "missing_since": NOON}
    return MissingAttempt(**{**defaults, "has_log": True, **fields})


def accounted(state=State.COMPLETED, **fields):
    return seen_job(**{"state": state, "key": "k.1", "submitted_at": AGO, "ended_at": NOON, **fields})


def exited(code):
    return AttemptRecord(started=True, started_at=AGO.timestamp(), exit_code=code, ended_at=NOON.timestamp() - 5)


def found(evidence, attempt=None, now=LATE):
    return finding(attempt or missing(), evidence, now)


def state(evidence, attempt=None, now=NOON):
    known = found(evidence, attempt, now)
    assert isinstance(known, KnownEnd), known
    return known.ended.state


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (Evidence(accounted=[accounted()]), State.COMPLETED),
        (Evidence(accounted=[accounted(State.TIMEOUT)], record=exited(143)), State.TIMEOUT),
        (Evidence(accounted=[accounted(State.NODE_FAIL)]), State.NODE_FAIL),
        (Evidence(accounted=[], record=exited(0)), State.COMPLETED),
        (Evidence(record=exited(1)), State.FAILED),
        (Evidence(record=exited(STARTED_BEFORE)), State.FAILED),
        (
            Evidence(record=STARTED, log_exists=True, log_tail="*** JOB 7 ON n1 CANCELLED AT 2026-11-23T03:10:00 ***"),
            State.CANCELLED,
        ),
        (
            Evidence(
                record=exited(143),
                log_tail="x\n*** JOB 7 ON n1 CANCELLED AT 2026-11-23T03:10:00 DUE TO TIME LIMIT ***\n",
            ),
            State.TIMEOUT,
        ),
        (Evidence(accounted=[accounted(key="", backend_id="7")]), State.COMPLETED),
    ],
)
def test_the_first_source_that_knows_the_end_counts(evidence, expected):
    assert state(evidence) == expected


@pytest.mark.parametrize(
    "evidence",
    [
        Evidence(),
        Evidence(accounted=[]),
        Evidence(record=STARTED, log_exists=True, log_tail="step 7 loss 2.1"),
        Evidence(accounted=[accounted(State.FAILED, exit_code=STARTED_BEFORE)], record=STARTED),
        # another job with the same id, from before, or two whose comments were not stored
        Evidence(accounted=[accounted(key="other.1")]),
        Evidence(accounted=[accounted(key="", submitted_at=AGO - timedelta(days=1))]),
        Evidence(accounted=[accounted(key=""), accounted(key="", state=State.FAILED)]),
    ],
)
def test_an_end_that_nobody_shows_is_unknown(evidence):
    assert isinstance(found(evidence), Unknown)


def test_a_completed_run_counts_before_a_refused_repetition():
    runs = [accounted(State.FAILED, exit_code=STARTED_BEFORE), accounted(State.COMPLETED, exit_code=0)]

    assert state(Evidence(accounted=runs, record=exited(0))) == State.COMPLETED


@pytest.mark.parametrize("state_there", [State.CANCELLED, State.NODE_FAIL, State.PREEMPTED])
def test_a_recorded_success_counts_before_what_ended_the_job_afterwards(state_there):
    assert state(Evidence(accounted=[accounted(state_there)], record=exited(0))) == State.COMPLETED
    assert state(Evidence(accounted=[accounted(state_there)], record=exited(1))) == state_there


def test_exit_code_97_of_the_command_itself_is_its_own():
    assert (
        state(Evidence(accounted=[accounted(State.FAILED, exit_code=STARTED_BEFORE)], record=NOTHING)) == State.FAILED
    )


@pytest.mark.parametrize(
    ("evidence", "patience"),
    [
        (Evidence(), GRACE),
        (Evidence(accounted=[accounted(State.RUNNING, ended_at=None)]), ACCOUNTING_LAG),
        (Evidence(away=("accounting",)), AWAY),
        (Evidence(accounted=[], away=("log storage",)), AWAY),
    ],
)
def test_a_source_that_may_still_tell_is_waited_for(evidence, patience):
    assert isinstance(found(evidence, now=NOON + patience * 0.9), NotYet)
    assert isinstance(found(evidence, now=NOON + patience), Unknown)


def test_a_job_that_left_no_trace_never_started():
    left = Evidence(accounted=[], record=NOTHING, log_exists=False)

    assert isinstance(found(left, missing(confirmed=False)), NeverStarted)
    assert isinstance(found(left, missing(confirmed=True)), Unknown)
    assert isinstance(found(left, missing(confirmed=False, backend_id=""), NOON + IN_FLIGHT), NeverStarted)


def test_without_a_log_only_accounting_can_say_that_a_job_never_started():
    attempt = missing(confirmed=False, has_log=False)

    assert isinstance(found(Evidence(), attempt), Unknown)
    assert isinstance(found(Evidence(accounted=[]), attempt), NeverStarted)
    assert isinstance(found(Evidence(accounted=[accounted(key="", backend_id="9")]), attempt), Unknown)


def test_a_log_that_is_not_found_where_no_log_ever_was_says_nothing():
    assert isinstance(found(Evidence(record=NOTHING, log_exists=None), missing(confirmed=False)), Unknown)


def test_an_end_in_the_future_of_a_wrong_clock_is_taken_back_to_when_it_was_missed():
    record = AttemptRecord(started=True, started_at=0.0, exit_code=0, ended_at=NOON.timestamp() + 300)

    assert found(Evidence(record=record)).ended.at == NOON


def test_an_unknown_outcome_says_what_was_asked():
    (why,) = {found(Evidence(record=STARTED, log_exists=True)).why}

    assert why == (
        "The cluster has forgotten this attempt: there is no accounting to ask, "
        "it recorded its start and no exit code, the log does not say how it ended. "
        "It may have succeeded, so it is not started again."
    )
