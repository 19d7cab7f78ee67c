"""Cost of looking at a Kubernetes cluster: the first list, a look while nothing changes, a look after changes.

    python bench/kubernetes/reading.py [--nodes 1250] [--pods 10000] [--looks 20]

The API server is a scripted one in another process, so the figures are the cost of Acme's side and of loopback. The
comparison is json.loads of the same lists, which any client over JSON needs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import httpx
import yaml

from scheduling.backends.base import Backend
from scheduling.backends.opening import open_backend
from tests.scheduling.backends.kubernetes.objects import node, pod, workload
from tests.scheduling.backends.kubernetes.scripted_api import ScriptedApi, serving

PODS, JOBS = "/api/v1/pods", "/apis/batch/v1/jobs"
PODS_PER_NODE = 8


def fill(api: ScriptedApi, nodes: int, pods: int) -> None:
    """One GPU for each pod, eight pods for each job, and what real objects carry beside what Acme reads."""
    jobs = [workload("Job", f"job-{number}", gpus=1) for number in range(-(-pods // PODS_PER_NODE))]
    api.groups = {"batch/v1": {"kinds": ["Job"]}}
    api.objects["/api/v1/nodes"] = [node(f"node-{number}") for number in range(nodes)]
    api.objects[JOBS] = jobs
    api.objects[PODS] = [
        pod(
            f"pod-{number}",
            on=f"node-{number % nodes}",
            gpus=1,
            controller=jobs[number // PODS_PER_NODE],
            managedFields=[{"fieldsV1": {f"f:field{i}": {"f:value": {}} for i in range(100)}}],
        )
        for number in range(pods)
    ]


def serve(nodes: int, pods: int) -> None:
    """Serve until standard input ends; each line of it moves one pod."""
    with serving() as (api, server):
        fill(api, nodes, pods)
        print(server, flush=True)
        for number, _ in enumerate(sys.stdin):
            item = api.objects[PODS][0]
            api.change(
                PODS,
                "MODIFIED",
                {**item, "spec": {**item["spec"], "nodeName": f"node-{(number + nodes // 2) % nodes}"}},
            )


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Elapsed time and CPU time of this process."""
    began, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - used


def plain_decode_s(server: str, path: str) -> tuple[float, int]:
    """The CPU time of json.loads per object of a collection, and the size of one."""
    text = httpx.get(f"{server}{path}", params={"limit": 500}, timeout=600).text
    items = len(json.loads(text)["items"])
    return seconds(lambda: json.loads(text))[1] / items, len(text) // items


def look(backend: Backend) -> None:
    backend.nodes()
    backend.jobs()


def measure(server: str, changes: subprocess.Popen[str], options: argparse.Namespace) -> None:
    config = {
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
    }
    text = yaml.safe_dump(config)
    per_pod, size = plain_decode_s(server, PODS)
    with closing(open_backend("kubernetes:///k", read_file=lambda path: text, timeout_s=600)) as backend:
        first = seconds(lambda: look(backend))
        quiet = [seconds(lambda: look(backend)) for _ in range(options.looks)]
        changed = [seconds(lambda: _change_and_look(backend, changes)) for _ in range(options.looks)]
    decode, (first_s, first_cpu_s) = per_pod * options.pods, first
    print(f"input: {options.nodes} nodes, {options.pods} pods of {size} bytes, {len(quiet)} looks")
    print(f"machine: {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"first look: {first_s:.2f} s, {first_cpu_s:.2f} s CPU = {first_cpu_s / decode:.1f} x json.loads of the pods")
    print(f"quiet look: {_medians(quiet)} (goal 50 ms)")
    print(f"look with one change: {_medians(changed)}")


def _medians(times: Sequence[tuple[float, float]]) -> str:
    elapsed, used = (statistics.median(column) * 1000 for column in zip(*times, strict=True))
    return f"{elapsed:.1f} ms, {used:.1f} ms CPU"


def _change_and_look(backend: Backend, changes: subprocess.Popen[str]) -> None:
    assert changes.stdin is not None
    before = known = backend.jobs()
    changes.stdin.write("\n")
    changes.stdin.flush()
    while known is before:
        known = backend.jobs()
    backend.nodes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--looks", type=int, default=20)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.nodes, options.pods)
        return
    words = [sys.executable, __file__, "--serve", "--nodes", str(options.nodes), "--pods", str(options.pods)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        measure(server.stdout.readline().strip(), server, options)
        server.kill()


if __name__ == "__main__":
    main()
