"""Replays that decide with the knowledge of a live cluster, so that the starts of both can be compared. Pure.

Reservations rely on time limits and are made again in every turn, run times are predicted from ended jobs, and the
accounts that share are the teams. The trace is brought into the form that a live cluster has: whole seconds, and gangs
of whole nodes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from jobs.traces.trace import EncodedColumn, Floats, Trace
from scheduling.engine.job import EngineJob

VIRTUAL_BEGIN_S = 946_684_800.0  # 2000-01-01: the rows of a virtual cluster must not lie in the future


class StartRecord(NamedTuple):
    """A start: the row of the job in the trace, the time, and the numbers of its nodes."""

    row: int
    at: float
    nodes: tuple[int, ...]


def start_record(job: EngineJob, now: float) -> StartRecord:
    return StartRecord(job.number, now, tuple(sorted(node for node, _ in job.places or ())))


def starts_sha256(starts: Iterable[StartRecord]) -> str:
    """The hash of all starts in order: job, time and nodes of each."""
    lines = (f"{row} {at - VIRTUAL_BEGIN_S:.0f} {' '.join(map(str, nodes))}\n" for row, at, nodes in starts)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def trace_as_live(trace: Trace, gpus_per_node: int) -> Trace:
    """The trace in whole seconds from `VIRTUAL_BEGIN_S`, with at least a second per job. A job of several nodes gets
    whole nodes, because a live cluster allocates the same number of GPUs on each.
    """
    whole_nodes = -(-trace.gpus // gpus_per_node) * gpus_per_node
    return replace(
        trace,
        submit_s=VIRTUAL_BEGIN_S + np.rint(trace.submit_s),
        runtime_s=np.maximum(1.0, np.rint(trace.runtime_s)),
        limit_s=np.ceil(trace.limit_s),
        deadline_s=VIRTUAL_BEGIN_S + np.rint(trace.deadline_s),
        gpus=np.where(trace.gpus > gpus_per_node, whole_nodes, trace.gpus).astype(trace.gpus.dtype),
    )


def time_limits(trace: Trace) -> Floats:
    """The time limit of each job; infinite without one."""
    known = np.isfinite(trace.limit_s) & (trace.limit_s > 0)
    limits: Floats = np.where(known, trace.limit_s, np.inf)
    return limits


def teams(trace: Trace, *, by_pool: bool) -> EncodedColumn:
    """The team of each job: the virtual cluster if the trace has several or quotas name them, else the user."""
    return trace.pools if by_pool or len(np.unique(trace.pools.codes)) > 1 else trace.users
