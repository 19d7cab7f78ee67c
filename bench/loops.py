"""One live turn with its database, and how many jobs it starts per second.

    python bench/loops.py                three parts, about two minutes on an idle machine
    python bench/loops.py turn           load, decide, apply, explain at two sizes; also: starts, profile

`turn` measures a complete turn of a full cluster, where no job can start. The cluster is a list in memory, PostgreSQL a
real server with durable writes. The first turn reads the whole cluster, later turns write little; in the busy turns
another job became first in the queue, so the reason of every pending job changes. `starts` runs turns against the
simulated cluster's server until a whole burst is accepted. If Slurm is installed, a real slurmctld on the same host
takes a burst through the same adapter, and sbatch one job after another.
Prints a table to stderr and JSON to stdout.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import platform
import pstats
import resource
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

CLUSTER_SIZES = {"300 nodes, 500 waiting": (300, 500, 480), "1,250 nodes, 10,000 waiting": (1_250, 10_000, 2_000)}
GOAL_TURN_S, GOAL_MEMORY_MB, GOAL_STARTS = 1.0, 500, 50
BURST_JOBS, SBATCH_JOBS, TURN_COUNT = 400, 40, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["turn", "starts"])
    parts = parser.parse_args().parts
    figures: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "load_before": os.getloadavg()[0], "python": platform.python_version()}
    }
    with ExitStack() as stack:
        start_database(stack)
        if {"turn", "profile"} & set(parts):
            figures["turn"] = {
                name: measure_turn(*size, profile="profile" in parts) for name, size in CLUSTER_SIZES.items()
            }
        if "starts" in parts:
            figures["starts"] = measure_starts()
    figures["peak_memory_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(figures_table(figures), file=sys.stderr)
    print(json.dumps(figures, indent=1))


def start_database(stack: ExitStack) -> None:
    """Start our own servers, durable as in production, with an empty schema."""
    from tests import servers

    os.environ.update(ACME_TESTING="1", SECRET_KEY="only-for-figures-" + "x" * 40)
    servers.start(stack, settings={})  # tests skip fsync, which would falsify the figures
    os.environ["DJANGO_SETTINGS_MODULE"] = "acmeweb.settings"
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


# --- one turn


def measure_turn(nodes: int, waiting: int, running: int, *, profile: bool) -> dict[str, float]:
    from acmeweb.celery import freeze_loaded_objects
    from jobs.models import Cluster, clock
    from scheduling.engine.policies import LIVE_POLICIES
    from scheduling.loops.turn import run_turn_once
    from scheduling.queries import snapshot
    from tests.scheduling.loops.test_turn import free

    clear_database()
    cluster, slurm = make_full_cluster(nodes, waiting, running)
    analyze_tables()
    freeze_loaded_objects()

    def time_one_turn() -> tuple[float, float]:
        began, spent = time.perf_counter(), time.process_time()
        run_turn_once(Cluster.objects.get(pk=cluster.pk), lambda _: slurm, free(), clock.now())
        return time.perf_counter() - began, time.process_time() - spent

    first, _ = time_one_turn()
    later, cpu = zip(*(time_one_turn() for _ in range(TURN_COUNT)), strict=True)
    busy = []
    for number in range(TURN_COUNT):
        change_queue_head(cluster, number)
        busy.append(time_one_turn()[0])
    if profile:
        with cProfile.Profile() as spent:
            time_one_turn()
        pstats.Stats(spent, stream=sys.stderr).sort_stats("cumulative").print_stats(35)
    picture, load_s = time_call(lambda: snapshot.take_snapshot(cluster, clock.now()))
    _, decide_s = time_call(lambda: LIVE_POLICIES["fifo"](picture))
    return {
        "first_s": first,
        "median_s": statistics.median(later),
        "worst_s": max(later),
        "busy_s": statistics.median(busy),
        "cpu_s": statistics.median(cpu),  # only ours, without PostgreSQL; not affected by a busy machine
        "load_s": load_s,
        "decide_s": decide_s,
    }


def change_queue_head(cluster: Any, number: int) -> None:
    """Make another job first in the queue, which changes the reason of all others."""
    from jobs.models import Job

    first = Job.objects.filter(cluster=cluster, state="PENDING", gpus_per_node=8).order_by("id")[number]
    Job.objects.filter(pk=first.pk).update(priority=number + 1)


def time_call(work: Any) -> tuple[Any, float]:
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def clear_database() -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE jobs_cluster, scheduling_lease CASCADE")


def analyze_tables() -> None:
    """Run ANALYZE, as autovacuum does within a minute of so many new rows."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def make_full_cluster(nodes: int, waiting: int, running: int) -> tuple[Any, Any]:
    """Create a cluster with all GPUs allocated; the largest jobs have whole nodes, the others halves."""
    from jobs.models import Node
    from tests import make
    from tests.scheduling.fake import FakeCluster

    slurm = FakeCluster(nodes=nodes)
    cluster = make.cluster("seren", nodes=0)
    Node.objects.bulk_create(
        [
            Node(cluster=cluster, name=name, gpus=8, gpu_model="a100", cpus=128, memory_mb=1_048_576, state="IDLE",
                 rack="r01", leaf=f"l{place // 8:02d}")
            for place, name in enumerate(slurm.machines)
        ]
    )  # fmt: skip
    make_running_jobs(cluster, slurm, list(Node.objects.filter(cluster=cluster).order_by("id")), running)
    sizes = ((1, 8), (1, 1), (2, 8), (1, 4), (8, 8), (1, 2))
    make.jobs(
        *[
            {"nodes": n, "gpus_per_node": g, "time_limit": 3600 + i % 7}
            for i in range(waiting)
            for n, g in [sizes[i % 6]]
        ],
        cluster=cluster,
    )
    return cluster, slurm


def make_running_jobs(cluster: Any, slurm: Any, nodes: list[Any], count: int) -> None:
    """Create jobs that have been running for an hour, in the database and on the cluster."""
    from jobs.core.lifecycle import State
    from jobs.models import Allocation, Attempt, Job, clock
    from scheduling.backends.base import BackendJob
    from tests import make

    halves = 2 * (count - len(nodes))
    places = [(node, range(8)) for node in nodes[: len(nodes) - halves // 2]]
    places += [(node, half) for node in nodes[len(nodes) - halves // 2 :] for half in (range(4), range(4, 8))]
    since = clock.now() - timedelta(hours=1)
    jobs = make.jobs(*[{"gpus_per_node": len(gpus)} for _, gpus in places], cluster=cluster)
    Job.objects.filter(pk__in=[job.pk for job in jobs]).update(state=State.RUNNING, started_at=since)
    attempts = Attempt.objects.bulk_create(
        [
            Attempt(job=job, number=1, key=f"{job.public_id}.1", backend_id=str(place), nodelist=node.name,
                    confirmed_at=since)
            for place, (job, (node, _)) in enumerate(zip(jobs, places, strict=True))
        ]
    )  # fmt: skip
    Allocation.objects.bulk_create(
        [
            Allocation(attempt=attempt, node=node, gpu=gpu)
            for attempt, (node, gpus) in zip(attempts, places, strict=True)
            for gpu in gpus
        ],
        batch_size=5_000,
    )
    for attempt, (node, gpus) in zip(attempts, places, strict=True):
        slurm.known[attempt.backend_id] = BackendJob(
            backend_id=attempt.backend_id, key=attempt.key, name="train", user="ada", state=State.RUNNING,
            nodes=(node.name,), gpus={node.name: tuple(gpus)}, started_at=since,
        )  # fmt: skip


# --- starts


def measure_starts() -> dict[str, Any]:
    from tests.backends.real_slurm import RealSlurm, missing_programs
    from tests.cluster.running import ClusterProcess

    figures: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory(prefix="acme-bench-") as home,
        ClusterProcess(Path(home), "--nodes", "64") as simulated,
    ):
        token = str(simulated.state / "token")
        figures["simulated"] = measure_burst(simulated.address, str(simulated.log_root), token, BURST_JOBS)
    figures["slurm"] = f"not installed ({missing_programs()})" if missing_programs() else None
    if figures["slurm"] is None:
        with RealSlurm() as slurm:
            figures["slurm"] = measure_burst(slurm.address, str(slurm.output), "", 32)  # the GPUs of its four nodes
            figures["sbatch"] = measure_sbatch(slurm)
    return figures


def measure_burst(address: str, log_root: str, token_file: str, count: int) -> dict[str, float]:
    """Submit jobs at once, and run turns until the cluster has accepted them."""
    from django.db.models import Q

    from jobs.models import Attempt
    from scheduling.clusters.connections import connect
    from scheduling.loops.turn import run_turns
    from tests import make

    clear_database()
    place = {"address": address, "log_root": log_root, "token_file": token_file, "api_user": "root", "is_bundled": True}
    cluster = make.cluster("burst", nodes=0, policy="fifo", **place)
    run_turns(cluster.pk, "bench", connect)  # loads the nodes
    resources = {"gpus_per_node": 1, "cpus_per_node": 1, "memory_per_node": "100M", "command": "sleep 300"}
    make.jobs(*[{**resources, "environment": {"SIM_DURATION_S": "300"}} for _ in range(count)], cluster=cluster)
    began, spent = time.perf_counter(), time.process_time()
    while Attempt.objects.filter(job__cluster=cluster).exclude(Q(backend_id="")).count() < count:
        run_turns(cluster.pk, "bench", connect)
        assert time.perf_counter() - began < 300, "The burst was not accepted."
    took = time.perf_counter() - began
    cpu_ms = 1000 * (time.process_time() - spent) / count
    return {"jobs": count, "seconds": took, "per_second": count / took, "cpu_ms_each": cpu_ms}


def measure_sbatch(slurm: Any) -> dict[str, float]:
    _, took = time_call(lambda: [slurm.sbatch() for _ in range(SBATCH_JOBS)])
    return {"jobs": SBATCH_JOBS, "seconds": took, "per_second": SBATCH_JOBS / took}


# --- output


def figures_table(figures: dict[str, Any]) -> str:
    lines = [f"load average before: {figures['machine']['load_before']:.1f} on {figures['machine']['cores']} cores"]
    for name, took in figures.get("turn", {}).items():
        shown = " ".join(f"{what.removesuffix('_s')} {seconds:.2f}" for what, seconds in took.items())
        lines.append(f"{name:32} seconds: {shown}; goal {GOAL_TURN_S:.0f} for median and busy")
    for name, took in figures.get("starts", {}).items():
        text = took if isinstance(took, str) else f"{took['per_second']:.0f} jobs/s ({took['jobs']} jobs)"
        if "cpu_ms_each" in took:
            text += f", {took['cpu_ms_each']:.0f} ms of our CPU each"
        lines.append(f"{name:32} {text}; goal {GOAL_STARTS}")
    lines.append(f"peak memory {figures['peak_memory_mb']} MB; goal {GOAL_MEMORY_MB}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
