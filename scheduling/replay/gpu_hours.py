"""Where the GPU-hours of a replay went: one bucket each, and the buckets sum to all GPUs from first to last. Pure.

The buckets are those of the ledger of a real cluster; these are the ones that a replay knows:

productive        work that was needed, once
checkpoint_stall  jobs that stood still while they saved
recovery          coming back after a fault, and what a preemption costs
lost_work         done, but not saved before a node broke; and all that never came to an end
down              nodes in repair
fragmented        free while jobs waited, on nodes where typical jobs cannot use it
reserved_idle     free while jobs waited, though typical jobs could use it: the order keeps it for somebody
free              and nobody waited

Free hours are divided by what the course of the replay shows at even moments; everything else is exact.
"""

from __future__ import annotations

import math

import numpy as np

from scheduling.ledger.buckets import Bucket
from scheduling.replay.run import PolicyRun


def gpu_hours(run: PolicyRun, makespan_s: float) -> dict[str, float]:
    gpus, ended = run.trace.gpus.astype(np.float64), np.isfinite(run.ended_s)
    held = float((gpus * run.held_s).sum())
    productive = float((gpus * run.trace.runtime_s)[ended].sum())
    stall = float((gpus * run.stall_s)[ended].sum())
    lost = float((gpus * np.where(ended, run.lost_s, run.held_s)).sum())
    down = _down_seconds(run, makespan_s)
    fragmented, reserved = _free_fractions(run)
    free = run.setting.gpus * makespan_s - held - down
    seconds = {
        Bucket.PRODUCTIVE: productive,
        Bucket.CHECKPOINT_STALL: stall,
        Bucket.RECOVERY: held - productive - stall - lost,
        Bucket.LOST_WORK: lost,
        Bucket.DOWN: down,
        Bucket.FRAGMENTED: free * fragmented,
        Bucket.RESERVED_IDLE: free * reserved,
    }
    hours = {bucket.value: value / 3600 for bucket, value in seconds.items()}
    return hours | {Bucket.FREE.value: run.setting.gpus * makespan_s / 3600 - math.fsum(hours.values())}


def _down_seconds(run: PolicyRun, makespan_s: float) -> float:
    """Nobody runs on a node in repair, so nothing is counted twice; but outages that are told may overlap."""
    first = float(run.trace.submit_s[0]) if len(run.trace) else 0.0
    clipped = (
        min(outage.until, first + makespan_s) - max(outage.at, first)
        for outage in run.outages
        if outage.at < first + makespan_s
    )
    return math.fsum(clipped) * run.setting.gpus_per_node


def _free_fractions(run: PolicyRun) -> tuple[float, float]:
    """Parts of the free hours in which somebody waited: useless to typical jobs, and not."""
    course = run.course
    if not (free := float(course.free.sum())):
        return 0.0, 0.0
    busy = course.waiting > 0
    fragmented = float(course.fragmented[busy].sum()) / free
    return fragmented, float(course.free[busy].sum()) / free - fragmented


def fragmentation(run: PolicyRun) -> float:
    """Of the GPUs that are free, the part that typical jobs cannot use."""
    free = float(run.course.free.sum())
    return float(run.course.fragmented.sum()) / free if free else 0.0
