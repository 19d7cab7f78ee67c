"""A whole turn of a full Kubernetes cluster: read it, store what changed, decide, send, with the database.

    python bench/kubernetes/turn.py [--nodes 1250] [--pods 10000] [--gang 1] [--waiting 1000] [--turns 10]

The simulated API server runs as another process on this machine, PostgreSQL is a real server with durable writes. Acme
itself fills the cluster: each job has `--gang` pods with one GPU, so `--pods` of 8 for each node leave no GPU free.
Measures turns in which nothing changes, and turns after a job was cancelled, which end its pods and start the next job.
Prints a table to stderr and JSON to stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from acmeweb.startup import freeze_loaded_modules
from bench.loops import analyze_tables, start_database
from scheduling.compiled import engine_mode

GOAL_S = 1.0
BATCH = 5_000
PATIENCE_S = 1_800


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--gang", type=int, default=1, help="pods of one job")
    parser.add_argument("--waiting", type=int, default=1_000)
    parser.add_argument("--turns", type=int, default=10)
    options = parser.parse_args()
    with ExitStack() as stack:
        start_database(stack)
        figures = measure(options, Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="acme-bench-"))))
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "engine": engine_mode()}
    print(json.dumps({"machine": machine, **figures}, indent=1))


def measure(options: argparse.Namespace, home: Path) -> dict[str, Any]:
    from tests.scheduling.backends.kubernetes.simulated_kubernetes import prepare
    from tests.scheduling.simulation.kubernetes.running import KubernetesProcess

    arguments = ("--nodes", str(options.nodes), "--lease-s", "10", "--node-grace-s", "600", "--node-check-s", "5")
    with KubernetesProcess(home / "kalos", *arguments) as kalos:
        cluster = add_cluster(f"kubernetes://{prepare(kalos)}", home)
        began = time.perf_counter()
        fill(cluster, options.pods // options.gang, options.gang)
        took_s, jobs = time.perf_counter() - began, options.pods // options.gang
        say(f"{options.nodes} nodes; {options.pods} pods of {jobs} jobs started in {took_s:.0f} s")
        submit(cluster, options.waiting, options.gang)
        analyze_tables()
        freeze_loaded_modules()  # as in a worker
        run_turn(cluster)
        quiet = [run_turn(cluster) for _ in range(options.turns)]
        changing = [cancel_and_run_turn(cluster, number) for number in range(options.turns)]
    return {"quiet_s": summary("nothing changes", quiet), "changing_s": summary("a job ends, another starts", changing)}


def add_cluster(address: str, home: Path) -> Any:
    from tests import make
    from tests.scheduling.backends.kubernetes.simulated_kubernetes import TEMPLATE

    (home / "logs").mkdir()
    place = {"address": address, "log_root": str(home / "logs"), "token_file": "", "is_bundled": True}
    cluster = make.cluster("kalos", nodes=0, policy="fifo", pod_template=TEMPLATE, **place)
    run_turn(cluster)
    return cluster


def fill(cluster: Any, jobs: int, gang: int) -> None:
    from jobs.models import Attempt

    submit(cluster, jobs, gang)
    began = time.perf_counter()
    while Attempt.objects.filter(job__cluster=cluster, confirmed_at__isnull=False).count() < jobs:
        run_turn(cluster)
        if time.perf_counter() - began > PATIENCE_S:
            raise SystemExit("The pods did not start.")


def submit(cluster: Any, count: int, gang: int) -> None:
    from tests import make

    one = {"nodes": gang, "gpus_per_node": 1, "cpus_per_node": 1, "memory_per_node": "100M", "command": "sleep 86400"}
    row = one | {"environment": {"SIM_DURATION_S": "86400"}}
    for first in range(0, count, BATCH):
        make.jobs(*[row for _ in range(min(BATCH, count - first))], cluster=cluster)


def run_turn(cluster: Any) -> float:
    from scheduling.clusters.connections import connect
    from scheduling.loops.turn import run_turn

    began = time.perf_counter()
    run_turn(cluster.pk, "bench", connect)
    cluster.refresh_from_db(fields=["last_error"])
    if cluster.last_error:
        raise SystemExit(cluster.last_error)
    return time.perf_counter() - began


def cancel_and_run_turn(cluster: Any, number: int) -> float:
    """Cancel another job each time: the one before may still be stopping."""
    from jobs.actions import jobs
    from jobs.actions.journal import Author
    from jobs.models import Job

    running = Job.objects.filter(cluster=cluster, state="RUNNING").order_by("id")
    jobs.cancel(running[number], author=Author(by="bench"))
    return run_turn(cluster)


def summary(what: str, times: list[float]) -> dict[str, float]:
    median, worst = statistics.median(times), max(times)
    load = os.getloadavg()[0]
    say(f"{what}: median {median:.2f} s ({GOAL_S / median:.1f} x the goal), worst {worst:.2f} s; load {load:.1f}")
    return {"median": median, "worst": worst}


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
