"""Runs of one trace under several policies, each timed: what the command prints and what the server keeps.

Not pure: it looks at the clock and at the process.
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jobs.traces.trace import Trace
from scheduling.compiled import engine_mode
from scheduling.replay import report
from scheduling.replay.run import PolicyRun, ProgressCallback, ReplaySetting, run_policy


def measure_run(
    history: Trace, policy: str, setting: ReplaySetting, watch: ProgressCallback | None = None
) -> tuple[PolicyRun, dict[str, Any]]:
    """The run, and its report."""
    with without_gc():
        began = time.perf_counter()
        done = run_policy(history, policy, setting, watch)
        told = report.summary(done, wall_s=0, peak_rss_mb=0)
        wall = time.perf_counter() - began
    return done, told | {
        "wall_s": wall,
        "events_per_s": done.events / wall,
        "peak_rss_mb": peak_rss_mb(),
        "engine": engine_mode(),
    }


@contextmanager
def without_gc() -> Iterator[None]:
    """The engine makes no cycles; searching for some costs a third of a long run."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def peak_rss_mb() -> float:
    """Of the whole process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
