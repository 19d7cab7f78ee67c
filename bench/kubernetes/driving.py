"""How fast Acme starts jobs on a Kubernetes cluster: a wide gang, many single jobs, and a whole turn at full size.

    python bench/kubernetes/driving.py [--nodes 1250] [--pods 10000] [--gang 256] [--starts 400]

The simulated API server runs as another process on this machine. With `k8s_up.sh` on the PATH, starts are measured on
a real control plane too, against its own rate of creating pods: in several rounds, each side in turn on an empty
cluster whose kubelets have nothing left to do. Prints the ratio to each goal.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from acmeweb.common.http_client import HttpClient, RequestDeadline
from scheduling.backends.base import Backend, BackendError, SubmitRequest
from scheduling.backends.kubernetes.connection.access import load_connection, parse_address
from scheduling.backends.kubernetes.driving.parallel import CONNECTIONS
from tests.real_kubernetes import run_program
from tests.scheduling.backends.kubernetes.real_kubernetes import pod
from tests.scheduling.backends.kubernetes.simulated_kubernetes import NAMESPACE, open_kubernetes, prepare, read_file
from tests.scheduling.simulation.kubernetes.running import KubernetesProcess

GANG_GOAL_S, STARTS_GOAL, CREATE_SHARE_GOAL, TURN_GOAL_S = 3.0, 100.0, 0.5, 1.0
BATCH = 32  # of one claim of commands
keys = count(1)


def request(nodes: Sequence[str], **changed: object) -> SubmitRequest:
    key = f"bench{next(keys)}.1"
    values: dict[str, object] = {
        "key": key,
        "name": key,
        "user": "",
        "account": "",
        "script": "sleep 86400\n",
        "workdir": "/tmp",
        "environment": {"SIM_DURATION_S": "86400"},
        "nodes": tuple(nodes),
        "gpus_per_node": 1,
        "gpu_model": "",
        "cpus_per_node": 1,
        "memory_per_node_mb": 100,
        "time_limit": None,
        "stdout": "",
    }
    return SubmitRequest(**{**values, **changed})  # type: ignore[arg-type]


def checked(answers: Sequence[str | BackendError]) -> list[str]:
    for answer in answers:
        if isinstance(answer, BackendError):
            raise SystemExit(f"a submission failed: {answer}")
    return [str(answer) for answer in answers]


def measure_gang(backend: Backend, nodes: Sequence[str]) -> float:
    """Seconds from the decision until all pods of one gang are bound."""
    gang = request(nodes)
    began = time.perf_counter()
    checked(backend.submit_all([gang]))
    while len(found.nodes if (found := backend.find(gang.key)) else ()) < len(nodes):
        backend.advance_jobs()
    return time.perf_counter() - began


def measure_starts(backend: Backend, nodes: Sequence[str], starts: int) -> float:
    """Bound jobs per second, in batches as the scheduler sends them."""
    requests = [request([nodes[number % len(nodes)]], gpus_per_node=0) for number in range(starts)]
    began = time.perf_counter()
    for first in range(0, starts, BATCH):
        checked(backend.submit_all(requests[first : first + BATCH]))
    wanted = {one.key for one in requests}
    while sum(bool(job.nodes) for job in backend.jobs() if job.key in wanted) < starts:
        backend.advance_jobs()
    return starts / (time.perf_counter() - began)


class PlainPods:
    """Pods of the namespace over the API server, without Acme."""

    path = f"/api/v1/namespaces/{NAMESPACE}/pods"

    def __init__(self, kubeconfig: Path) -> None:
        connection = load_connection(parse_address(f"kubernetes://{kubeconfig}"), read_file)
        context = connection.ssl_context() if connection.server.startswith("https") else None
        self._client = HttpClient(connection.server, connection.headers, ssl_context=context)
        self._numbers = count()

    def _call(self, method: str, query: str = "", body: object = None) -> Any:
        answer = self._client.request(method, f"{self.path}{query}", RequestDeadline(60), body)
        if not answer.is_success:
            raise SystemExit(f"status {answer.status_code}: {answer.text[:300]}")
        return answer

    def measure_creates(self, nodes: Sequence[str], creates: int) -> float:
        """Pods per second that the API server creates over as many connections, and nothing else."""

        def create(number: int) -> None:
            self._call("POST", body=pod(f"plain-{number}", gpus=0, node=nodes[number % len(nodes)]))

        numbers = list(islice(self._numbers, creates))
        began = time.perf_counter()
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            list(pool.map(create, numbers))
        return creates / (time.perf_counter() - began)

    def remove_all(self) -> None:
        """Wait until all pods run, delete them, and wait until the kubelets have removed them."""
        self._wait_until_none("?fieldSelector=status.phase!=Running")
        self._call("DELETE", body={"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 1})
        self._wait_until_none("")

    def _wait_until_none(self, query: str) -> None:
        while self._call("GET", query).json()["items"]:
            time.sleep(1)

    def close(self) -> None:
        self._client.close()


def fill(backend: Backend, nodes: Sequence[str], pods: int) -> None:
    """Gangs of 8 pods until the cluster has this many."""
    gangs = [request([nodes[(8 * n + i) % len(nodes)] for i in range(8)], gpus_per_node=0) for n in range(pods // 8)]
    for first in range(0, len(gangs), BATCH):
        checked(backend.submit_all(gangs[first : first + BATCH]))
    for _ in range(10):
        backend.advance_jobs()


def look_of_a_turn(backend: Backend) -> None:
    """What a turn asks of the backend, without the database."""
    backend.nodes()
    backend.jobs()
    backend.advance_jobs()


def measure_turns(backend: Backend, nodes: Sequence[str], turns: int = 10) -> list[float]:
    times = []
    for number in range(turns):
        began = time.perf_counter()
        look_of_a_turn(backend)
        checked(backend.submit_all([request([nodes[number % len(nodes)]], gpus_per_node=0)]))
        backend.advance_jobs()
        times.append(time.perf_counter() - began)
    return times


def machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"


def bench_simulated(options: argparse.Namespace, say: Callable[[str], None]) -> None:
    arguments = ("--nodes", str(options.nodes), "--lease-s", "10", "--node-grace-s", "600", "--node-check-s", "5")
    with (
        tempfile.TemporaryDirectory() as state,
        KubernetesProcess(Path(state) / "kalos", *arguments, *options.shape) as cluster,
        closing(open_kubernetes(prepare(cluster), timeout_s=60)) as backend,
    ):
        nodes = [node.name for node in backend.nodes()]
        say(f"simulated API, {len(nodes)} nodes, {' '.join(options.shape) or 'Indexed Jobs'}; {machine()}")
        gang = measure_gang(backend, nodes[: options.gang])
        say(f"gang of {options.gang} pods bound after {gang:.2f} s ({GANG_GOAL_S / gang:.1f} x the goal)")
        rate = measure_starts(backend, nodes, options.starts)
        say(f"{options.starts} jobs: {rate:.0f} starts/s ({rate / STARTS_GOAL:.2f} x the goal)")
        if options.pods:
            fill(backend, nodes, options.pods)
            turn = statistics.median(measure_turns(backend, nodes))
            say(f"a turn with {options.pods} pods: {turn * 1000:.0f} ms ({TURN_GOAL_S / turn:.1f} x the goal)")


def bench_real(options: argparse.Namespace, say: Callable[[str], None]) -> None:
    with (
        real_cluster() as kubeconfig,
        closing(PlainPods(kubeconfig)) as plain,
        closing(open_kubernetes(kubeconfig, timeout_s=60)) as backend,
    ):
        nodes = [node.name for node in backend.nodes()]
        measure_starts(backend, nodes, 1)  # discovery and probes, which are repeated every 300 s
        ratios = []
        for _ in range(options.rounds):
            plain.remove_all()
            creates = plain.measure_creates(nodes, options.real_starts)
            plain.remove_all()
            look_of_a_turn(backend)  # the events about the plain pods
            rate = measure_starts(backend, nodes, options.real_starts)
            ratios.append(rate / creates)
            say(f"real API server: {rate:.0f} starts/s, its own pod creates {creates:.0f}/s; {machine()}")
        median = statistics.median(ratios)
        say(f"{options.real_starts} jobs on {len(nodes)} nodes, {len(ratios)} rounds: ratio {median:.2f},")
        say(f"from {min(ratios):.2f} to {max(ratios):.2f} ({median / CREATE_SHARE_GOAL:.2f} x the goal)")


@contextmanager
def real_cluster() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="acme-bench-"))
    try:
        run_program("k8s_up.sh", "-n", "4", "-g", "8", "-G", "60", "-d", str(home / "cluster"))
        kubeconfig = home / "cluster" / "kubeconfig"
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        run_program("kubectl", "--kubeconfig", str(kubeconfig), "create", "-f", "-", text=json.dumps(namespace))
        yield kubeconfig
    finally:
        run_program("k8s_down.sh", "-d", str(home / "cluster"))
        shutil.rmtree(home, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--pods", type=int, default=10_000, help="0: no turns")
    parser.add_argument("--gang", type=int, default=256)
    parser.add_argument("--starts", type=int, default=400)
    parser.add_argument("--real-starts", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3, help="on the real API server")
    parser.add_argument("--shape", nargs="*", default=[], help="options of the simulated cluster")
    options = parser.parse_args()
    bench_simulated(options, print)
    if shutil.which("k8s_up.sh"):
        bench_real(options, print)
    else:
        print("no real API server: k8s_up.sh is not on the PATH")


if __name__ == "__main__":
    main()
