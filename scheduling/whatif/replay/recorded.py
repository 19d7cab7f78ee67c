"""What really happened to the jobs of a trace, as a run that `report` can summarize beside replays. Pure.

A replay starts each job once, for the recorded time of its last attempt, on nodes that are empty at first. The record
also contains node failures, drains, holds and changed settings. Figures that depend on facts which the record does not
hold are left out: how usable the free GPUs were, node failures, and the GPU-hours by bucket, which the ledger computes.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jobs.traces.trace import Floats, Ints, Trace
from scheduling.whatif.replay import report
from scheduling.whatif.replay.run import PolicyRun, ReplaySetting
from scheduling.whatif.replay.usage_over_time import GRID_SAMPLES, UsageSeries

RECORDED_NAME = "as it really was"


@dataclass(frozen=True, kw_only=True)
class RecordedAttempts:
    """Attempts as columns. Times are in the seconds of the trace."""

    job: Ints  # row in the trace
    start_s: Floats
    end_s: Floats
    preempted: npt.NDArray[np.bool_]

    def of_jobs(self, rows: npt.NDArray[np.intp], jobs: int) -> RecordedAttempts:
        """The attempts of these rows of the trace, renumbered. `jobs`: length of the whole trace."""
        number = np.full(jobs, -1, dtype=np.int32)
        number[rows] = np.arange(len(rows), dtype=np.int32)
        kept = number[self.job] >= 0
        return RecordedAttempts(
            job=number[self.job][kept],
            start_s=self.start_s[kept],
            end_s=self.end_s[kept],
            preempted=self.preempted[kept],
        )


def attempts_from_queue_times(trace: Trace) -> RecordedAttempts | None:
    """One attempt per job, from the waits that the trace contains; None if it does not contain all of them."""
    if not len(trace) or not np.isfinite(trace.queue_s).all():
        return None
    start = trace.submit_s + trace.queue_s
    return RecordedAttempts(
        job=np.arange(len(trace), dtype=np.int32),
        start_s=start,
        end_s=start + trace.runtime_s,
        preempted=np.zeros(len(trace), dtype=np.bool_),
    )


def recorded_run(
    trace: Trace, attempts: RecordedAttempts, setting: ReplaySetting, replayed: Container[str]
) -> PolicyRun:
    """The recorded outcomes of the jobs that were replayed, so that both concern the same jobs. `setting`: the cluster
    as it is, without the changes of a request. `replayed` has the ids of the jobs.
    """
    rows = np.flatnonzero(np.fromiter((one in replayed for one in trace.ids), dtype=np.bool_, count=len(trace)))
    attempts, trace = attempts.of_jobs(rows, len(trace)), trace.rows(rows)
    count = len(trace)
    started, ended = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(started, attempts.job, attempts.start_s)
    np.maximum.at(ended, attempts.job, attempts.end_s)
    ended[np.isinf(ended)] = np.inf
    held = np.bincount(attempts.job, weights=attempts.end_s - attempts.start_s, minlength=count)
    times = np.bincount(attempts.job, minlength=count)
    preempted = np.bincount(attempts.job, weights=attempts.preempted, minlength=count).astype(np.int32)
    other_stops = np.maximum(0, times - 1 - preempted).astype(np.int32)
    return PolicyRun(
        policy=RECORDED_NAME,
        setting=setting,
        trace=trace,
        started_s=started,
        ended_s=ended,
        # Clocks of cluster and server differ by less than a second
        held_s=np.minimum(held, np.where(np.isfinite(ended), ended - trace.submit_s, np.inf)),
        lost_s=np.zeros(count),
        stall_s=np.zeros(count),
        stops=preempted + other_stops,
        faults=other_stops,
        outages=(),
        course=_usage(trace, attempts, ended, setting.gpus),
        events=0,
    )


def recorded_summary(run: PolicyRun) -> dict[str, Any]:
    """The report of a recorded run. Figures that it cannot contain are None or missing."""
    unknown = {"fragmentation": None, "gpu_hours": {}, "faults": {"nodes": None, "jobs": None}}
    return report.summary(run, wall_s=0.0, peak_rss_mb=0.0) | unknown


def _usage(trace: Trace, attempts: RecordedAttempts, ended: Floats, gpus: int) -> UsageSeries:
    """GPUs held and waiting jobs from the first submission to the last end, at regular times."""
    finite = ended[np.isfinite(ended)]
    if not len(finite):
        empty = np.zeros(0)
        return UsageSeries(at_s=empty, held=empty, free=empty, fragmented=empty, waiting=empty)
    at = np.linspace(float(trace.submit_s[0]), float(finite.max()), GRID_SAMPLES)
    wide = trace.gpus[attempts.job].astype(np.float64)
    ones = np.ones(len(attempts.job))
    held = _sum_until(attempts.start_s, wide, at) - _sum_until(attempts.end_s, wide, at)
    running = _sum_until(attempts.start_s, ones, at) - _sum_until(attempts.end_s, ones, at)
    present = _sum_until(trace.submit_s, np.ones(len(trace)), at) - _sum_until(finite, np.ones(len(finite)), at)
    return UsageSeries(
        at_s=at,
        held=held,
        free=np.maximum(0.0, gpus - held),
        fragmented=np.zeros(len(at)),
        waiting=np.maximum(0.0, present - running),
    )


def _sum_until(times: Floats, weights: Floats, at: Floats) -> Floats:
    """For each time in `at`, the sum of the weights of all earlier times."""
    order = np.argsort(times, kind="stable")
    sums = np.concatenate(([0.0], np.cumsum(weights[order])))
    return sums[np.searchsorted(times[order], at, side="right")]
