"""GPU-hours of a replay by bucket. The buckets add up to all GPUs from the first submission to the last end. Pure.

The buckets are those of the ledger; a replay knows these:

productive        work that was needed, counted once
checkpoint_stall  jobs that paused while saving
recovery          restarting after a fault, and the cost of preemptions
lost_work         work not saved before a node failed, and all work of jobs that never ended
down              nodes in repair
fragmented        free while jobs waited, on nodes where typical jobs cannot use it
reserved_idle     free while jobs waited, although typical jobs could use it: kept free by the order
free              free while no job waited

Free hours are divided by samples at regular times; everything else is exact. While jobs share GPUs, each is charged an
equal part of them, and that part is productive, however fast the job runs.
"""

from __future__ import annotations

import math

import numpy as np

from scheduling.ledger.rules.buckets import Bucket
from scheduling.whatif.replay.run import PolicyRun


def gpu_hours(run: PolicyRun, makespan_s: float) -> dict[str, float]:
    """GPU-hours by bucket name."""
    gpus, ended = run.trace.gpus.astype(np.float64), np.isfinite(run.ended_s)
    held_s = held_gpu_seconds(run)
    packed_s = run.packed.slowed_s - run.packed.uncharged_s if run.packed else 0.0
    productive = float((gpus * (run.trace.runtime_s + packed_s))[ended].sum())
    stall_s = float((gpus * run.stall_s)[ended].sum())
    lost_s = float((gpus * np.where(ended, run.lost_s, run.held_s)).sum())
    down = _down_seconds(run, makespan_s)
    fragmented, reserved = _free_fractions(run)
    free = run.setting.gpus * makespan_s - held_s - down
    seconds = {
        Bucket.PRODUCTIVE: productive,
        Bucket.CHECKPOINT_STALL: stall_s,
        Bucket.RECOVERY: held_s - productive - stall_s - lost_s,
        Bucket.LOST_WORK: lost_s,
        Bucket.DOWN: down,
        Bucket.FRAGMENTED: free * fragmented,
        Bucket.RESERVED_IDLE: free * reserved,
    }
    hours = {bucket.value: value / 3600 for bucket, value in seconds.items()}
    return hours | {Bucket.FREE.value: run.setting.gpus * makespan_s / 3600 - math.fsum(hours.values())}


def held_gpu_seconds(run: PolicyRun) -> float:
    """GPU-seconds during which GPUs were held, each counted once."""
    charged_s = run.held_s - run.packed.uncharged_s if run.packed else run.held_s
    return float((run.trace.gpus * charged_s).sum())


def _down_seconds(run: PolicyRun, makespan_s: float) -> float:
    """GPU-seconds in repair. No job runs on a node in repair, but given outages of a node may overlap."""
    first = float(run.trace.submit_s[0]) if len(run.trace) else 0.0
    clipped = (
        min(outage.until, first + makespan_s) - max(outage.at, first)
        for outage in run.outages
        if outage.at < first + makespan_s
    )
    return math.fsum(clipped) * run.setting.gpus_per_node


def _free_fractions(run: PolicyRun) -> tuple[float, float]:
    """Fractions of the free hours while jobs waited: unusable for typical jobs, and usable."""
    course = run.course
    if not (free := float(course.free.sum())):
        return 0.0, 0.0
    busy = course.waiting > 0
    fragmented = float(course.fragmented[busy].sum()) / free
    return fragmented, float(course.free[busy].sum()) / free - fragmented


def fragmentation(run: PolicyRun) -> float:
    """The fraction of free GPUs that typical jobs cannot use."""
    free = float(run.course.free.sum())
    return float(run.course.fragmented.sum()) / free if free else 0.0
