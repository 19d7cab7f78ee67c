"""A log on disk and what a follower knew of it → the follower, a little further. Reads; changes nothing.

What was known is trusted only if the file still has, at that place, the bytes that were read last: a log that was cut
off, written anew or swapped for another one is read from its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from failures import rulebook
from failures.diagnosis import unpacking
from failures.diagnosis.following import Follower, thawed
from failures.following_actions import Look
from failures.models import Following
from jobs.logs import Stream
from jobs.models import Attempt

SEAM = 64
SOONEST, LATEST = timedelta(seconds=5), timedelta(minutes=5)
PACKED = timedelta(hours=6)


@dataclass(frozen=True, kw_only=True)
class Pace:
    ahead: int = 8 << 20  # so much may be unread when an attempt ends: some 40 ms for a verdict, 250 ms for a bundle
    at_once: int = 48 << 20  # about two seconds of a worker


PACE = Pace()


def taken_up(attempt: Attempt, log: Stream) -> tuple[Follower, int] | None:
    """The follower of this attempt and how many bytes it knows; None where nobody followed this very file."""
    row: Following | None = getattr(attempt, "following", None)
    return _taken_up(row, log) if row else None


def _taken_up(row: Following, log: Stream) -> tuple[Follower, int] | None:
    if row.state is None or row.read > log.size:
        return None
    if log.bytes_of(max(0, row.read - SEAM), row.read) != bytes(row.seam):
        return None
    known = thawed(bytes(row.state), rulebook.filter_rules(), rulebook.scanner())
    return (known, row.read) if known else None


def look(row: Following, log: Stream, now: datetime, pace: Pace = PACE) -> Look:
    """Nothing is read until it is worth the trouble; then all of it, or as much as one turn may take."""
    if unpacking.is_packed(log.bytes_of(0, unpacking.HEAD)):
        return Look(size=log.size, due_at=now + PACKED)
    known, at = _taken_up(row, log) or (None, 0)
    if log.size - at < pace.ahead:
        return Look(size=log.size, due_at=now + _patience(row, log.size, at, now, pace))
    follower = known or Follower(rulebook.filter_rules(), rulebook.scanner())
    log.cut(at, min(log.size, at + pace.at_once))
    for piece in log.in_turn():
        follower.feed(piece)
        at += len(piece)
    state = follower.frozen()
    if state is None:
        return Look(size=log.size, due_at=now + PACKED)
    wait = _patience(row, log.size, at, now, pace) if log.size - at < pace.ahead else timedelta(0)
    seam = log.bytes_of(max(0, at - SEAM), at)
    return Look(size=log.size, due_at=now + wait, read=at, seam=seam, state=state)


def _patience(row: Following, size: int, read: int, now: datetime, pace: Pace) -> timedelta:
    """Until so much will be unread again, if it grows on as it has grown since the last look."""
    if row.looked_at is None or now <= row.looked_at:
        return SOONEST
    grown = max(0, size - row.size) / (now - row.looked_at).total_seconds()
    room = max(0, pace.ahead - (size - read))
    if grown * LATEST.total_seconds() <= room:
        return LATEST
    return max(SOONEST, timedelta(seconds=room / grown))
