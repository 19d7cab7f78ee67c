"""Intervals of one attempt for the ledger: which of its time was work, and which of its work was lost. Pure.

start-up      from the promised start to the first completed step (without step reports: until the cluster ran it). This
              is recovery, under the failure's cause, if the previous attempt failed
lost work     work after the last valid checkpoint if the end discarded it. Any end does, except COMPLETED, CANCELLED
              (the user got what was needed) and an attempt that still runs
slow          the excess time of a period slower than predicted, placed at its end
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scheduling.ledger.rules.buckets import Bucket, BucketInterval

UsSpan = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class SlowPeriod:
    """A period in which steps took `observed` although `expected` was predicted, in any unit."""

    start: int
    end: int
    observed: float
    expected: float
    cause: str = ""


@dataclass(frozen=True, kw_only=True)
class AttemptHistory:
    """Times in microseconds since 1970. None: has not happened yet, or is unknown."""

    promised: int
    confirmed: int | None = None
    first_step: int | None = None
    ended: int | None = None
    keeps_work: bool = True  # its end discarded no work
    saved: int | None = None  # the time of the state in the newest valid checkpoint
    cause: str = ""  # the cause of its end
    after: str = ""  # the cause of the failure from which it recovers
    stalls: Sequence[UsSpan] = ()
    hangs: Sequence[UsSpan] = ()
    slows: Sequence[SlowPeriod] = ()


OPEN_END_US = 1 << 62


def bucket_intervals(attempt: AttemptHistory) -> list[BucketInterval]:
    """The intervals of an attempt. They may overlap; `buckets` resolves that."""
    end = OPEN_END_US if attempt.ended is None else attempt.ended
    intervals = [BucketInterval(attempt.promised, min(_start_us(attempt), end), *_startup_bucket(attempt))]
    intervals += [BucketInterval(low, high, Bucket.CHECKPOINT_STALL) for low, high in attempt.stalls]
    intervals += [BucketInterval(low, high, Bucket.HUNG, attempt.cause) for low, high in attempt.hangs]
    intervals += [slow_interval for pace in attempt.slows for slow_interval in _slow_intervals(pace)]
    if not attempt.keeps_work and attempt.ended is not None:
        intervals.append(
            BucketInterval(
                max(attempt.promised, attempt.saved or attempt.promised), end, Bucket.LOST_WORK, attempt.cause
            )
        )
    return intervals


def _startup_bucket(attempt: AttemptHistory) -> tuple[Bucket, str]:
    return (Bucket.RECOVERY, attempt.after) if attempt.after else (Bucket.START_UP, "")


def _start_us(attempt: AttemptHistory) -> int:
    start = attempt.first_step if attempt.first_step is not None else attempt.confirmed
    return OPEN_END_US if start is None else start


def _slow_intervals(pace: SlowPeriod) -> Iterator[BucketInterval]:
    """The excess time at the end of the period. Independent of any window, so no window cuts it differently."""
    if pace.observed > pace.expected > 0 and pace.end > pace.start:
        too_long = round((pace.end - pace.start) * (1 - pace.expected / pace.observed))
        yield BucketInterval(pace.end - too_long, pace.end, Bucket.SLOW, pace.cause)
