"""Curves of a run for charts: distributions of waits and completion times, and usage over time. Pure.

They are small enough to be stored with the figures of the run: a distribution is 101 percentiles, and a series has at
most `MAX_SERIES_POINTS` points. A point of the queue is the largest value of its interval, so that no peak is lost.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jobs.traces.trace import Floats
from scheduling.replay.usage_over_time import UsageSeries

PERCENTILES = tuple(range(101))
MAX_SERIES_POINTS = 200


def run_curves(queue: Floats, jct: Floats, course: UsageSeries, gpus: int) -> dict[str, Any]:
    """The curves as lists of numbers, ready for JSON."""
    return {"queue_s": _percentiles(queue), "jct_s": _percentiles(jct), "usage": _usage(course, gpus)}


def _percentiles(values: Floats) -> list[float]:
    return np.percentile(values, PERCENTILES).round(1).tolist() if len(values) else []


def _usage(course: UsageSeries, gpus: int) -> dict[str, list[float]]:
    """Seconds since the first point, the mean share of held GPUs in percent, and the longest queue."""
    count = len(course.at_s)
    if not count:
        return {"at_s": [], "held_pct": [], "waiting": []}
    width = math.ceil(count / MAX_SERIES_POINTS)
    begins = np.arange(0, count, width)
    sizes = np.diff(np.append(begins, count))
    return {
        "at_s": (course.at_s[begins] - course.at_s[0]).round(0).tolist(),
        "held_pct": (np.add.reduceat(course.held, begins) / sizes / max(1, gpus) * 100).round(2).tolist(),
        "waiting": np.maximum.reduceat(course.waiting, begins).round(0).tolist(),
    }
