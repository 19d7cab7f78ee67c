"""Live qssf on jobs of Seren:  python bench/scheduling/learned_times.py [--jobs N] [--nodes N] [--seed N]

Draws jobs from the distributions of the study, with users and names, and schedules them under qssf on a live cluster in
virtual time: predictions come from the rows that the live loop learns from jobs as they end. The goal is a mean
completion time within 10 % of a replay with the same predictions. Also printed: replays that know nothing
(fifo) and that know the run times (sjf). A strict order waits for wide jobs, so `--max-gpus` limits their width.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.loops import start_database
from bench.scheduling.doors import machine
from jobs.traces.trace import Trace
from scheduling.whatif.replay.acme_trace import PUBLISHED_CLUSTERS, draw_trace
from scheduling.whatif.replay.as_live import StartRecord, starts_sha256, trace_as_live
from scheduling.whatif.replay.run import ReplaySetting, replayable_rows, run_policy

GOAL_RATIO = 1.10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--max-gpus", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    setting = ReplaySetting(nodes=options.nodes, best_effort=(), as_live=True)
    drawn = draw_trace(PUBLISHED_CLUSTERS["seren"], "seren", jobs=options.jobs, seed=options.seed)
    narrow = drawn.rows((drawn.gpus <= options.max_gpus).nonzero()[0])
    trace = replayable_rows(trace_as_live(narrow, setting.gpus_per_node), setting)
    print(
        f"{len(trace):,} jobs of Seren on {options.nodes} nodes of 8 GPUs, seed {options.seed}; {machine()}", flush=True
    )
    replayed = completion_s(trace, run_policy(trace, "qssf", setting).starts)
    print(f"replay, same predictions     {replayed:12,.1f} s", flush=True)
    for name, policy in (("replay of fifo", "fifo"), ("replay of sjf, times known", "sjf")):
        run = run_policy(trace, policy, replace(setting, as_live=False))
        print(f"{name:28} {(run.ended_s - run.trace.submit_s).mean():12,.1f} s", flush=True)
    live, took_s, cpu_s = live_completion_s(trace, setting)
    print(f"live, learned by the loop    {live:12,.1f} s", end="")
    print(f"   ({took_s:.0f} s, our CPU {cpu_s:.0f} s, load {os.getloadavg()[0]:.1f})")
    print(f"live / replay {live / replayed:.4f}; goal at most {GOAL_RATIO} and at least {1 / GOAL_RATIO:.2f}")
    return 0 if 1 / GOAL_RATIO <= live / replayed <= GOAL_RATIO else 1


def completion_s(trace: Trace, starts: Sequence[StartRecord]) -> float:
    """The mean time from submission to end. qssf does not preempt, so each job starts once."""
    assert len(starts) == len(trace), "not every job has started once"
    print(f"starts {starts_sha256(starts)}")
    ends = (at + float(trace.runtime_s[row]) - float(trace.submit_s[row]) for row, at, _ in starts)
    return sum(ends) / len(trace)


def live_completion_s(trace: Trace, setting: ReplaySetting) -> tuple[float, float, float]:
    """The mean completion time on a live cluster, and the seconds and CPU seconds that the run took."""
    with ExitStack() as stack:
        start_database(stack)
        from tests.scheduling.whatif.replay.virtual_time import starts_on_virtual_cluster

        began, spent = time.perf_counter(), time.process_time()
        starts = starts_on_virtual_cluster(trace, "qssf", setting)
        return completion_s(trace, starts), time.perf_counter() - began, time.process_time() - spent


if __name__ == "__main__":
    sys.exit(main())
