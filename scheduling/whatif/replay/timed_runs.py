"""Run one trace under several policies and time each run, for the command line and the server.

Not pure: reads the clock and process statistics.
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jobs.traces.trace import Trace
from scheduling.compiled import engine_mode
from scheduling.whatif.replay import report
from scheduling.whatif.replay.power.report import power_figures
from scheduling.whatif.replay.run import PolicyRun, ProgressCallback, ReplaySetting, run_policy


def measure_run(
    history: Trace, policy: str, setting: ReplaySetting, on_progress: ProgressCallback | None = None
) -> tuple[PolicyRun, dict[str, Any]]:
    """The run and its report, with wall time and memory. The figures of power are not part of the wall time."""
    with without_gc():
        began = time.perf_counter()
        run = run_policy(history, policy, setting, on_progress)
        summary = report.summary(run, wall_s=0, peak_rss_mb=0)
        wall = time.perf_counter() - began
    return run, summary | {
        "wall_s": wall,
        "events_per_s": run.events / wall,
        "peak_rss_mb": peak_rss_mb(),
        "engine": engine_mode(),
        **({"power": power_figures(run, _progress_after(history, on_progress))} if setting.power else {}),
    }


def _progress_after(history: Trace, on_progress: ProgressCallback | None) -> Callable[[], None]:
    """Reports that all jobs were submitted, so that whoever watches the run knows that it is alive."""
    return lambda: on_progress(len(history)) if on_progress else None


@contextmanager
def without_gc() -> Iterator[None]:
    """Disable garbage collection. The engine creates no cycles, and searching for them takes a third of a long run."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def peak_rss_mb() -> float:
    """The peak memory of the whole process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
