"""Stacks: reads the stacks of a hanging attempt from its log before recovery acts.

Eligible rows     Stack dumps that were requested and are not closed, oldest first.
What a turn does  Checks how far the log has grown. When it stops growing, the time is over or the attempt has ended, it
                  reads the stacks, stores them with the incident, and adds a summary to the diagnosis.
Failure story     `watch` stores diagnosis, request and cluster command in one transaction. The signal may be sent twice
                  if a response was lost; the last stack of each rank counts. After a kill, the next turn checks again,
                  and a dump is closed only once. Recovery waits until `until` at most, even if this loop does not run.
                  A log that cannot be read is closed with the reason when the time is over.

A turn checks the size of one file per request. The stacks are read once, at most MAX_READ_BYTES.
"""

from __future__ import annotations

from datetime import datetime

from failures.actions import stacks as stack_actions
from failures.detection import stacks
from failures.models import StackDump
from jobs.actions.one_row import skip_row_on_error
from jobs.logs.job_log import LogReadError, LogStream, decode_log_text
from jobs.models import ClusterCommand, ClusterCommandKind

MAX_DUMPS = 100
MAX_READ_BYTES = 8 << 20


def stacks_once(now: datetime) -> int:
    """Read the requested stacks. Returns how many dumps were closed."""
    done = 0
    rows = StackDump.objects.open().select_related("attempt__job__cluster").order_by("pk")
    for dump in rows[:MAX_DUMPS]:
        with skip_row_on_error(dump):
            done += _check_dump(dump, now)
    return done


def _check_dump(dump: StackDump, now: datetime) -> bool:
    late = now >= dump.until or dump.attempt.ended_at is not None
    try:
        log = LogStream(dump.attempt.log_source)
        if not late and (log.size == dump.log_from or log.size != dump.log_size):
            stack_actions.update_log_size(dump, log.size)
            return False
        raw = log.read_range(dump.log_from, min(log.size, dump.log_from + MAX_READ_BYTES))
    except LogReadError as error:
        return late and _close_empty(dump, str(error), now)
    stack_list = stacks.parse_stacks(text := decode_log_text(raw))
    if not stack_list:
        return late and _close_empty(dump, _missing_stacks_reason(dump), now)
    positions = stacks.rank_positions(stack_list)
    summary = stacks.summarize_stacks(positions, stacks.expected_world_size(positions, dump.attempt.job.gpus))
    return stack_actions.close_dump(dump, text, sum(rank >= 0 for rank in positions) or 1, summary.sentences, now)


def _close_empty(dump: StackDump, why: str, now: datetime) -> bool:
    return stack_actions.close_dump(dump, "", 0, [f"The stacks of the ranks were requested. {why}"], now)


def _missing_stacks_reason(dump: StackDump) -> str:
    command = (
        ClusterCommand.objects.filter(attempt=dump.attempt_id, kind=ClusterCommandKind.STACKS).order_by("-pk").first()
    )
    if command is not None and command.outcome.startswith("refused"):
        return f"The cluster rejected the signal: {command.outcome}."
    if command is not None and command.done_at is None:
        return "The cluster was not reached in time."
    return "None arrived in time."
