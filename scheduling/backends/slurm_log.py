"""What Slurm itself writes to the log of a job. Pure."""

from __future__ import annotations

import re

from jobs.core.lifecycle import State

MAX_LINES = 200

# slurmstepd: error: *** JOB 123 ON node-1 CANCELLED AT 2026-11-23T03:10:00 DUE TO TIME LIMIT ***
CANCELLED_LINE = re.compile(
    r"\*\*\* JOB [0-9]{1,12} ON [^ ]{1,200} CANCELLED AT [^ ]{1,40}( DUE TO [A-Z ]{1,40})? \*\*\*"
)
STATE_OF_CAUSE = {
    "TIME LIMIT": State.TIMEOUT,
    "PREEMPTION": State.PREEMPTED,
    "NODE FAILURE": State.NODE_FAIL,
    "": State.CANCELLED,
}


def state_in_log(tail: str) -> State | None:
    """The state with which Slurm ended the job, from the last message of slurmstepd; None if there is none."""
    state = None
    for line in tail.splitlines()[-MAX_LINES:]:
        if match := CANCELLED_LINE.search(line):
            state = STATE_OF_CAUSE.get((match[1] or "").removeprefix(" DUE TO "), State.CANCELLED)
    return state
