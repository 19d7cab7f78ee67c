"""How fast the simulated Kubernetes cluster answers at the size of a datacenter.

    python bench/simulated/kubernetes.py [--nodes 1250] [--pods 10000]

One server process, requests over HTTP on loopback. Prints the ratio to each goal, the machine and the input.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.scheduling.simulation.kubernetes.make import pod
from tests.scheduling.simulation.kubernetes.running import KubernetesProcess

PODS = "/api/v1/namespaces/default/pods"
LIST_GOAL_S, STARTS_GOAL = 1.0, 100.0
CONNECTIONS = 8


def create_pods(cluster: KubernetesProcess, nodes: list[str], count: int, prefix: str) -> float:
    """Create placed pods over some connections; returns the seconds it took."""
    bodies = [
        json.dumps(pod(f"{prefix}-{i:05d}", node=nodes[i % len(nodes)], gpus=1, seconds=86_400)) for i in range(count)
    ]

    began = time.perf_counter()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(lambda part: post_all(cluster, part), (bodies[i::CONNECTIONS] for i in range(CONNECTIONS))))
    return time.perf_counter() - began


def post_all(cluster: KubernetesProcess, bodies: list[str]) -> None:
    """Send requests over one connection, with a client that costs little time itself."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {cluster.token}"}
    connection = HTTPConnection("127.0.0.1", int(cluster.port))
    for body in bodies:
        connection.request("POST", PODS, body, headers)
        response = connection.getresponse()
        text = response.read()
        if response.status != 201:
            raise SystemExit(f"status {response.status}: {text[:500]!r}")
    connection.close()


def time_until_running(cluster: KubernetesProcess, prefix: str, count: int) -> float:
    """Seconds until all pods of a prefix run, as a watch shows them."""
    began, running = time.perf_counter(), set()
    for event in cluster.watch(PODS, timeoutSeconds="600"):
        found = event["object"]
        if found["metadata"]["name"].startswith(prefix) and found["status"]["phase"] == "Running":
            running.add(found["metadata"]["name"])
        if len(running) >= count:
            break
    return time.perf_counter() - began


def best_of(action, tries: int = 5) -> float:
    times = []
    for _ in range(tries):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--pods", type=int, default=10_000)
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {options.nodes} nodes")
    with (
        tempfile.TemporaryDirectory() as state,
        KubernetesProcess(Path(state) / "kalos", "--nodes", str(options.nodes), "--lease-s", "10",
                          "--node-grace-s", "600", "--node-check-s", "5") as cluster,
    ):  # fmt: skip
        starts = 500
        nodes = [one["metadata"]["name"] for one in cluster.call("GET", "/api/v1/nodes")["items"]]
        created = create_pods(cluster, nodes, starts, "start")
        running = created + time_until_running(cluster, "start", starts)
        print(f"{starts} pods: {starts / created:.0f} creates/s, {starts / running:.0f} starts/s"
              f" ({starts / running / STARTS_GOAL:.1f} x the goal of {STARTS_GOAL:.0f}/s)")  # fmt: skip
        create_pods(cluster, nodes, options.pods - starts, "fill")
        for path in (PODS, "/api/v1/nodes"):
            text = cluster.client.get(path).content
            seconds = best_of(lambda path=path: cluster.client.get(path).content)
            print(f"GET {path}: {len(text) / 1e6:.1f} MB in {seconds:.2f} s ({LIST_GOAL_S / seconds:.1f} x faster than"
                  f" the goal of {LIST_GOAL_S:.0f} s)")  # fmt: skip
        page = best_of(lambda: cluster.client.get(PODS, params={"limit": "500"}).content)
        print(f"GET {PODS}?limit=500: {page * 1000:.0f} ms")


if __name__ == "__main__":
    main()
