"""The cost of reasons and start estimates:  python bench/explanations.py [--policies NAME,…] [--json FILE]

1,250 nodes, 10,000 pending and 2,000 running jobs, without quotas and with one for each of 20 teams (that no team
fills). For each policy of live clusters: one turn of the engine alone, the same with ranked blockers for all jobs, the
whole explanation of one job (holders, and the smallest change, tried), and start estimates for all jobs. Goals: 100 ms
for a turn, 1 s for estimates. CPU seconds of this process are shown next to wall seconds; on a busy machine they
differ. Start estimates with conservative backfilling would take minutes and are omitted (`-`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from jobs.core.lifecycle import JobKind
from scheduling.engine.cluster import ClusterSnapshot, NodeView, QuotaView, ResourceRequest, RunningJob, WaitingJob
from scheduling.engine.live import engine_after_turn, turn_decisions
from scheduling.engine.policies import LIVE_POLICIES, POLICY_RULES
from scheduling.engine.why import explain_wait
from scheduling.whatif.replay.start_estimates import start_estimates
from scheduling.whatif.replay.timed_runs import without_gc

TEAM_COUNT = 20
SLOW_ESTIMATE_POLICIES = ("conservative",)  # start estimates with these take minutes


def busy_cluster_snapshot(*, quotas: bool) -> ClusterSnapshot:
    dice = np.random.default_rng(2)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    frees = [0] * 750 + dice.choice([0, 0, 0, 1, 2], 500).tolist()
    nodes = [
        NodeView(id=n, name=f"n{n}", gpus=8, free_gpus=tuple(range(int(free))), free_cpus=128, free_memory_mb=10**6,
                 gpu_model="a100", leaf=f"l{n // 8}", pod=f"p{n // 32}")
        for n, free in enumerate(frees)
    ]  # fmt: skip
    sizes = 1, 1, 1, 2, 4, 8, 64, 512
    # One object per distinct request, as in snapshots
    needs = {gpus: ResourceRequest(nodes=1 if gpus < 8 else gpus // 8, gpus=min(gpus, 8), cpus=4) for gpus in sizes}
    waiting = [
        WaitingJob(id=n, name=f"j{n}", team=f"t{n % TEAM_COUNT}", kind=JobKind.OTHER, priority=n % 3, submitted_at=now,
                   need=needs[gpus],
                   time_limit=timedelta(minutes=int(dice.integers(5, 5000))))
        for n, gpus in enumerate(dice.choice(sizes, 10_000).tolist())
    ]  # fmt: skip
    running = [
        RunningJob(id=n, name=f"r{n}", team=f"t{n % TEAM_COUNT}", kind=JobKind.OTHER, gpus=4, priority=0,
                   started_at=now, time_limit=timedelta(hours=int(dice.integers(1, 99))), places={n % 1250: 4})
        for n in range(10_000, 12_000)
    ]  # fmt: skip
    limits = tuple(QuotaView(team=f"t{n}", kind=None, gpus=10_000) for n in range(TEAM_COUNT)) if quotas else ()
    return ClusterSnapshot(now=now, nodes=tuple(nodes), waiting=tuple(waiting), running=tuple(running), quotas=limits)


def best_wall_and_cpu_time(work, times):
    """Return wall and CPU seconds of the best run, and its result. Garbage collection is off: the estimating loop also
    disables it, and the deciding one rarely triggers it (`acmeweb.startup`)."""
    took, result = (float("inf"), float("inf")), None
    for _ in range(times):
        with without_gc():
            wall, cpu = time.perf_counter(), time.process_time()
            result = work()
            took = min(took, (time.perf_counter() - wall, time.process_time() - cpu))
    return took, result


def measure_policy(policy: str, picture: ClusterSnapshot, times: int) -> dict[str, object]:
    rules = POLICY_RULES[policy]
    engine, _ = best_wall_and_cpu_time(lambda: engine_after_turn(picture, rules()), times)
    turn, decisions = best_wall_and_cpu_time(lambda: turn_decisions(picture, rules()), times)
    last = decisions.waits[-1].job_id
    one, explanation = best_wall_and_cpu_time(lambda: explain_wait(picture, rules, last, lambda team: True), 1)
    forecast, estimates = None, {}
    if policy not in SLOW_ESTIMATE_POLICIES:
        forecast, estimates = best_wall_and_cpu_time(lambda: start_estimates(picture, rules), max(1, times - 1))
    return {
        "policy": policy,
        "quotas": len(picture.quotas),
        "engine_s": engine,
        "turn_s": turn,
        "telling_ratio": turn[1] / engine[1],
        "one_job_s": one,
        "changes": len(explanation.changes),
        "estimates_s": forecast,
        "estimates": len(estimates),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--policies", default=",".join(LIVE_POLICIES), help="only these policies, comma-separated")
    parser.add_argument("--times", type=int, default=3, help="number of runs, of which the best counts")
    options = parser.parse_args()
    rows = []
    columns = "".join(f"{name:>16}" for name in ("engine ms", "turn ms", "one job s", "estimates s"))
    print(f"{'policy':<12}{'quotas':>7}{columns}{'turn/engine':>13}")
    for quotas in (False, True):
        picture = busy_cluster_snapshot(quotas=quotas)
        for policy in options.policies.split(","):
            row = measure_policy(policy, picture, options.times)
            rows.append(row)
            text = f"{format_wall_and_cpu(row['engine_s'], 1000)}{format_wall_and_cpu(row['turn_s'], 1000)}"
            text += f"{format_wall_and_cpu(row['one_job_s'], 1, 2)}{format_wall_and_cpu(row['estimates_s'], 1, 2)}"
            print(f"{policy:<12}{row['quotas']:>7}{text}{row['telling_ratio']:>13.2f}", flush=True)
    print("Columns are wall / CPU.")
    machine = {"cores": os.cpu_count(), "load": os.getloadavg()[0], "python": platform.python_version()}
    print(f"machine: {machine['cores']} cores, load {machine['load']:.1f}, Python {machine['python']}")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "runs": rows}, indent=2) + "\n")


def format_wall_and_cpu(seconds, scale: int, digits: int = 0) -> str:
    if seconds is None:
        return f"{'-':>16}"
    wall, cpu = (f"{one * scale:,.{digits}f}" for one in seconds)
    return f"{f'{wall} / {cpu}':>16}"


if __name__ == "__main__":
    main()
