"""Follow: reads the logs of running attempts while they grow, so that little is left to read when an attempt ends.

Eligible rows     Running attempts on clusters with logs that have no row yet; then rows that are due, longest first. A
                  log is due when `FollowPace.ahead` bytes are expected to be unread.
What a turn does  Deletes rows of ended attempts, then claims one row at a time (counted, with a lease, one claimed row
                  in total), continues reading, and stores state and read position in one UPDATE. It stops claiming
                  when its time budget is used up.
Failure story     After a kill, the stored state still matches its read position, and the next turn continues there. The
                  lease excludes a second worker; a worker whose lease has expired writes nothing, because the row has
                  another `tries`. If this loop is late, the diagnosis reads the rest. A log that fails three times is
                  left to the diagnosis. A truncated or replaced log is read from the beginning, as is every log after
                  the rules have changed.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from celery.exceptions import SoftTimeLimitExceeded

from failures.actions import log_offsets as actions
from failures.models import Following
from failures.queries import log_resume
from failures.queries.log_resume import DEFAULT_FOLLOW_PACE, FollowPace
from jobs.logs.job_log import LogReadError, LogStream
from jobs.models import clock

log = logging.getLogger(__name__)

TIME_BUDGET = timedelta(seconds=4)
RETRY_DELAY = timedelta(minutes=1)


def follow_once(now: datetime, pace: FollowPace = DEFAULT_FOLLOW_PACE) -> int:
    """Read logs that are due. Returns their number."""
    actions.forget_ended_attempts(now)
    actions.add_running_attempts(now)
    done, at = 0, now
    while at - now < TIME_BUDGET and (row := actions.claim(at)) is not None:
        _follow_row(row, at, pace)
        done += 1
        at = clock.now()
    return done


def _follow_row(row: Following, now: datetime, pace: FollowPace) -> None:
    """Follow one log. Errors are logged and the log is retried, so that other logs are not affected."""
    attempt = row.attempt
    try:
        stream = LogStream(attempt.job.cluster.log_root, attempt.log_path)
        actions.save_log_offset(row, log_resume.read_new_lines(row, stream, now, pace), now)
    except LogReadError:
        actions.save_log_offset(row, actions.LogFollowResult(size=0, due_at=now + RETRY_DELAY), now)
    except SoftTimeLimitExceeded:
        raise
    except Exception:
        log.exception("The log of %s could not be followed", attempt)
        actions.postpone_log(row, now + RETRY_DELAY)
