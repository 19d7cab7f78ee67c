"""Stacks: read what the ranks of a hanging attempt have answered, before anything is done about it.

Who is eligible   stacks that were asked for and are not closed, the oldest first.
What a turn does  looks at how far the log has grown since; when it grows no more, or the time is over, or the attempt
                  has ended, it reads what came, keeps it with the incident, and says with the verdict what it means.
Failure story     `watch` writes verdict, request and deed in one transaction; `deliver` sends the signal, twice where
                  an answer got lost, and the last answer of each rank counts. Killed anywhere, the next turn looks
                  again; closing is guarded, so nothing is said twice. Nobody waits for this loop for ever: `recover`
                  holds its decision back until `until` and no longer. A log that cannot be read is closed with that
                  reason when the time is over.

A turn looks at the size of one file for each request; what came is read once, at most `MOST_READ` of it.
"""

from __future__ import annotations

from datetime import datetime

from failures import stack_actions
from failures.detect import stacks
from failures.models import StackDump
from jobs.logs import NoLog, Stream, clean
from jobs.models import Deed, DeedKind
from scheduling.loops.rows import one_row

MOST_AT_ONCE = 100
MOST_READ = 8 << 20


def stacks_once(now: datetime) -> int:
    """How many were closed."""
    done = 0
    rows = StackDump.objects.open().select_related("attempt__job__cluster").order_by("pk")
    for dump in rows[:MOST_AT_ONCE]:
        with one_row(dump):
            done += _looked_at(dump, now)
    return done


def _looked_at(dump: StackDump, now: datetime) -> bool:
    late = now >= dump.until or dump.attempt.ended_at is not None
    try:
        log = Stream(dump.attempt.job.cluster.log_root, dump.attempt.log_path)
        if not late and (log.size == dump.log_from or log.size != dump.log_size):
            stack_actions.look(dump, log.size)
            return False
        raw = log.bytes_of(dump.log_from, min(log.size, dump.log_from + MOST_READ))
    except NoLog as nothing:
        return late and _close_empty(dump, str(nothing), now)
    found = stacks.read(text := clean(raw))
    if not found:
        return late and _close_empty(dump, _why_none(dump), now)
    places = stacks.places(found)
    told = stacks.told(places, stacks.world_of(places, dump.attempt.job.gpus))
    return stack_actions.close(dump, text, sum(rank >= 0 for rank in places) or 1, told.sentences, now)


def _close_empty(dump: StackDump, why: str, now: datetime) -> bool:
    return stack_actions.close(dump, "", 0, [f"Its ranks were asked for their stacks. {why}"], now)


def _why_none(dump: StackDump) -> str:
    deed = Deed.objects.filter(attempt=dump.attempt_id, kind=DeedKind.STACKS).order_by("-pk").first()
    if deed is not None and deed.outcome.startswith("refused"):
        return f"The cluster did not pass it on: {deed.outcome}."
    if deed is not None and deed.done_at is None:
        return "The cluster was not reached in time."
    return "None has come."
