"""Diagnose: every attempt that failed gets a verdict within seconds, then a bundle of evidence that is kept for good.

Who is eligible   attempts that ended in failure since `since` and have no row yet; then rows whose work is left and
                  whose time has come, verdicts before bundles, the longest due first.
What a turn does  notes the failed attempts, claims one row at a time (counted, put ahead by a lease), reads its log
                  without a transaction, writes verdict and incident in one. It stops claiming when its time is up.
Failure story     Killed anywhere: what was claimed comes back when its lease is over, and the number of its try says
                  whose result counts. Two workers: a row is skipped while it is locked, and due later once claimed. A
                  log that breaks its reader three times, by an error or by taking the worker with it, is Unknown with
                  that reason and is not read again. A log that is not there yet is looked for a second time, one whose
                  storage does not answer a third time; then the verdict stands on what the cluster said. Run twice:
                  nothing is left to do.
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
from failures.diagnosis.values import LogDiagnosis as PureDiagnosis
from failures.models import Diagnosis
from failures.queries import diagnose_attempt
from failures.queries.diagnose_attempt import AttemptVerdict
from jobs.logs.job_log import LogNotCreated, StorageUnresponsive
from jobs.models import clock

log = logging.getLogger(__name__)

RECENT_FAILURES = timedelta(hours=1)
ALL_FAILURES = timedelta(days=30)
TIME_BUDGET = timedelta(seconds=20)  # well below what a task may take
MAX_TRIES = 3
LATE_LOG_DELAY = timedelta(seconds=2)  # a shared file system may show a file a moment after its writer is gone
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
    """How many verdicts and bundles were written."""
    incident_actions.add_missing_diagnoses(now - since, now)
    done, at = 0, now
    while at - now < TIME_BUDGET and (row := incident_actions.claim(at)) is not None:
        done += _process_row(row, at, judge, bundle)
        at = clock.now()
    return done


def _process_row(row: Diagnosis, now: datetime, judge: JudgeFunction, bundle: BundleFunction) -> bool:
    """The row boundary: whatever a log does to its reader, the next one is read."""
    try:
        if row.judged_at is None:
            return _write_verdict(row, now, judge)
        _write_bundle(row, bundle)
    except FailureStateConflict as moved:
        log.info("%s", moved)
        return False
    except SoftTimeLimitExceeded:
        raise
    except Exception as error:
        log.exception("the log of %s could not be read to its end", row.attempt)
        incident_actions.postpone_diagnosis(
            row, f"{type(error).__name__}: {error}", now + timedelta(seconds=5 * row.tries)
        )
        return False
    return True


def _write_verdict(row: Diagnosis, now: datetime, judge: JudgeFunction) -> bool:
    if row.tries > MAX_TRIES:
        _write_unknown_verdict(row, now)
        return True
    found = judge(row.attempt)
    if isinstance(found.no_log, LogNotCreated) and now - row.failed_at < LOG_WAIT and row.tries == 1:
        incident_actions.postpone_diagnosis(row, str(found.no_log), now + LATE_LOG_DELAY)
        return False
    if isinstance(found.no_log, StorageUnresponsive) and row.tries < MAX_TRIES:
        incident_actions.postpone_diagnosis(row, str(found.no_log), now + SILENT_STORAGE_DELAY)
        return False
    incident_actions.record_verdict(
        row, found.verdict, found.cost, found.first_symptom_at, clock.now()
    )  # reading took its time
    return True


def _write_unknown_verdict(row: Diagnosis, now: datetime) -> None:
    why = f"Its log could not be read in {MAX_TRIES} tries" + (f": {row.trouble}" if row.trouble else ".")
    incident_actions.record_verdict(
        row, _unreadable_log_verdict(why), diagnose_attempt.failure_cost(row.attempt), row.failed_at, now, trouble=why
    )


def _unreadable_log_verdict(why: str) -> PureDiagnosis:
    return replace(engine.diagnose([]), root_cause="Unknown", notes=(why,))


def _write_bundle(row: Diagnosis, bundle: BundleFunction) -> None:
    text = "" if row.tries > MAX_TRIES else bundle(row.attempt)
    incident_actions.store_bundle(row, text, clock.now())
