"""Follow: reads the logs of running attempts while they grow. No other loop reads them.

Eligible rows     Running attempts on clusters with logs. For steps: training jobs that do not report their steps, each
                  log every 15 s, longest unread first, and the rest of the log of an ended attempt once, which is tried
                  for ten minutes. For the diagnosis: all attempts, longest due first. A log is due when
                  `FollowPace.max_unread_bytes` bytes are expected to be unread.
What a turn does  Adds rows of new attempts and deletes rows of ended ones. Reads new lines for steps and stores steps,
                  cadence and position in one transaction; `watch` detects hangs from the cadence. Then claims one row
                  at a time for the diagnosis (counted, with a lease, one claimed row in total), continues reading, and
                  stores state and position in one UPDATE, so that little is left to read when an attempt ends. Each
                  part stops when its time budget is used up.
Failure story     After a kill, each stored state still matches its position, and the next turn continues there. Of two
                  workers that read the same lines for steps, the second one finds another position and stores nothing.
                  For the diagnosis, a lease excludes a second worker; a worker whose lease has expired writes nothing,
                  because the row has another lease. If this loop is late, no hang is detected, because silence counts
                  only up to the last read, and the diagnosis reads the rest. A log that fails three times with an
                  unexpected error is left to the diagnosis; one that cannot be read is tried again each minute. A
                  truncated or replaced log is read from the beginning, as is every log after the rules have changed.

A turn reads at most 1 MiB of new lines per log for steps; a log that has not grown costs one size check. Steps read
from a log are shown to users, but their values are not used for diagnoses: step times include other work of the
program, and a loss parsed from a line is too unreliable to end a job.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta

from failures.actions import log_read_states as actions
from failures.models import LogReadState
from failures.queries import log_resume, log_steps
from failures.queries.log_resume import DEFAULT_FOLLOW_PACE, FollowPace
from jobs.actions.one_row import skip_row_on_error
from jobs.logs.job_log import LogReadError, LogStream
from jobs.models import Attempt, clock

log = logging.getLogger(__name__)

TIME_BUDGET = timedelta(seconds=4)  # of each part
RETRY_DELAY = timedelta(minutes=1)


def follow_once(now: datetime, pace: FollowPace = DEFAULT_FOLLOW_PACE) -> int:
    """Read logs that are due. Returns how many were read for the diagnosis."""
    actions.add_running_attempts(now)
    _read_steps(now)
    actions.forget_ended_attempts(now)
    return _read_for_diagnosis(now, pace)


def _read_steps(now: datetime) -> None:
    """Read the new lines of running logs for steps, and the rest of the logs of ended attempts once."""
    actions.close_old_steps(now)
    _read_step_logs(log_steps.attempts_to_read(now), now)
    actions.close_steps(_read_step_logs(log_steps.ended_attempts_to_close(), now))


def _read_step_logs(attempts: Iterable[Attempt], now: datetime) -> list[Attempt]:
    """Read logs as long as there is time. Return the attempts whose logs were read.

    A log is marked first, so that one that kills the worker comes last in the next turn.
    """
    began, read = clock.now(), list[Attempt]()
    for attempt in attempts:
        if clock.now() - began > TIME_BUDGET:
            break
        with skip_row_on_error(attempt), suppress(LogReadError):
            actions.mark_steps_looked_at(attempt.log_read_state, now)
            stream = LogStream(attempt.log_source)
            actions.save_steps(attempt.log_read_state, log_steps.read_new_steps(attempt, stream, now), now)
            read.append(attempt)
    return read


def _read_for_diagnosis(now: datetime, pace: FollowPace) -> int:
    done, at = 0, now
    while at - now < TIME_BUDGET and (row := actions.claim(at)) is not None:
        _follow_row(row, at, pace)
        done += 1
        at = clock.now()
    return done


def _follow_row(row: LogReadState, now: datetime, pace: FollowPace) -> None:
    """Follow one log. Errors are logged and the log is retried, so that other logs are not affected."""
    attempt = row.attempt
    try:
        stream = LogStream(attempt.log_source)
        actions.save_diagnosis_position(row, log_resume.read_new_lines(row, stream, now, pace), now)
    except LogReadError:
        actions.retry_log_later(row, now + RETRY_DELAY)
    except Exception:
        log.exception("The log of %s could not be followed", attempt)
        actions.postpone_log(row, now + RETRY_DELAY)
