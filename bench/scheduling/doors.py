"""Compare live decisions with a replay:  python bench/scheduling/doors.py TRACE [--days N] [--policies NAME,NAME]
                                       python bench/scheduling/doors.py acme:seren [--jobs N]

Drives a trace through both doors of `manage.py simulate`, for every policy that live clusters offer: through the rows,
snapshots and turns of a live cluster in virtual time, and through the replay. Prints the hash over job, time and nodes
of all starts of both, and the seconds that each took. Exits with status 1 if they differ, after the first difference.
TRACE is the Philly week of bench/simulator.py, or any other; `acme:seren` draws jobs with users and teams, which the
week lacks. The live door writes rows and decides after every event, so a job takes some 0.2 s, half of it CPU time of
this process; `--days` shortens the trace.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.loops import start_database
from jobs.traces.files import read_trace
from jobs.traces.trace import Trace
from scheduling.compiled import engine_mode
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.whatif.replay.acme_trace import PUBLISHED_CLUSTERS, draw_trace
from scheduling.whatif.replay.as_live import StartRecord, starts_sha256, trace_as_live
from scheduling.whatif.replay.run import ReplaySetting, replayable_rows, run_policy

DAY_S = 86_400.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--days", type=float, default=7.0, help="only the jobs of the first days")
    parser.add_argument("--jobs", type=int, default=600, help="number of drawn jobs of acme:seren or acme:kalos")
    parser.add_argument("--nodes", type=int, default=80)
    parser.add_argument("--policies", default=",".join(LIVE_POLICIES))
    options = parser.parse_args()
    setting = ReplaySetting(nodes=options.nodes, best_effort=(), as_live=True)
    history = first_days(read_jobs(options.trace, options.jobs), options.days)
    trace = replayable_rows(trace_as_live(history, setting.gpus_per_node), setting)
    print(f"{history.source}: {len(trace):,} jobs on {options.nodes} nodes of 8 GPUs; {machine()}", flush=True)
    with ExitStack() as stack:
        start_database(stack)
        same = [compare_doors(trace, policy, setting) for policy in options.policies.split(",")]
    return 0 if all(same) else 1


def read_jobs(trace: str, jobs: int) -> Trace:
    site = trace.removeprefix("acme:")
    return read_trace(trace) if site == trace else draw_trace(PUBLISHED_CLUSTERS[site], site, jobs=jobs)


def first_days(trace: Trace, days: float) -> Trace:
    return trace.rows((trace.submit_s - trace.submit_s[0] < days * DAY_S).nonzero()[0])


def machine() -> str:
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}, {engine_mode()} engine"


def compare_doors(trace: Trace, policy: str, setting: ReplaySetting) -> bool:
    from tests.scheduling.whatif.replay.virtual_time import starts_on_virtual_cluster

    replayed = time_door("replay", policy, lambda: run_policy(trace, policy, setting).starts)
    live = time_door("live", policy, lambda: starts_on_virtual_cluster(trace, policy, setting))
    for number, (ours, theirs) in enumerate(zip_longest(live, replayed)):
        if ours != theirs:
            print(f"  start {number} differs: live {ours}, replay {theirs}", flush=True)
            return False
    return True


def time_door(door: str, policy: str, work: Callable[[], Sequence[StartRecord]]) -> Sequence[StartRecord]:
    began, spent = time.perf_counter(), time.process_time()
    starts = work()
    took, cpu = time.perf_counter() - began, time.process_time() - spent
    figures: dict[str, Any] = {"starts": f"{len(starts):,}", "seconds": f"{took:.1f}", "our CPU": f"{cpu:.1f}"}
    figures["load"] = f"{os.getloadavg()[0]:.1f}"
    shown = ", ".join(f"{name} {figure}" for name, figure in figures.items())
    print(f"{policy:12} {door:6} {starts_sha256(starts)}  {shown}", flush=True)
    return starts


if __name__ == "__main__":
    sys.exit(main())
