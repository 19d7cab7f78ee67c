"""The outcome of a forgotten attempt, as a table of accounting, record and log."""

from datetime import timedelta

import pytest

from jobs.core.lifecycle import State
from scheduling.backends.attempt_record import STARTED_BEFORE, AttemptRecord
from scheduling.loops.observe.outcome_evidence import (
    ACCOUNTING_LAG,
    MISSING_GRACE,
    SOURCE_TIMEOUT,
    SUBMISSION_GRACE,
    KnownEnd,
    MissingAttempt,
    NeverStarted,
    OutcomeEvidence,
    OutcomePending,
    UnknownOutcome,
    find_outcome,
)
from tests.make import NOON
from tests.scheduling.fake import seen_job

AGO = NOON - timedelta(hours=1)
LATE = NOON + MISSING_GRACE + SOURCE_TIMEOUT
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
    return find_outcome(attempt or missing(), evidence, now)


def state(evidence, attempt=None, now=NOON):
    known = found(evidence, attempt, now)
    assert isinstance(known, KnownEnd), known
    return known.ended.state


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (OutcomeEvidence(accounted=[accounted()]), State.COMPLETED),
        (OutcomeEvidence(accounted=[accounted(State.TIMEOUT)], record=exited(143)), State.TIMEOUT),
        (OutcomeEvidence(accounted=[accounted(State.NODE_FAIL)]), State.NODE_FAIL),
        (OutcomeEvidence(accounted=[], record=exited(0)), State.COMPLETED),
        (OutcomeEvidence(record=exited(1)), State.FAILED),
        (OutcomeEvidence(record=exited(STARTED_BEFORE)), State.FAILED),
        (
            OutcomeEvidence(record=STARTED, log_exists=True, log_state=State.CANCELLED),
            State.CANCELLED,
        ),
        (OutcomeEvidence(record=exited(143), log_state=State.TIMEOUT), State.TIMEOUT),
        (OutcomeEvidence(accounted=[accounted(key="", backend_id="7")]), State.COMPLETED),
    ],
)
def test_the_first_source_that_knows_the_end_counts(evidence, expected):
    assert state(evidence) == expected


@pytest.mark.parametrize(
    "evidence",
    [
        OutcomeEvidence(),
        OutcomeEvidence(accounted=[]),
        OutcomeEvidence(record=STARTED, log_exists=True),
        OutcomeEvidence(accounted=[accounted(State.FAILED, exit_code=STARTED_BEFORE)], record=STARTED),
        # another job with the same id, from before, or two whose comments were not stored
        OutcomeEvidence(accounted=[accounted(key="other.1")]),
        OutcomeEvidence(accounted=[accounted(key="", submitted_at=AGO - timedelta(days=1))]),
        OutcomeEvidence(accounted=[accounted(key=""), accounted(key="", state=State.FAILED)]),
    ],
)
def test_end_without_evidence_is_unknown(evidence):
    assert isinstance(found(evidence), UnknownOutcome)


def test_a_completed_run_counts_before_a_refused_repetition():
    runs = [accounted(State.FAILED, exit_code=STARTED_BEFORE), accounted(State.COMPLETED, exit_code=0)]

    assert state(OutcomeEvidence(accounted=runs, record=exited(0))) == State.COMPLETED


@pytest.mark.parametrize("state_there", [State.CANCELLED, State.NODE_FAIL, State.PREEMPTED])
def test_a_recorded_success_counts_before_what_ended_the_job_afterwards(state_there):
    assert state(OutcomeEvidence(accounted=[accounted(state_there)], record=exited(0))) == State.COMPLETED
    assert state(OutcomeEvidence(accounted=[accounted(state_there)], record=exited(1))) == state_there


def test_exit_code_97_of_the_command_itself_is_its_own():
    assert (
        state(OutcomeEvidence(accounted=[accounted(State.FAILED, exit_code=STARTED_BEFORE)], record=NOTHING))
        == State.FAILED
    )


@pytest.mark.parametrize(
    ("evidence", "patience"),
    [
        (OutcomeEvidence(), MISSING_GRACE),
        (OutcomeEvidence(accounted=[accounted(State.RUNNING, ended_at=None)]), ACCOUNTING_LAG),
        (OutcomeEvidence(away=("accounting",)), SOURCE_TIMEOUT),
        (OutcomeEvidence(accounted=[], away=("log storage",)), SOURCE_TIMEOUT),
    ],
)
def test_unreachable_source_is_waited_for(evidence, patience):
    assert isinstance(found(evidence, now=NOON + patience * 0.9), OutcomePending)
    assert isinstance(found(evidence, now=NOON + patience), UnknownOutcome)


def test_a_job_that_left_no_trace_never_started():
    left = OutcomeEvidence(accounted=[], record=NOTHING, log_exists=False)

    assert isinstance(found(left, missing(confirmed=False)), NeverStarted)
    assert isinstance(found(left, missing(confirmed=True)), UnknownOutcome)
    assert isinstance(found(left, missing(confirmed=False, backend_id=""), NOON + SUBMISSION_GRACE), NeverStarted)


def test_without_a_log_only_accounting_can_say_that_a_job_never_started():
    attempt = missing(confirmed=False, has_log=False)

    assert isinstance(found(OutcomeEvidence(), attempt), UnknownOutcome)
    assert isinstance(found(OutcomeEvidence(accounted=[]), attempt), NeverStarted)
    assert isinstance(found(OutcomeEvidence(accounted=[accounted(key="", backend_id="9")]), attempt), UnknownOutcome)


def test_missing_log_without_any_other_log_proves_nothing():
    assert isinstance(found(OutcomeEvidence(record=NOTHING, log_exists=None), missing(confirmed=False)), UnknownOutcome)


def test_end_in_the_future_is_moved_back_to_missing_since():
    record = AttemptRecord(started=True, started_at=0.0, exit_code=0, ended_at=NOON.timestamp() + 300)

    assert found(OutcomeEvidence(record=record)).ended.at == NOON


def test_unknown_outcome_lists_the_checked_sources():
    (why,) = {found(OutcomeEvidence(record=STARTED, log_exists=True)).why}

    assert why == (
        "The cluster no longer knows this attempt: no accounting is available, "
        "it recorded its start but no exit code, the log does not say how it ended. "
        "It may have succeeded, so it is not restarted."
    )
