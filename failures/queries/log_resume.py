"""Resumes reading a log from the stored state of a follower. Read-only.

The stored state is used only if the file still contains the last read bytes at their position. A log that was
truncated, rewritten or replaced is read from its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from failures.diagnosis import unpacking
from failures.diagnosis.following import LogFollower, restore_follower
from failures.models import LogReadState
from failures.queries import active_rules
from jobs.logs.job_log import LogStream
from jobs.models import Attempt

SEAM_BYTES = 64
MIN_READ_DELAY, MAX_READ_DELAY = timedelta(seconds=5), timedelta(minutes=5)
PACKED_READ_DELAY = timedelta(hours=6)


@dataclass(frozen=True, kw_only=True)
class FollowPace:
    max_unread_bytes: int = 8 << 20  # when an attempt ends: about 40 ms for a verdict, 250 ms for a bundle
    at_once: int = 48 << 20  # bytes per turn, about two seconds


DEFAULT_FOLLOW_PACE = FollowPace()


@dataclass(frozen=True, kw_only=True)
class LogFollowResult:
    """The result of reading a growing log; `state` is None if nothing new was read."""

    size: int
    due_at: datetime
    read: int = 0
    seam: bytes = b""
    state: bytes | None = None


def resume_follower(attempt: Attempt, log: LogStream) -> tuple[LogFollower, int] | None:
    """The follower of this attempt and how many bytes it has read; None if this file was not followed."""
    row: LogReadState | None = getattr(attempt, "log_read_state", None)
    return _resume_from_row(row, log) if row else None


def _resume_from_row(row: LogReadState, log: LogStream) -> tuple[LogFollower, int] | None:
    if row.state is None or row.read > log.size:
        return None
    if log.read_range(max(0, row.read - SEAM_BYTES), row.read) != bytes(row.seam):
        return None
    follower = restore_follower(bytes(row.state), active_rules.active_filter_rules(), active_rules.active_scanner())
    return (follower, row.read) if follower else None


def read_new_lines(
    row: LogReadState, log: LogStream, now: datetime, pace: FollowPace = DEFAULT_FOLLOW_PACE
) -> LogFollowResult:
    """Read the new lines once there are enough of them, up to the limit per turn."""
    if unpacking.is_compressed(log.read_range(0, unpacking.HEADER_BYTES)):
        return LogFollowResult(size=log.size, due_at=now + PACKED_READ_DELAY)
    resumed, at = _resume_from_row(row, log) or (None, 0)
    if log.size - at < pace.max_unread_bytes:
        return LogFollowResult(size=log.size, due_at=now + _next_read_delay(row, log.size, at, now, pace))
    follower = resumed or LogFollower(active_rules.active_filter_rules(), active_rules.active_scanner())
    log.cut(at, min(log.size, at + pace.at_once))
    for piece in log.sync_chunks():
        follower.feed(piece)
        at += len(piece)
    state = follower.frozen()
    if state is None:
        return LogFollowResult(size=log.size, due_at=now + PACKED_READ_DELAY)
    wait = _next_read_delay(row, log.size, at, now, pace) if log.size - at < pace.max_unread_bytes else timedelta(0)
    seam = log.read_range(max(0, at - SEAM_BYTES), at)
    return LogFollowResult(size=log.size, due_at=now + wait, read=at, seam=seam, state=state)


def _next_read_delay(row: LogReadState, size: int, read: int, now: datetime, pace: FollowPace) -> timedelta:
    """The time until `pace.max_unread_bytes` bytes will be unread, if the log keeps growing as since the last read."""
    if row.looked_at is None or now <= row.looked_at:
        return MIN_READ_DELAY
    grown = max(0, size - row.size) / (now - row.looked_at).total_seconds()
    room = max(0, pace.max_unread_bytes - (size - read))
    if grown * MAX_READ_DELAY.total_seconds() <= room:
        return MAX_READ_DELAY
    return max(MIN_READ_DELAY, timedelta(seconds=room / grown))
