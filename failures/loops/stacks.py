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

from failures.actions import stacks as stack_actions
from failures.detection import stacks
from failures.models import StackDump
from jobs.actions.one_row import skip_row_on_error
from jobs.logs.job_log import LogReadError, LogStream, decode_log_text
from jobs.models import ClusterCommandKind, Deed

MAX_DUMPS = 100
MAX_READ_BYTES = 8 << 20


def stacks_once(now: datetime) -> int:
    """How many were closed."""
    done = 0
    rows = StackDump.objects.open().select_related("attempt__job__cluster").order_by("pk")
    for dump in rows[:MAX_DUMPS]:
        with skip_row_on_error(dump):
            done += _check_dump(dump, now)
    return done


def _check_dump(dump: StackDump, now: datetime) -> bool:
    late = now >= dump.until or dump.attempt.ended_at is not None
    try:
        log = LogStream(dump.attempt.job.cluster.log_root, dump.attempt.log_path)
        if not late and (log.size == dump.log_from or log.size != dump.log_size):
            stack_actions.update_log_size(dump, log.size)
            return False
        raw = log.read_range(dump.log_from, min(log.size, dump.log_from + MAX_READ_BYTES))
    except LogReadError as nothing:
        return late and _close_empty(dump, str(nothing), now)
    found = stacks.parse_stacks(text := decode_log_text(raw))
    if not found:
        return late and _close_empty(dump, _missing_stacks_reason(dump), now)
    places = stacks.rank_positions(found)
    told = stacks.summarize_stacks(places, stacks.expected_world_size(places, dump.attempt.job.gpus))
    return stack_actions.close_dump(dump, text, sum(rank >= 0 for rank in places) or 1, told.sentences, now)


def _close_empty(dump: StackDump, why: str, now: datetime) -> bool:
    return stack_actions.close_dump(dump, "", 0, [f"Its ranks were asked for their stacks. {why}"], now)


def _missing_stacks_reason(dump: StackDump) -> str:
    deed = Deed.objects.filter(attempt=dump.attempt_id, kind=ClusterCommandKind.STACKS).order_by("-pk").first()
    if deed is not None and deed.outcome.startswith("refused"):
        return f"The cluster did not pass it on: {deed.outcome}."
    if deed is not None and deed.done_at is None:
        return "The cluster was not reached in time."
    return "None has come."
