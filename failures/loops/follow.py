"""Follow: the logs of running attempts are read while they grow, so that an end finds little left to read.

Who is eligible   running attempts whose cluster keeps logs and that have no row yet; then rows whose time has come, the
                  longest due first. A log is due when as much as `Pace.ahead` is expected to be unread.
What a turn does  forgets what has ended, then claims one row at a time (counted, leased, one in hand at any moment),
                  reads on from where it was left, and keeps what is known with its place in the file, in one UPDATE.
                  It stops claiming when its time is up.
Failure story     Killed anywhere: what was kept last is true of the bytes it names, and the next turn reads on there.
                  Two workers: the lease keeps the second away; a worker that slept past it writes nothing, for the
                  row carries another number and another lease. Late or never: the diagnosis reads the rest, or all. A
                  log that breaks its reader three times is left to the diagnosis, which has tries of its own. A log
                  that was cut off or replaced is begun anew. Rules that changed: what was known under others is not
                  used.
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
    """How many logs were looked at."""
    actions.forget_ended_attempts(now)
    actions.add_running_attempts(now)
    done, at = 0, now
    while at - now < TIME_BUDGET and (row := actions.claim(at)) is not None:
        _follow_row(row, at, pace)
        done += 1
        at = clock.now()
    return done


def _follow_row(row: Following, now: datetime, pace: FollowPace) -> None:
    """The row boundary: whatever one log does, the next one is followed."""
    attempt = row.attempt
    try:
        grown = LogStream(attempt.job.cluster.log_root, attempt.log_path)
        actions.save_log_offset(row, log_resume.read_new_lines(row, grown, now, pace), now)
    except LogReadError:
        actions.save_log_offset(row, actions.LogFollowResult(size=0, due_at=now + RETRY_DELAY), now)
    except SoftTimeLimitExceeded:
        raise
    except Exception:
        log.exception("the log of %s cannot be followed", attempt)
        actions.postpone_log(row, now + RETRY_DELAY)
