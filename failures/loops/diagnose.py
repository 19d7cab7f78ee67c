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

from failures import actions, reading
from failures.actions import Moved
from failures.diagnosis import engine
from failures.diagnosis.values import Diagnosis as PureDiagnosis
from failures.models import Diagnosis
from failures.reading import Judged
from jobs import clock
from jobs.logs import NothingYet, StorageSilent

log = logging.getLogger(__name__)

LATELY = timedelta(hours=1)
EVER = timedelta(days=30)
TIME = timedelta(seconds=20)  # well below what a task may take
MOST_TRIES = 3
LATE_LOG = timedelta(seconds=2)  # a shared file system may show a file a moment after its writer is gone
PATIENCE = timedelta(seconds=5)
SILENT_STORAGE = timedelta(seconds=20)

Judge = Callable[..., Judged]
Bundle = Callable[..., str]


def diagnose_once(
    now: datetime, *, since: timedelta = LATELY, judge: Judge = reading.judge, bundle: Bundle = reading.bundle
) -> int:
    """How many verdicts and bundles were written."""
    actions.note_failed(now - since, now)
    done, at = 0, now
    while at - now < TIME and (row := actions.claim(at)) is not None:
        done += _work(row, at, judge, bundle)
        at = clock.now()
    return done


def _work(row: Diagnosis, now: datetime, judge: Judge, bundle: Bundle) -> bool:
    """The row boundary: whatever a log does to its reader, the next one is read."""
    try:
        if row.judged_at is None:
            return _verdict(row, now, judge)
        _bundle(row, bundle)
    except Moved as moved:
        log.info("%s", moved)
        return False
    except SoftTimeLimitExceeded:
        raise
    except Exception as error:
        log.exception("the log of %s could not be read to its end", row.attempt)
        actions.put_off(row, f"{type(error).__name__}: {error}", now + timedelta(seconds=5 * row.tries))
        return False
    return True


def _verdict(row: Diagnosis, now: datetime, judge: Judge) -> bool:
    if row.tries > MOST_TRIES:
        _give_up(row, now)
        return True
    found = judge(row.attempt)
    if isinstance(found.no_log, NothingYet) and now - row.failed_at < PATIENCE and row.tries == 1:
        actions.put_off(row, str(found.no_log), now + LATE_LOG)
        return False
    if isinstance(found.no_log, StorageSilent) and row.tries < MOST_TRIES:
        actions.put_off(row, str(found.no_log), now + SILENT_STORAGE)
        return False
    actions.judge(row, found.verdict, found.cost, found.first_symptom_at, clock.now())  # reading took its time
    return True


def _give_up(row: Diagnosis, now: datetime) -> None:
    why = f"Its log could not be read in {MOST_TRIES} tries" + (f": {row.trouble}" if row.trouble else ".")
    actions.judge(row, _unread(why), reading.cost_of(row.attempt), row.failed_at, now, trouble=why)


def _unread(why: str) -> PureDiagnosis:
    return replace(engine.diagnose([]), root_cause="Unknown", notes=(why,))


def _bundle(row: Diagnosis, bundle: Bundle) -> None:
    text = "" if row.tries > MOST_TRIES else bundle(row.attempt)
    actions.keep_bundle(row, text, clock.now())
