"""The simulator's figures:  python bench/simulator.py TRACE [--million] [--only PART,PART] [--policies NAME,NAME]

TRACE is the Philly week that other simulators were measured on (12,751 jobs, 9 to 15 October 2017). Prints our results
next to theirs, our speed next to a bare event loop in the same run, the growth with the number of jobs, and the time of
a live decision; explanations and start estimates are in explanations.py. Times are CPU times, the best of a few runs: a
single thread without waits takes as long on an idle machine; a busy machine still affects the bare loop.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import resource
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.bare_loop import bare_loop
from jobs.core.lifecycle import JobKind
from jobs.traces.files import read_trace
from jobs.traces.trace import trace_from_columns
from scheduling.compiled import engine_mode
from scheduling.engine.cluster import ClusterSnapshot, NodeView, ResourceRequest, RunningJob, WaitingJob
from scheduling.engine.history import SchedulingHistory
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.whatif.replay import acme_trace, report
from scheduling.whatif.replay.run import ReplaySetting, run_policy

PHILLY_SETTING = ReplaySetting(nodes=80)
# policy, placement, preemption cost, source, its mean completion, its mean queueing
PUBLISHED_RESULTS = (
    ("fifo", "consolidate", "none", "HeliosArtifact", 8043.84, 811.75),
    ("sjf", "consolidate", "none", "HeliosArtifact, Lucid", 7692.07, 459.98),
    ("fifo", "count", "none", "Tiresias, AccaSim, CQSim", 7842.9, 610.77),
    ("sjf", "count", "none", "AccaSim", None, 418.05),
    ("easy", "count", "none", "CQSim", 7841.2, 609.127),
    ("fifo-skip", "count", "none", "Alibaba PAI", 7799.02, 566.93),
    ("srtf", "count", "none", "Tiresias", 7278.0, None),
    ("srtf", "consolidate", "helios", "HeliosArtifact", 7315.6, 80.6),
    ("tiresias", "count", "none", "Tiresias", 7342.1, None),
    ("tiresias", "consolidate", "helios", "Lucid", 7400.5, 164.9),
    ("qssf", "consolidate", "none", "HeliosArtifact (unseeded noise)", 8014.5, 782.4),
)
GOAL_JOBS_PER_S = dict.fromkeys(("fifo", "sjf", "qssf", "easy"), 100_000)
GOAL_JOBS_PER_S |= dict.fromkeys(("srtf", "tiresias", "gittins", "themis", "acme"), 20_000)
GROWTH_POLICIES = (*GOAL_JOBS_PER_S, "fifo-skip", "fair", "drf", "conservative")


def best_cpu_time(work, times=3):
    """Return the CPU seconds of the best run, and its result."""
    took, result = math.inf, None
    for _ in range(times):
        gc.collect()
        gc.disable()
        began = time.process_time()
        result = work()
        took = min(took, time.process_time() - began)
        gc.enable()
    return took, result


def replay_summary(history, policy, setting):
    return report.summary(run_policy(history, policy, setting), wall_s=1, peak_rss_mb=0)


def print_published_comparison(history):
    print(f"{'policy':<10}{'placement':<13}{'cost':<8}{'completion s':>13}{'theirs':>10}{'diff %':>8}", end="")
    print(f"{'queue s':>10}{'theirs':>9}{'diff %':>8}{'stops':>7}  source")
    for policy, placement, cost, who, jct, queue in PUBLISHED_RESULTS:
        ours = replay_summary(history, policy, replace(PHILLY_SETTING, placement=placement, preemption_cost=cost))
        print(f"{policy:<10}{placement:<13}{cost:<8}", end="")
        for mine, theirs, wide in ((ours["jct_s"]["mean"], jct, 13), (ours["queue_s"]["mean"], queue, 10)):
            off = f"{(mine / theirs - 1) * 100:+.3f}" if theirs else ""
            print(f"{mine:>{wide},.2f}{theirs or '-':>{wide - 3 if wide == 13 else 9}}{off:>8}", end="")
        print(f"{ours['preemptions']:>7}  {who}")


def jobs_per_second(history, policies):
    """Yield the policy, and the jobs per second of ours and of the bare loop."""
    columns = history.submit_s.tolist(), history.runtime_s.tolist(), history.gpus.tolist()
    for policy in policies:
        bare = ours = math.inf
        for _ in range(5):  # alternating, so that a busy moment affects both
            bare = min(
                bare, best_cpu_time(lambda p=policy: bare_loop(*columns, nodes=80, shortest=p == "sjf"), times=1)[0]
            )
            ours = min(ours, best_cpu_time(lambda p=policy: replay_summary(history, p, PHILLY_SETTING), times=1)[0])
        yield policy, len(history) / ours, len(history) / bare


def print_speed(history, trace, policies):
    """Print the speed; with a compiled engine also that of the interpreted one."""
    print(f"\nWhole run with report, {len(history):,} jobs; the bare loop runs FIFO or SJF for every policy")
    print(f"{engine_mode():<12}{'jobs/s':>10}{'goal':>9}{'bare loop':>11}{'ratio':>7}{'interpreted':>13}{'gain':>6}")
    plain = interpreted_engine_rates(trace, policies) if engine_mode() == "compiled" else {}
    for policy, rate, base in jobs_per_second(history, policies):
        print(f"{policy:<12}{rate:>10,.0f}{GOAL_JOBS_PER_S[policy]:>9,}{base:>11,.0f}{base / rate:>7.2f}", end="")
        if policy in plain:  # relative to its own bare loop, because the machine may have been busier
            before, base_then = plain[policy]
            print(f"{before:>13,.0f}{rate / base * base_then / before:>6.2f}", end="")
        print("" if rate >= GOAL_JOBS_PER_S[policy] else "   MISSED", flush=True)


def interpreted_engine_rates(trace, policies):
    words = [sys.executable, __file__, trace, "--only", "rates", "--policies", ",".join(policies)]
    output = subprocess.run(words, env={**os.environ, "ACME_COMPILED": "0"}, capture_output=True, text=True, check=True)
    return {policy: (rate, base) for policy, rate, base in json.loads(output.stdout)}


def print_growth(sizes, policies):
    site = acme_trace.PUBLISHED_CLUSTERS["seren"]
    setting = ReplaySetting(nodes=site.nodes)
    print(f"\n{engine_mode()}; seren, {site.nodes} nodes; seconds by jobs, and the exponent of the growth")
    print("policy      " + "".join(f"{size:>12,}" for size in sizes) + "   exponent", flush=True)
    traces = [acme_trace.draw_trace(site, "seren", jobs=size, seed=1) for size in sizes]
    for policy in policies:
        took = [best_cpu_time(lambda h=h, p=policy: replay_summary(h, p, setting), times=1)[0] for h in traces]
        power = math.log(took[-1] / took[0]) / math.log(sizes[-1] / sizes[0])
        print(f"{policy:<12}" + "".join(f"{one:>12.2f}" for one in took) + f"{power:>11.2f}", flush=True)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB")


def print_backlog_times(sizes):
    """Measure jobs that all arrive at once: the queue is as long as the trace."""
    print("\nAll arrive within a second, 80 nodes; seconds by pending jobs, and the exponent")
    print("policy    " + "".join(f"{size:>12,}" for size in sizes) + "   exponent")
    for policy in ("fifo", "fifo-skip", "sjf", "easy", "srtf", "tiresias"):
        took = []
        for size in sizes:
            dice = np.random.default_rng(5)
            jobs = {"runtime_s": dice.integers(1, 20_000, size), "gpus": dice.choice([1, 1, 1, 2, 4, 8, 16], size)}
            crowd = trace_from_columns("crowd", submit_s=np.sort(dice.random(size)), **jobs)
            took.append(best_cpu_time(lambda h=crowd, p=policy: replay_summary(h, p, PHILLY_SETTING), times=1)[0])
        power = math.log(took[-1] / took[0]) / math.log(sizes[-1] / sizes[0])
        print(f"{policy:<10}" + "".join(f"{one:>12.2f}" for one in took) + f"{power:>11.2f}")


def print_live_decisions():
    """Measure one decision with 1,250 nodes, 10,000 pending and 2,000 running jobs."""
    dice = np.random.default_rng(2)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    nodes = [
        NodeView(id=n, name=f"n{n}", gpus=8, free_gpus=tuple(range(int(free))), free_cpus=128, free_memory_mb=10**6,
                 gpu_model="a100", leaf=f"l{n // 8}", pod=f"p{n // 32}")
        for n, free in enumerate([0] * 750 + dice.choice([0, 0, 0, 1, 2], 500).tolist())
    ]  # fmt: skip
    sizes = 1, 1, 1, 2, 4, 8, 64, 512
    # One object per distinct request, as in snapshots
    needs = {gpus: ResourceRequest(nodes=1 if gpus < 8 else gpus // 8, gpus=min(gpus, 8), cpus=4) for gpus in sizes}
    waiting = [
        WaitingJob(id=n, name=f"j{n}", team=f"t{n % 20}", kind=JobKind.OTHER, priority=n % 3, submitted_at=now,
                   need=needs[gpus],
                   time_limit=timedelta(minutes=int(dice.integers(5, 5000))))
        for n, gpus in enumerate(dice.choice(sizes, 10_000).tolist())
    ]  # fmt: skip
    running = [
        RunningJob(id=n, name=f"r{n}", team=f"t{n % 20}", kind=JobKind.OTHER, gpus=4, priority=0, started_at=now,
                   time_limit=timedelta(hours=int(dice.integers(1, 99))), places={n % 1250: 4})
        for n in range(10_000, 12_000)
    ]  # fmt: skip
    history = SchedulingHistory(
        usage={f"t{n}": float(dice.integers(1, 10**8)) for n in range(20)},
        attained={job.id: float(dice.integers(0, 10**6)) for job in (*waiting[:2_000], *running)},
        predicted_s={job.id: float(dice.integers(60, 10**6)) for job in waiting},
    )
    picture = ClusterSnapshot(
        now=now, nodes=tuple(nodes), waiting=tuple(waiting), running=tuple(running), history=history
    )
    print("\nOne live decision, 1,250 nodes, 10,000 waiting, 2,000 running; goal 100 ms")
    for name, policy in LIVE_POLICIES.items():
        took, decided = best_cpu_time(lambda p=policy: p(picture))
        print(f"{name:<10}{took * 1000:>8.1f} ms   {len(decided.starts)} starts, {len(decided.waits)} reasons")
    mixed = replace(
        picture,
        waiting=tuple(replace(job, preemptible=job.id % 4 == 0) for job in waiting),
        running=tuple(replace(job, preemptible=job.id % 3 == 0) for job in running),
    )
    took, decided = best_cpu_time(lambda: LIVE_POLICIES["acme"](mixed))
    print(f"acme{took * 1000:>14.1f} ms   {len(decided.stops)} borrowers of 667 are preempted")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--million", action="store_true", help="measure the growth up to a million jobs; takes minutes")
    parser.add_argument("--only", default="answers,speed,live,backlog,growth", help="parts to run, comma-separated")
    parser.add_argument(
        "--policies", default=",".join(GROWTH_POLICIES), help="policies for speed and growth, comma-separated"
    )
    options = parser.parse_args()
    policies = options.policies.split(",")
    if unknown := [policy for policy in policies if policy not in GROWTH_POLICIES]:
        parser.error(f"--policies: {unknown[0]!r} is not one of {', '.join(GROWTH_POLICIES)}")
    with_goal = [policy for policy in policies if policy in GOAL_JOBS_PER_S]
    week = read_trace(options.trace)
    sizes = (10_000, 30_000, 100_000, 300_000, 1_000_000) if options.million else (10_000, 30_000, 100_000)
    parts = {
        "answers": lambda: print_published_comparison(week),
        "speed": lambda: print_speed(week, options.trace, with_goal),
        "rates": lambda: print(json.dumps(list(jobs_per_second(week, with_goal)))),
        "live": print_live_decisions,
        "backlog": lambda: print_backlog_times((3_000, 10_000, 30_000, 100_000)),
        "growth": lambda: print_growth(sizes, policies),
    }
    for name in options.only.split(","):
        parts[name]()
