"""One live turn with its database, and how many jobs it starts per second.

    python bench/loops.py                       two parts at two sizes, about two minutes on an idle machine
    python bench/loops.py turn                  load, decide, apply, explain; also: starts, profile
    python bench/loops.py turn --nodes 12500    at one of the sizes 300, 1250 and 12500; the last takes minutes

`turn` measures a complete turn of a full cluster, where no job can start. The cluster is a list in memory, PostgreSQL a
real server with durable writes. The first turn reads the whole cluster, later turns write little; in the busy turns
another job became first in the queue, so the reason of every pending job changes. The cluster has a memory: every
waiting job has a predicted run time, and the teams have usage. Each live policy decides on the last snapshot.

`starts` runs turns against the simulated cluster's server until a whole burst is accepted. If Slurm is installed, a
real slurmctld on the same host takes a burst through the same adapter, and sbatch one job after another.
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

from scheduling.compiled import engine_mode

CLUSTER_SIZES = {300: (500, 480), 1_250: (10_000, 2_000), 12_500: (50_000, 20_000)}  # nodes -> waiting, running
DEFAULT_SIZES = (300, 1_250)
GOAL_TURN_S = {300: 1.0, 1_250: 1.0, 12_500: 5.0}
GOAL_MEMORY_MB = {300: 500, 1_250: 500, 12_500: 1_000}
GOAL_DECISION_S, GOAL_STARTS = 0.1, 50
TEAMS, SUBMIT_BATCH = 20, 10_000
NODES_PER_RACK, IDLE_NODE_W, NODE_JOBS_W = 8, 1_520, 3_400  # of eight A100 with jobs at their limit
BURST_JOBS, SBATCH_JOBS, TURN_COUNT = 400, 40, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["turn", "starts"])
    parser.add_argument("--budgets", action="store_true", help="also measure turns under power budgets")
    parser.add_argument("--nodes", type=int, choices=CLUSTER_SIZES, nargs="+", default=DEFAULT_SIZES)
    options = parser.parse_args()
    parts = options.parts
    figures: dict[str, Any] = {
        "machine": {
            "cores": os.cpu_count(),
            "load_before": os.getloadavg()[0],
            "python": platform.python_version(),
        }
    }
    with ExitStack() as stack:
        start_database(stack)
        if {"turn", "profile"} & set(parts):
            figures["turn"] = {
                nodes: measure_turn(nodes, *CLUSTER_SIZES[nodes], profile="profile" in parts) for nodes in options.nodes
            }
        if "turn" in figures and options.budgets:
            figures["turn under power budgets"] = {
                nodes: measure_turn(nodes, *CLUSTER_SIZES[nodes], profile="profile" in parts, has_budgets=True)
                for nodes in options.nodes
            }
        if "starts" in parts:
            figures["starts"] = measure_starts()
    figures["machine"]["engine"] = engine_mode()  # after its import
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


def measure_turn(
    nodes: int, waiting: int, running: int, *, profile: bool, has_budgets: bool = False
) -> dict[str, float]:
    from acmeweb.startup import freeze_loaded_modules
    from jobs.models import Cluster, clock
    from scheduling.engine.policies import LIVE_POLICIES
    from scheduling.loops.turn import run_turn_once
    from scheduling.queries import snapshot
    from tests.scheduling.loops.test_turn import free

    clear_database()
    cluster, slurm = make_full_cluster(nodes, waiting, running)
    if has_budgets:
        add_power_budgets(cluster, slurm)
    analyze_tables()
    freeze_loaded_modules()

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
    _, load_s = time_call(lambda: snapshot.take_snapshot(cluster, clock.now()))
    picture, load_cpu_s = time_cpu(lambda: snapshot.take_snapshot(cluster, clock.now()))
    decisions = {
        name: min(time_cpu(lambda p=policy: p(picture))[1] for _ in range(3)) for name, policy in LIVE_POLICIES.items()
    }
    return {
        "first_s": first,
        "median_s": statistics.median(later),
        "worst_s": max(later),
        "busy_s": statistics.median(busy),
        "cpu_s": statistics.median(cpu),  # only ours, without PostgreSQL; not affected by a busy machine
        "load_s": load_s,
        "load_cpu_s": load_cpu_s,
        "decide_cpu_s": decisions,
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "load_average": os.getloadavg()[0],
    }


def add_power_budgets(cluster: Any, slurm: Any) -> None:
    """A budget of the cluster, and one of each rack of eight nodes that its running jobs exhaust. Half of the nodes of
    each rack become free, so all jobs wait for power, and for each request the nodes are searched that have some."""
    from jobs.core.lifecycle import State
    from jobs.models import Allocation, Attempt, Job, Node, clock
    from scheduling.models import PowerBudget

    nodes = list(Node.objects.filter(cluster=cluster).order_by("pk"))
    for number, node in enumerate(nodes):
        node.rack = f"r{number // NODES_PER_RACK:03}"
    Node.objects.bulk_update(nodes, ["rack"], batch_size=1000)
    freed = Attempt.objects.filter(allocations__node__in=[node.pk for node in nodes[1::2]]).distinct()
    gone, now = list(freed.values_list("pk", flat=True)), clock.now()
    for backend_id in freed.values_list("backend_id", flat=True):
        del slurm.known[backend_id]
    Allocation.objects.filter(attempt__in=gone).update(released_at=now)
    Job.objects.filter(attempts__in=gone).update(state=State.COMPLETED, ended_at=now)
    Attempt.objects.filter(pk__in=gone).update(state=State.COMPLETED, ended_at=now)
    watts = dict.fromkeys(sorted({node.rack for node in nodes}), 0)
    for number, node in enumerate(nodes):
        watts[node.rack] += IDLE_NODE_W + (number % 2 == 0) * NODE_JOBS_W
    rows = [PowerBudget(cluster=cluster, scope="rack", place=rack, limit_w=most) for rack, most in watts.items()]
    whole = PowerBudget(cluster=cluster, scope="cluster", limit_w=sum(watts.values()) + NODE_JOBS_W)
    PowerBudget.objects.bulk_create([whole, *rows])


def change_queue_head(cluster: Any, number: int) -> None:
    """Make another job first in the queue, which changes the reason of all others."""
    from jobs.models import Job

    first = Job.objects.filter(cluster=cluster, state="PENDING", gpus_per_node=8).order_by("id")[number]
    Job.objects.filter(pk=first.pk).update(priority=number + 1)


def time_call(work: Any) -> tuple[Any, float]:
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def time_cpu(work: Any) -> tuple[Any, float]:
    began = time.process_time()
    return work(), time.process_time() - began


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
    for first in range(0, waiting, SUBMIT_BATCH):
        rows = range(first, min(first + SUBMIT_BATCH, waiting))
        asked = [(sizes[row % 6], 3600 + row % 7) for row in rows]
        make.jobs(*[{"nodes": n, "gpus_per_node": g, "time_limit": limit} for (n, g), limit in asked], cluster=cluster)
    give_memory(cluster)
    return cluster, slurm


def give_memory(cluster: Any) -> None:
    """Spread the jobs over teams, and give the teams usage and the waiting jobs predictions."""
    from django.db import connection

    from scheduling.models import AccountUsage
    from tests import make

    teams = [make.team(f"team-{number}") for number in range(TEAMS)]
    AccountUsage.objects.bulk_create(
        [
            AccountUsage(cluster=cluster, team=team, gpu_seconds=1e6 * (number + 1), at=cluster.created_at)
            for number, team in enumerate(teams)
        ]
    )
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE jobs_job SET team_id = (%s::bigint[])[1 + id %% %s], predicted_s = 60 + id %% 9999"
            " WHERE cluster_id = %s",
            [[team.pk for team in teams], TEAMS, cluster.pk],
        )


def make_running_jobs(cluster: Any, slurm: Any, nodes: list[Any], count: int) -> None:
    """Create jobs that have been running for an hour, in the database and on the cluster."""
    from jobs.core.backend_job import BackendJob
    from jobs.core.lifecycle import State
    from jobs.models import Allocation, Attempt, Job, clock
    from tests import make

    halves = 2 * (count - len(nodes))
    places = [(node, range(8)) for node in nodes[: len(nodes) - halves // 2]]
    places += [(node, half) for node in nodes[len(nodes) - halves // 2 :] for half in (range(4), range(4, 8))]
    since = clock.now() - timedelta(hours=1)
    sizes = [{"gpus_per_node": len(gpus)} for _, gpus in places]
    batches = (sizes[first : first + SUBMIT_BATCH] for first in range(0, len(sizes), SUBMIT_BATCH))
    jobs = [job for batch in batches for job in make.jobs(*batch, cluster=cluster)]
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
    from tests.scheduling.backends.real_slurm import RealSlurm, missing_programs
    from tests.scheduling.simulation.slurm.running import ClusterProcess

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
    from scheduling.loops.turn import run_turn
    from tests import make

    clear_database()
    place = {"address": address, "log_root": log_root, "token_file": token_file, "api_user": "root", "is_bundled": True}
    cluster = make.cluster("burst", nodes=0, policy="fifo", **place)
    run_turn(cluster.pk, "bench", connect)  # loads the nodes
    resources = {"gpus_per_node": 1, "cpus_per_node": 1, "memory_per_node": "100M", "command": "sleep 300"}
    make.jobs(*[{**resources, "environment": {"SIM_DURATION_S": "300"}} for _ in range(count)], cluster=cluster)
    began, spent = time.perf_counter(), time.process_time()
    while Attempt.objects.filter(job__cluster=cluster).exclude(Q(backend_id="")).count() < count:
        run_turn(cluster.pk, "bench", connect)
        assert time.perf_counter() - began < 300, "The burst was not accepted."
    took = time.perf_counter() - began
    cpu_ms = 1000 * (time.process_time() - spent) / count
    return {"jobs": count, "seconds": took, "per_second": count / took, "cpu_ms_each": cpu_ms}


def measure_sbatch(slurm: Any) -> dict[str, float]:
    _, took = time_call(lambda: [slurm.sbatch() for _ in range(SBATCH_JOBS)])
    return {"jobs": SBATCH_JOBS, "seconds": took, "per_second": SBATCH_JOBS / took}


# --- output


def figures_table(figures: dict[str, Any]) -> str:
    machine = figures["machine"]
    lines = [
        f"load average before: {machine['load_before']:.1f} on {machine['cores']} cores; {machine['engine']} engine"
    ]
    for part in ("turn", "turn under power budgets"):
        for nodes, took in figures.get(part, {}).items():
            lines += [f"{part}:", *turn_lines(nodes, took)]
    for name, took in figures.get("starts", {}).items():
        text = took if isinstance(took, str) else f"{took['per_second']:.0f} jobs/s ({took['jobs']} jobs)"
        if "cpu_ms_each" in took:
            text += f", {took['cpu_ms_each']:.0f} ms of our CPU each"
        lines.append(f"{name:32} {text}; goal {GOAL_STARTS}")
    return "\n".join(lines)


def turn_lines(nodes: int, took: dict[str, Any]) -> list[str]:
    waiting, running = CLUSTER_SIZES[nodes]
    seconds = {
        name.removesuffix("_s"): one for name, one in took.items() if name.endswith("_s") and name[:6] != "decide"
    }
    decisions = took["decide_cpu_s"]
    slowest = max(decisions, key=decisions.__getitem__)
    return [
        f"{nodes:,} nodes, {waiting:,} waiting, {running:,} running; load average {took['load_average']:.1f}",
        f"  seconds: {' '.join(f'{name} {one:.2f}' for name, one in seconds.items())}; goal {GOAL_TURN_S[nodes]:.0f}",
        f"  CPU ms per decision: {' '.join(f'{name} {1000 * one:.0f}' for name, one in decisions.items())};"
        f" slowest {slowest}; goal {1000 * GOAL_DECISION_S:.0f} at 1,250 nodes",
        f"  peak memory {took['peak_memory_mb']} MB, with the cluster in memory; goal {GOAL_MEMORY_MB[nodes]}",
    ]


if __name__ == "__main__":
    main()
