"""What Acme itself adds to the log of a job: why pods wait, how they ended, what the cluster says about them. Pure.

These lines have no rank in front and begin with `acme:`, or look as `kubectl get events` prints Events. They are what
the cluster would have written to the log of a Slurm job, so diagnosis needs no other source. The last line of a
complete log has the state of the job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jobs.core.lifecycle import FINAL_STATES, State

from ..ends import PodEnd
from ..fields import mapping_at, text_at

LAST_LINE = re.compile(r"acme: end of the log of [0-9]{1,6} pods?: ([A-Z_]{1,20})")
MAX_EVENT_LENGTH = 1000


def waiting_line(pod: str, why: str) -> str:
    return f"acme: pod {pod} waits: {why}"


def ended_line(pod: str, node: str, end: PodEnd) -> str:
    """`acme: pod a-1-0 on node n1 ended: OOMKilled, exit code 137`"""
    where = f" on node {node}" if node else ""
    return f"acme: pod {pod}{where} ended: {', '.join(_end_parts(end))}"


def _end_parts(end: PodEnd) -> list[str]:
    parts = [end.reason] if end.reason else []
    if end.exit_code is not None and (end.exit_code or not parts):
        parts.append("succeeded" if end.state == State.COMPLETED else f"exit code {end.exit_code}")
    if end.signal:
        parts.append(f"signal {end.signal}")
    return parts or [end.state.value]


def incomplete_line(pod: str, why: str) -> str:
    return f"acme: the log of pod {pod} is not complete: {why}"


def gap_line(pod: str) -> str:
    return f"acme: the kubelet began another log file of pod {pod}; lines before the next one may be missing"


def event_line(event: Mapping[str, Any]) -> str:
    """`Warning  Evicted  pod/a-1-0  The node was low on resource: memory.`"""
    about = mapping_at(event, "involvedObject")
    kind, name = text_at(about, "kind", largest=63).lower(), text_at(about, "name", largest=253)
    message = text_at(event, "message", largest=MAX_EVENT_LENGTH)
    return f"{text_at(event, 'type')}  {text_at(event, 'reason')}  {kind}/{name}  {message}"


def last_line(pods: int, state: State) -> str:
    return f"acme: end of the log of {pods} {'pod' if pods == 1 else 'pods'}: {state.value}"


def state_in_log(tail: str) -> State | None:
    """The state in which the cluster ended the job; None if its log is not complete."""
    match = LAST_LINE.fullmatch(tail.rstrip("\n").rpartition("\n")[2])
    return State(match[1]) if match and match[1] in FINAL_STATES else None
