"""Diagnose: every failed attempt gets a verdict within seconds, then an evidence bundle that is stored permanently.

Eligible rows     Attempts that failed within `since` and have no row yet; then rows with work to do that are due,
                  verdicts before bundles, longest due first.
What a turn does  Adds rows for failed attempts, claims one row at a time (counted, with a lease), reads the log outside
                  a transaction, and stores verdict and incident in one transaction. It stops claiming when its time
                  budget is used up.
Failure story     After a kill, a claimed row is due again when its lease ends; `tries` decides whose result counts. Two
                  workers never process one row: it is skipped while locked and due later once claimed. If reading a log
                  fails three times, by an error or a crash of the worker, the verdict is Unknown with the reason, and
                  the log is not read again. A log that does not exist yet is tried twice, one on unresponsive storage
                  three times; then the verdict uses the report of the cluster. A second run finds no work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from celery.exceptions import SoftTimeLimitExceeded

from failures.actions import incidents as incident_actions
from failures.actions.incidents import FailureStateConflict
from failures.diagnosis import engine
from failures.diagnosis.values import LogDiagnosis
from failures.models import Diagnosis
from failures.queries import diagnose_attempt
from failures.queries.diagnose_attempt import AttemptVerdict
from jobs.actions.one_row import ORDINARY_ERRORS
from jobs.logs.job_log import LogNotCreated, StorageUnresponsive
from jobs.models import clock

log = logging.getLogger(__name__)

RECENT_FAILURES = timedelta(hours=1)
ALL_FAILURES = timedelta(days=30)
TIME_BUDGET = timedelta(seconds=20)  # well below the time limit of the task
MAX_TRIES = 3
LATE_LOG_DELAY = timedelta(seconds=2)  # a shared file system may show a file only after its writer has exited
LOG_WAIT = timedelta(seconds=5)
SILENT_STORAGE_DELAY = timedelta(seconds=20)

JudgeFunction = Callable[..., AttemptVerdict]
BundleFunction = Callable[..., str]


def diagnose_once(
    now: datetime,
    *,
    since: timedelta = RECENT_FAILURES,
    judge: JudgeFunction = diagnose_attempt.judge_attempt,
    bundle: BundleFunction = diagnose_attempt.build_bundle,
) -> int:
    """Diagnoses failed attempts until no row is due or the time budget is used up. Returns the number of results."""
    incident_actions.add_missing_diagnoses(now - since, now)
    done, at = 0, now
    while at - now < TIME_BUDGET and (row := incident_actions.claim(at)) is not None:
        done += _process_row(row, at, judge, bundle)
        at = clock.now()
    return done


def _process_row(row: Diagnosis, now: datetime, judge: JudgeFunction, bundle: BundleFunction) -> bool:
    """Process one row. Errors are logged and the row is retried, so that other rows are not affected."""
    try:
        if row.judged_at is None:
            return _write_verdict(row, now, judge)
        _write_bundle(row, bundle)
    except FailureStateConflict as conflict:
        log.info("%s", conflict)
        return False
    except SoftTimeLimitExceeded:
        raise
    except Exception as error:
        is_unexpected = not isinstance(error, ORDINARY_ERRORS)
        log.error("The log of %s could not be read: %s", row.attempt, error, exc_info=is_unexpected)
        incident_actions.postpone_diagnosis(
            row, f"{type(error).__name__}: {error}", now + timedelta(seconds=5 * row.tries)
        )
        return False
    return True


def _write_verdict(row: Diagnosis, now: datetime, judge: JudgeFunction) -> bool:
    if row.tries > MAX_TRIES:
        _write_unknown_verdict(row, now)
        return True
    result = judge(row.attempt)
    if isinstance(result.no_log, LogNotCreated) and now - row.failed_at < LOG_WAIT and row.tries == 1:
        incident_actions.postpone_diagnosis(row, str(result.no_log), now + LATE_LOG_DELAY)
        return False
    if isinstance(result.no_log, StorageUnresponsive) and row.tries < MAX_TRIES:
        incident_actions.postpone_diagnosis(row, str(result.no_log), now + SILENT_STORAGE_DELAY)
        return False
    incident_actions.record_verdict(
        row, result.verdict, result.cost, result.first_symptom_at, clock.now()
    )  # reading took its time
    return True


def _write_unknown_verdict(row: Diagnosis, now: datetime) -> None:
    why = f"The log could not be read in {MAX_TRIES} attempts" + (f": {row.last_error}" if row.last_error else ".")
    incident_actions.record_verdict(
        row,
        _unreadable_log_verdict(why),
        diagnose_attempt.failure_cost(row.attempt),
        row.failed_at,
        now,
        last_error=why,
    )


def _unreadable_log_verdict(why: str) -> LogDiagnosis:
    return replace(engine.diagnose([]), root_cause="Unknown", notes=(why,))


def _write_bundle(row: Diagnosis, bundle: BundleFunction) -> None:
    text = "" if row.tries > MAX_TRIES else bundle(row.attempt)
    incident_actions.store_bundle(row, text, clock.now())
