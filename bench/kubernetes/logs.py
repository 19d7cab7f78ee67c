"""Cost of copying the logs of running pods from a simulated cluster to files.

    python bench/kubernetes/logs.py [--pods 1000] [--turns 5]

Each turn reads every pod once, as if all were due, and begins some seconds after the one before. The comparison is the
same number of requests for logs with httpx over as many connections, without reading positions, merging or writing.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "acmeweb.settings")
os.environ.setdefault("SECRET_KEY", "x" * 60)

import django

django.setup()

import httpx

from jobs.logs.log_source import LogSource
from scheduling.backends.base import Backend, SubmitRequest
from scheduling.loops.pod_logs import LIVE_INTERVAL_S, PARALLEL_COPIES, CopyMemory, LogCopier, PendingLog
from tests.patience import until
from tests.scheduling.backends.kubernetes.simulated_kubernetes import NAMESPACE, open_kubernetes, prepare
from tests.scheduling.simulation.kubernetes.running import KubernetesProcess

GPUS = 8


def submit(backend: Backend, pods: int, nodes: list[str], root: Path) -> list[PendingLog]:
    """Start attempts of one pod with one GPU each."""
    requests = [
        SubmitRequest(
            key=f"bench{number}.1",
            name=f"bench-{number}",
            user="",
            account="",
            script="sleep 3600\n",
            workdir="/tmp",
            environment={"SIM_DURATION_S": "36000"},
            nodes=(nodes[number // GPUS],),
            gpus_per_node=1,
            gpu_model="",
            cpus_per_node=1,
            memory_per_node_mb=100,
            time_limit=timedelta(hours=10),
            stdout="",
        )
        for number in range(pods)
    ]
    uids = backend.submit_all(requests)
    assert all(isinstance(uid, str) for uid in uids), next(uid for uid in uids if not isinstance(uid, str))
    until(lambda: _running(backend) >= pods, within_s=600, what="all pods run")
    return [
        PendingLog(
            attempt_id=number,
            key=request.key,
            backend_id=str(uid),
            source=LogSource(str(root), f"{root}/{number}.log"),
            ended_at=None,
        )
        for number, (request, uid) in enumerate(zip(requests, uids, strict=True))
    ]


def _running(backend: Backend) -> int:
    backend.advance_jobs()
    return sum(job.state == "RUNNING" and not job.flags for job in backend.jobs())


def turn(backend: Backend, logs: list[PendingLog], memory: CopyMemory) -> tuple[float, float, int]:
    """One turn in which all logs are due: its duration, CPU seconds of this process, and bytes added."""
    time.sleep(LIVE_INTERVAL_S)
    size, cpu, began = _written(logs), _cpu_s(), time.monotonic()
    copier = LogCopier(backend, datetime.now(UTC), memory, None, budget_s=3600)
    for pace in memory.paces.values():
        pace.due_at = 0.0
    copier.copy_all(memory.due(logs))
    assert copier.count == len(logs), copier.error
    return time.monotonic() - began, _cpu_s() - cpu, _written(logs) - size


def plain_requests(cluster: KubernetesProcess, names: list[str]) -> tuple[float, float]:
    headers = {"Authorization": f"Bearer {cluster.token}"}
    since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with httpx.Client(base_url=cluster.address, headers=headers, timeout=60) as client:

        def get(name: str) -> int:
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/log"
            return len(client.get(path, params={"timestamps": "true", "sinceTime": since}).raise_for_status().content)

        cpu, began = _cpu_s(), time.monotonic()
        with ThreadPoolExecutor(PARALLEL_COPIES) as executor:
            list(executor.map(get, names))
        return time.monotonic() - began, _cpu_s() - cpu


def _written(logs: list[PendingLog]) -> int:
    return sum(path.stat().st_size for one in logs if (path := Path(one.source.path)).exists())


def _cpu_s() -> float:
    """Of this process and of the reader processes of log storage that have ended."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=5)
    values = parser.parse_args()
    nodes = -(-values.pods // GPUS)
    with (
        tempfile.TemporaryDirectory() as directory,
        KubernetesProcess(Path(directory) / "state", "--nodes", str(nodes)) as cluster,
        closing(open_kubernetes(prepare(cluster), timeout_s=120)) as backend,
    ):
        root = Path(directory) / "logs"
        root.mkdir()
        logs = submit(backend, values.pods, sorted(node.name for node in backend.nodes()), root)
        memory = CopyMemory()
        memory.due(logs)
        results = [turn(backend, logs, memory) for _ in range(values.turns + 1)]
        pods = cluster.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
        plain_s, plain_cpu_s = plain_requests(cluster, [pod["metadata"]["name"] for pod in pods])
    report(values.pods, results, plain_s, plain_cpu_s)


def report(pods: int, results: list[tuple[float, float, int]], plain_s: float, plain_cpu_s: float) -> None:
    first, later = results[0], results[1:]
    seconds, cpu = (statistics.median(result[column] for result in later) for column in (0, 1))
    size = statistics.median(result[2] for result in later)
    print(f"{platform.node()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {pods} running pods")
    print(f"first turn            {first[0]:7.2f} s, {first[1]:5.2f} s CPU, {first[2] / 2**20:.1f} MiB")
    print(
        f"later turns (median)  {seconds:7.2f} s, {cpu:5.2f} s CPU, {size / 2**10:.0f} KiB, {pods / seconds:.0f} pods/s"
    )
    print(f"plain requests        {plain_s:7.2f} s, {plain_cpu_s:5.2f} s CPU")
    print(f"ratio                 {seconds / plain_s:7.2f}   , {cpu / plain_cpu_s:5.2f}")


if __name__ == "__main__":
    main()
