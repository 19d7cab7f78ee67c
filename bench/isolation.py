"""The effect of faulty neighbors on a healthy cluster: the time from submission to promise, and page latency.

    python bench/isolation.py            about four minutes; --seconds 60 --json

It starts its own instance like `make up`, with the demo, and adds a healthy simulated cluster of 64 nodes. Jobs are
submitted to that cluster over the API, two per second, and four pages are requested in turn: first undisturbed, then
with all of these: three clusters whose slurmrestd and exporter accept connections and never answer, replays that
compute all the time, a model endpoint that does not answer for 300 s, and a running training job whose log is a FIFO.
Promises are measured by the database's clock. Everything is on loopback. Prints a table to stderr, and JSON to stdout
with --json.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import shutil
import socket
import statistics
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.acceptance.instance import running  # noqa: E402
from tests.scheduling.simulation.slurm.running import ClusterProcess  # noqa: E402

SUBMIT_INTERVAL_S = 0.5
WARMUP_S = 20.0
GOAL_PROMISE_S, GOAL_PAGE_MS = 2.0, 300.0
MODEL_TIMEOUT_S = "300"


class UnresponsiveServer:
    """A server that accepts connections and never answers."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.accepted: list[socket.socket] = []
        threading.Thread(target=self._accept_connections, daemon=True).start()

    def _accept_connections(self) -> None:
        while True:
            self.accepted.append(self.socket.accept()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="Duration of each of the two parts.")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    model = UnresponsiveServer()
    agent = {"ACME_AGENT_URL": f"{model.address}/v1", "ACME_AGENT_MODEL": "slow"}
    limits = {"ACME_AGENT_TIMEOUT_S": MODEL_TIMEOUT_S, "ACME_AGENT_BUDGET_S": "600"}
    with ExitStack() as stack:
        instance, _ = stack.enter_context(running(DEMO="1", **agent, **limits))
        home = instance.place.var.parent
        healthy = stack.enter_context(ClusterProcess(home / "healthy", "--nodes", "64"))
        os.environ.update(instance.surroundings())
        figures = measure_isolation(instance, healthy, home, options.seconds, model)
    print(latency_table(figures), file=sys.stderr)
    if options.json:
        print(json.dumps(figures, indent=1))


def measure_isolation(
    instance: Any, healthy: ClusterProcess, home: Path, seconds: float, model: UnresponsiveServer
) -> dict[str, Any]:
    os.environ["DJANGO_SETTINGS_MODULE"] = "acmeweb.settings"
    import django

    django.setup()
    from jobs.models import Cluster
    from tests import make
    from tests.jobs.api import api_make
    from tests.patience import until

    place = {"address": healthy.address, "token_file": str(shared_token(instance, healthy)), "api_user": "acme"}
    make.cluster("healthy", nodes=0, policy="fifo", log_root=str(healthy.log_root), **place)
    person = api_make.person("bench", in_team="bench")
    browser = BenchUser(instance.port, api_make.token(person), person)
    until(lambda: Cluster.objects.get(name="healthy").nodes.exists(), what="the healthy cluster reports no nodes")
    time.sleep(WARMUP_S)
    figures = {"machine": machine_info(), "undisturbed": measure_part(browser, seconds)}
    logs = home / "logs"
    logs.mkdir()
    silent = start_disturbances(logs)
    figures["disturbed"] = measure_part(browser, seconds)
    return figures | {"disturbance": disturbance_counts(silent, model), "machine_after": machine_info()}


def shared_token(instance: Any, cluster: ClusterProcess) -> Path:
    """Store the cluster's token where Acme accepts tokens, readable by Acme's user; return its path."""
    directory = instance.place.var / "tokens"
    directory.mkdir(exist_ok=True)
    file = directory / "healthy"
    file.write_text(cluster.token)
    for path in (directory, file):
        shutil.chown(path, instance.place.work.stat().st_uid, instance.place.work.stat().st_gid)
    return file


# --- disturbances


def start_disturbances(logs: Path) -> list[UnresponsiveServer]:
    from jobs.models import Attempt
    from tests import make
    from tests.failures import make as failure_make
    from tests.jobs.api import api_make

    silent = [UnresponsiveServer() for _ in range(3)]
    for number, server in enumerate(silent, start=1):
        metrics = f"{server.address}/metrics"
        make.cluster(f"silent-{number}", nodes=2, address=server.address, metrics_address=metrics)
    failure_make.end(logs, start_training_job(logs, 0), "nobody knows what this means\n" * 50)
    hanging = start_training_job(logs, 1)
    os.mkfifo(logs / "fifo.log")
    Attempt.objects.filter(pk=hanging.pk).update(log_path="fifo.log")
    for number in range(5):
        api_make.simulation(
            make.user("planner"), trace="acme:seren", policies=["fifo", "acme", "qssf"], params={"seed": number}
        )
    return silent


def start_training_job(logs: Path, gpu: int) -> Any:
    """Create a running training job on an unreachable cluster, so that only the database has its state."""
    from datetime import timedelta

    from jobs.actions import jobs as job_actions
    from jobs.models import clock
    from tests import make

    home = make.cluster("records", log_root=str(logs))
    job = make.job(by="planner", cluster=home, gpus_per_node=1, kind="pretrain", requeue_limit=0)
    attempt = make.attempt(job, on=("records-001",), gpus=(gpu,))
    job_actions.confirm_start(attempt, started_at=clock.now() - timedelta(hours=2), author=make.LOOP)
    return attempt


def disturbance_counts(silent: list[UnresponsiveServer], model: UnresponsiveServer) -> dict[str, Any]:
    """Return evidence that every disturbance was active."""
    from failures.models import LogReadState, ModelOpinion
    from scheduling.models import OpenCircuit, Simulation

    return {
        "calls to silent servers": [len(server.accepted) for server in silent],
        "open circuits": OpenCircuit.objects.count(),
        "replay at work": Simulation.objects.filter(state="RUNNING").exists(),
        "calls to the model": len(model.accepted),
        "model asked, no answer yet": ModelOpinion.objects.filter(answered_at=None).exists(),
        "FIFO looked at": LogReadState.objects.filter(
            attempt__log_path="fifo.log", steps_looked_at__isnull=False
        ).exists(),
    }


# --- measurements


class BenchUser:
    """One user with an API token and a browser session."""

    def __init__(self, port: int, token: str, person: Any) -> None:
        from django.test import Client

        client = Client()
        client.force_login(person)
        self.port, self.token = port, token
        self.cookie = f"sessionid={client.cookies['sessionid'].value}"

    def submit(self) -> str:
        body = {"name": "bench", "team": "bench", "cluster": "healthy", "nodes": 1, "gpus_per_node": 1}
        body |= {"command": "true", "time_limit": 600, "environment": {"SIM_DURATION_S": "20"}}
        status, raw, _ = self.request("POST", "/api/v1/jobs/", {"Authorization": f"Bearer {self.token}"}, body)
        assert status == 201, raw[:500]
        return str(json.loads(raw)["id"])

    def page(self, path: str) -> float:
        status, raw, took = self.request("GET", path, {"Cookie": self.cookie})
        assert status == 200, (path, status, raw[:200])
        return took

    def request(self, method: str, path: str, headers: dict[str, str], body: Any = None) -> tuple[int, bytes, float]:
        raw = None if body is None else json.dumps(body)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        began = time.perf_counter()
        connection.request(method, path, raw, headers | {"Content-Type": "application/json"} if raw else headers)
        response = connection.getresponse()
        answer = response.read()
        took = time.perf_counter() - began
        connection.close()
        return response.status, answer, took


def measure_part(browser: BenchUser, seconds: float) -> dict[str, Any]:
    ids: list[str] = []
    pages: dict[str, list[float]] = {"home": [], "jobs": [], "queue": [], "job": []}
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        due = time.monotonic() + SUBMIT_INTERVAL_S
        ids.append(browser.submit())
        name = list(pages)[len(ids) % len(pages)]
        pages[name].append(browser.page(page_path(name, ids)))
        time.sleep(max(0.0, due - time.monotonic()))
    return {
        "promise": promise_latencies(ids),
        "pages": {name: latency_summary(took, 1000) for name, took in pages.items()},
    }


def page_path(name: str, ids: list[str]) -> str:
    return {"home": "/", "jobs": "/jobs/", "queue": "/queue/?cluster=healthy", "job": f"/jobs/{ids[0]}/"}[name]


def promise_latencies(ids: list[str]) -> dict[str, Any]:
    from jobs.models import Attempt

    rows: list[tuple[Any, Any]] = []
    deadline = time.monotonic() + 120
    while len(rows) < len(ids) and time.monotonic() < deadline:
        first = Attempt.objects.filter(job__public_id__in=ids, number=1)
        rows = list(first.values_list("promised_at", "job__submitted_at"))
        time.sleep(0.2)
    waits = [(promised - submitted).total_seconds() for promised, submitted in rows]
    return latency_summary(waits, 1) | {"never": len(ids) - len(rows)}


def latency_summary(values: list[float], factor: float) -> dict[str, float]:
    ordered = sorted(value * factor for value in values)
    high = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    figures = {"p50": statistics.median(ordered), "p95": high, "max": ordered[-1]}
    return {name: round(value, 3) for name, value in figures.items()} | {"count": len(ordered)}


def machine_info() -> str:
    load = os.getloadavg()[0]
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {load:.1f}"


def latency_table(figures: dict[str, Any]) -> str:
    rows = [
        f"before: {figures['machine']}; after: {figures['machine_after']}",
        f"{'':24}{'undisturbed':>28}{'disturbed':>28}",
    ]
    rows.append(
        latency_row("submit to promise, s", figures, lambda one: one["promise"]) + f"   goal p95 {GOAL_PROMISE_S:.0f} s"
    )
    rows.append(
        f"{'never promised':24}" + "".join(f"{figures[when]['promise']['never']:>28}" for when in MEASURED_PARTS)
    )
    for name in figures["disturbed"]["pages"]:
        goal = f"   goal p95 {GOAL_PAGE_MS:.0f} ms"
        rows.append(latency_row(f"page {name}, ms", figures, lambda one, name=name: one["pages"][name]) + goal)
    return "\n".join([*rows, f"disturbance: {figures['disturbance']}"])


def latency_row(title: str, figures: dict[str, Any], of: Any) -> str:
    cells = ["{p50:.2f} / {p95:.2f} / {max:.2f} ({count})".format(**of(figures[when])) for when in MEASURED_PARTS]
    return f"{title:24}" + "".join(f"{cell:>28}" for cell in cells)


MEASURED_PARTS = ("undisturbed", "disturbed")

if __name__ == "__main__":
    main()
