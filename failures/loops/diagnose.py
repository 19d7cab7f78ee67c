"""Diagnose: every failed attempt gets a verdict within seconds, then an evidence bundle that is stored permanently.

Eligible rows     Attempts that failed by themselves within `since` and have no row yet, or only that of a detector on
                  which recovery did not act; then rows with work to do that are due, verdicts before bundles, longest
                  due first.
What a turn does  Withdraws what detectors said about these attempts, adds rows for failed attempts, claims one row at
                  a time (counted, with a lease), reads the log outside a transaction, and stores verdict and incident
                  in one transaction. It stops claiming when its time budget is used up.
Failure story     After a kill, a claimed row is due again when its lease ends; `tries` decides whose result counts. Two
                  workers never process one row: it is skipped while locked and due later once claimed. If reading a log
                  fails three times, or the worker is ended twice while it reads, the verdict uses the report of the
                  cluster and says why. A log that cannot be read in time is read in part, and the verdict says so. A
                  log that does not exist yet is tried twice, one on unresponsive storage three times; then the verdict
                  uses the report of the cluster. A second run finds no work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from acmeweb.common.errors import ClaimLost
from failures.actions import incidents as incident_actions
from failures.models import Diagnosis
from failures.queries import diagnose_attempt
from failures.queries.diagnose_attempt import AttemptVerdict
from jobs.actions.one_row import ORDINARY_ERRORS
from jobs.logs.job_log import LogNotCreated, StorageUnresponsive
from jobs.models import clock

log = logging.getLogger(__name__)

RECENT_FAILURES = timedelta(hours=1)
ALL_FAILURES = timedelta(days=30)
TIME_BUDGET = timedelta(seconds=20)  # well below the time limit of a run
MAX_TRIES = 3
MAX_INTERRUPTED_TRIES = 2  # of which no error is known: the worker was ended
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
    incident_actions.withdraw_early_diagnoses(now - since, now)
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
    except ClaimLost as conflict:
        log.info("%s", conflict)
        return False
    except Exception as error:
        is_unexpected = not isinstance(error, ORDINARY_ERRORS)
        log.error("The log of %s could not be read: %s", row.attempt, error, exc_info=is_unexpected)
        incident_actions.postpone_diagnosis(
            row, f"{type(error).__name__}: {error}", now + timedelta(seconds=5 * row.tries)
        )
        return False
    return True


def _write_verdict(row: Diagnosis, now: datetime, judge: JudgeFunction) -> bool:
    if why := _reason_not_to_read(row):
        _record(row, diagnose_attempt.judge_without_log(row.attempt, why), now, last_error=why)
        return True
    result = judge(row.attempt)
    if isinstance(result.no_log, LogNotCreated) and now - row.failed_at < LOG_WAIT and row.tries == 1:
        incident_actions.postpone_diagnosis(row, str(result.no_log), now + LATE_LOG_DELAY)
        return False
    if isinstance(result.no_log, StorageUnresponsive) and row.tries < MAX_TRIES:
        incident_actions.postpone_diagnosis(row, str(result.no_log), now + SILENT_STORAGE_DELAY)
        return False
    _record(row, result, clock.now())  # reading took its time
    return True


def _reason_not_to_read(row: Diagnosis) -> str:
    """Why the log is not read again; empty if it is."""
    if row.tries > MAX_TRIES:
        return f"The log could not be read in {MAX_TRIES} attempts" + (f": {row.last_error}" if row.last_error else ".")
    if row.tries > MAX_INTERRUPTED_TRIES and not row.last_error:
        return f"The log was not read: the worker was ended {MAX_INTERRUPTED_TRIES} times while it read the log."
    return ""


def _record(row: Diagnosis, result: AttemptVerdict, now: datetime, last_error: str = "") -> None:
    incident_actions.record_verdict(
        row, result.verdict, result.cost, result.first_symptom_at, now, last_error=last_error
    )


def _write_bundle(row: Diagnosis, bundle: BundleFunction) -> None:
    text = "" if _reason_not_to_read(row) else bundle(row.attempt)
    incident_actions.store_bundle(row, text, clock.now())
