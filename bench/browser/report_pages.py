"""Reports and the submit preview with the demo's history.

    python bench/browser/report_pages.py VAR [--rounds N] [--profile]

VAR is the ACME_VAR of a demo whose history is complete (`make up`, then wait two minutes). Its PostgreSQL and Valkey
must run, the rest may be stopped: then nothing else needs the processor, and the ledger stays as it is. Requests are
served in this process, so the first one also imports modules and compiles templates. "own" and "database" are CPU
seconds, which a busy machine changes less than the wall time. The database works without parallel workers here, because
their time could not be measured. `--profile` prints the slowest statements and functions of one more round.
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import os
import pstats
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import django

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "acmeweb.settings")

GOALS_S = {"report of 30 days": 1.0, "report of 7 days": 0.5, "submit preview": 1.0}
MAX_STATEMENTS_SHOWN, MAX_FUNCTIONS_SHOWN = 12, 30


@dataclass
class Statements:
    """The statements of one request with their wall time."""

    took: list[tuple[float, str]] = field(default_factory=list)

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        began = time.perf_counter()
        try:
            return execute(sql, params, many, context)
        finally:
            self.took.append((time.perf_counter() - began, sql))


@dataclass(frozen=True, kw_only=True)
class RequestCost:
    wall_s: float
    own_cpu_s: float
    database_cpu_s: float
    statements: Statements


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("var", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    os.environ["ACME_VAR"] = str(options.var)  # its static files
    _read_environment(options.var / "run" / "env")
    django.setup()
    requests = dict(zip(GOALS_S, _requests(), strict=True))
    print(f"{'page':20}{'':8}{'wall s':>9}{'own s':>9}{'database s':>12}{'statements':>12}{'goal s':>9}")
    for page, request in requests.items():
        costs = [_measure(request) for _ in range(options.rounds)]
        best = min(costs, key=lambda cost: cost.own_cpu_s + cost.database_cpu_s)
        _print_cost(page, "first", costs[0])
        _print_cost("", "best", best, f"{GOALS_S[page]:9.1f}")
        if options.profile:
            _profile(request)
    return 0


def _read_environment(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    os.environ.update(line.split("=", 1) for line in lines)


def _requests() -> Iterator[Callable[[], None]]:
    from django.contrib.auth import get_user_model
    from django.db.models import Count, Q
    from django.test import Client

    from jobs.models import Cluster, Team

    client, admin = Client(SERVER_NAME="localhost"), get_user_model().objects.get(username="admin")
    client.force_login(admin)
    queue = Cluster.objects.annotate(waiting=Count("jobs", filter=Q(jobs__state="PENDING"))).order_by("-waiting")[0]
    form = {"team": Team.objects.order_by("name")[0].pk, "cluster": queue.pk, "kind": "pretrain", "command": "train.sh"}
    form |= {"gpus_per_node": 8, "time_limit": "12:00:00", "priority": 0, "requeue_limit": 3}
    headers = {"HX-Request": "true", "HX-Target": "section#preview"}
    yield lambda: _check(client.get("/reports/?days=30"), "Idle, GPU-h")
    yield lambda: _check(client.get("/reports/?days=7"), "Idle, GPU-h")
    nodes = itertools.count(1)  # another request each time, because answers are kept for a while

    def preview() -> None:
        _check(client.post("/jobs/new/preview/", form | {"nodes": next(nodes)}, headers=headers), "as of ")

    yield preview


def _check(response: Any, content: str) -> None:
    if response.status_code != 200 or content not in response.content.decode():
        raise SystemExit(f"{response.request['PATH_INFO']}: {response.status_code} {response.content[:500]!r}")


def _measure(request: Callable[[], None]) -> RequestCost:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SET max_parallel_workers_per_gather = 0")
        cursor.execute("SELECT pg_backend_pid()")
        pid = cursor.fetchone()[0]
    statements = Statements()
    wall, own, database = time.perf_counter(), time.process_time(), _cpu_s(pid)
    with connection.execute_wrapper(statements), _connection_stays_open():
        request()
    return RequestCost(
        wall_s=time.perf_counter() - wall, own_cpu_s=time.process_time() - own, database_cpu_s=_cpu_s(pid) - database,
        statements=statements,
    )  # fmt: skip


@contextmanager
def _connection_stays_open() -> Iterator[None]:
    """Do not close the connection at the end of a request: its process is measured."""
    from django.core.signals import request_finished, request_started
    from django.db import close_old_connections

    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    try:
        yield
    finally:
        for signal in (request_started, request_finished):
            signal.connect(close_old_connections)


def _cpu_s(pid: int) -> float:
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, after_name[11:13])) / os.sysconf("SC_CLK_TCK")


def _print_cost(page: str, which: str, cost: RequestCost, goal: str = "") -> None:
    figures = f"{cost.wall_s:9.2f}{cost.own_cpu_s:9.2f}{cost.database_cpu_s:12.2f}{len(cost.statements.took):12}"
    print(f"{page:20}{which:8}{figures}{goal}", flush=True)


def _profile(request: Callable[[], None]) -> None:
    profiler = cProfile.Profile()
    profiler.enable()
    cost = _measure(request)
    profiler.disable()
    for took, sql in sorted(cost.statements.took, reverse=True)[:MAX_STATEMENTS_SHOWN]:
        print(f"    {took:8.3f} s  {' '.join(sql.split())[:200]}")
    pstats.Stats(profiler).sort_stats("cumulative").print_stats(MAX_FUNCTIONS_SHOWN)


if __name__ == "__main__":
    sys.exit(main())
