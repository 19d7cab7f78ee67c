"""One attempt's life as spells for the ledger: what of its time was work, and what of its work was kept. Pure.

start-up      from the promise to its first completed step (without reports: until the cluster ran it); the same is
              recovery when the attempt before it had failed, under that failure's cause
lost work     after the last save that counts, when an end threw the rest away: any end but COMPLETED, CANCELLED (a
              person had what he wanted) and "still runs"
slow          of a spell above the predicted pace, the part that the prediction would have saved, at its end
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scheduling.ledger.buckets import Bucket, BucketInterval

UsSpan = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class SlowPeriod:
    """A time in which steps took `observed` where `expected` was predicted, in any unit."""

    start: int
    end: int
    observed: float
    expected: float
    cause: str = ""


@dataclass(frozen=True, kw_only=True)
class AttemptHistory:
    """In microseconds since 1970; None: it did not happen yet, or is not known."""

    promised: int
    confirmed: int | None = None
    first_step: int | None = None
    ended: int | None = None
    kept: bool = True  # its end threw nothing away
    saved: int | None = None  # the moment whose state the newest good checkpoint holds
    cause: str = ""  # of its end
    after: str = ""  # the cause of the failure that it recovers from
    stalls: Sequence[UsSpan] = ()
    hangs: Sequence[UsSpan] = ()
    idles: Sequence[UsSpan] = ()
    slows: Sequence[SlowPeriod] = ()


OPEN_END_US = 1 << 62


def bucket_intervals(one: AttemptHistory) -> list[BucketInterval]:
    end = OPEN_END_US if one.ended is None else one.ended
    spells = [BucketInterval(one.promised, min(_start_us(one), end), *_startup_bucket(one))]
    spells += [BucketInterval(low, high, Bucket.CHECKPOINT_STALL) for low, high in one.stalls]
    spells += [BucketInterval(low, high, Bucket.HUNG, one.cause) for low, high in one.hangs]
    spells += [BucketInterval(low, high, Bucket.IDLE) for low, high in one.idles]
    spells += [slow for pace in one.slows for slow in _slow_intervals(pace)]
    if not one.kept and one.ended is not None:
        spells.append(BucketInterval(max(one.promised, one.saved or one.promised), end, Bucket.LOST_WORK, one.cause))
    return spells


def _startup_bucket(one: AttemptHistory) -> tuple[Bucket, str]:
    return (Bucket.RECOVERY, one.after) if one.after else (Bucket.START_UP, "")


def _start_us(one: AttemptHistory) -> int:
    known = one.first_step if one.first_step is not None else one.confirmed
    return OPEN_END_US if known is None else known


def _slow_intervals(pace: SlowPeriod) -> Iterator[BucketInterval]:
    """Placed by its own ends alone, so that no window can cut it differently."""
    if pace.observed > pace.expected > 0 and pace.end > pace.start:
        too_long = round((pace.end - pace.start) * (1 - pace.expected / pace.observed))
        yield BucketInterval(pace.end - too_long, pace.end, Bucket.SLOW, pace.cause)
