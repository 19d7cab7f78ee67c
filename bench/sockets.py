"""Pages under load: a thousand open sockets, the map of ten thousand GPUs now and in the past, the home page.

    python bench/sockets.py                 everything; about six minutes on a machine with two cores
    python bench/sockets.py sockets         only the sockets; also: map, home
    python bench/sockets.py map --history 100000

It starts its own instance like `make up`. Sockets are opened as by a browser, with a session and the extensions that
Chromium offers. Ten times per second a row is changed and its topic published, as Acme does for each change. Measures
the time from the return of the commit until each socket has the message, in one process with one clock; the cost of
that process is shown too. Prints a table to stderr and JSON to stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import gzip
import itertools
import json
import os
import platform
import statistics
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import api_load, load
from bench.api_load import BenchInstance
from bench.load import build_request
from tests.acceptance.instance import running

SOCKET_COUNT, CHANGES_PER_S, CHANGE_SECONDS = 1000, 10, 30
MAX_HANDSHAKES = 32  # concurrent handshakes
QUIET_INTERVAL_S = 3  # measure until no message arrives for this long
NODE_COUNT, GPUS_PER_NODE, LIVE_JOBS = 1250, 8, 50_000
EVENTS_PER_NODE = 40  # per node in thirty days
PAGE_READS = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["sockets", "map", "home"])
    parser.add_argument("--history", type=int, default=1_000_000, help="Number of finished jobs.")
    options = parser.parse_args()
    with running(DEMO="0") as (instance, _):
        bench = BenchInstance(instance)
        figures: dict[str, Any] = {
            "machine": {"cores": os.cpu_count(), "load_before": os.getloadavg()[0], "python": platform.python_version()}
        }
        if "sockets" in options.parts:
            figures["sockets"] = measure_sockets(bench)
        if {"map", "home"} & set(options.parts):
            with instance.without("workers"):  # they would process each part of the history as it appears
                fill_cluster(bench, options.history)
        if "map" in options.parts:
            figures["map"] = measure_map(bench)
        if "home" in options.parts:
            figures["home"] = measure_pages(bench, {"home": "/"})
        figures["machine"]["load_after"] = os.getloadavg()[0]
    print(api_load.format_figures(figures), file=sys.stderr)
    print(json.dumps(figures, indent=1))


# --- sockets


class LivePageSocket(asyncio.Protocol):
    """One page: the handshake, then frames from the server. Stores only the time of each number."""

    def __init__(self, head: bytes, topic: str) -> None:
        self.head, self.topic = head, topic
        self.received: list[tuple[int, float]] = []  # number, time
        self.buffer, self.inflate, self.open = b"", None, False
        self.joined = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.head)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self.buffer += data
        if not self.open:
            head, end, remainder = self.buffer.partition(b"\r\n\r\n")
            if not end:
                return
            if not head.startswith(b"HTTP/1.1 101"):
                self.joined.set_exception(SystemExit(f"The handshake was refused: {head[:200]!r}"))
                return
            self.open, self.buffer = True, remainder
            if b"permessage-deflate" in head.lower():
                self.inflate = zlib.decompressobj(-15)
            self._send_text(json.dumps({"join": [self.topic]}).encode())
        while len(self.buffer) >= 2 and len(self.buffer) >= 2 + (size := self.buffer[1] & 127):
            first, payload, self.buffer = self.buffer[0], self.buffer[2 : 2 + size], self.buffer[2 + size :]
            self._handle_frame(first, payload, now)

    def _handle_frame(self, first: int, payload: bytes, now: float) -> None:
        if first & 0x0F == 9:
            self.transport.write(b"\x8a\x80\0\0\0\0")  # a pong
        if first & 0x0F != 1:
            return
        if first & 0x40:
            payload = self.inflate.decompress(payload + b"\0\0\xff\xff")
        message = json.loads(payload)
        if "joined" in message:
            self.joined.set_result(message["joined"][self.topic])
        else:
            self.received.append((message["seq"], now))

    def _send_text(self, text: bytes) -> None:
        self.transport.write(
            bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text
        )  # a mask of zeros leaves the text unchanged


def measure_sockets(bench: BenchInstance) -> dict[str, Any]:
    return asyncio.run(_measure_sockets(bench, api_load.create_session(bench)))


async def _measure_sockets(bench: BenchInstance, key: str) -> dict[str, Any]:
    from jobs.models import Node

    node = await asyncio.to_thread(lambda: Node.objects.order_by("pk").first().pk)
    began = time.perf_counter()
    pages = await _open_sockets(bench, key, f"node:{node}")
    opened = time.perf_counter() - began
    committed: list[float] = []
    before, client_cpu, began = bench.cpu_s(), time.process_time(), time.perf_counter()
    changer = threading.Thread(target=_change_node_rows, args=[node, committed])
    changer.start()
    while changer.is_alive():
        await asyncio.sleep(0.2)
    wall = time.perf_counter() - began
    cores = {name: round((now - before.get(name, 0)) / wall, 2) for name, now in bench.cpu_s().items()}
    client_cpu = time.process_time() - client_cpu
    first = pages[0].joined.result() + 1  # the number of the first change
    before_that = -1
    while (messages := sum(len(page.received) for page in pages)) > before_that:
        before_that = messages
        await asyncio.sleep(QUIET_INTERVAL_S)
    for page in pages:
        page.transport.close()
    late = sorted(1000 * one for page in pages for one in _receipt_delays(page.received, first, committed))
    return {
        "opened": {"sockets": SOCKET_COUNT, "seconds": round(opened, 1), "compressed": bool(pages[0].inflate)},
        "commit to receipt": {
            "changes": len(committed),
            # Commits within MERGE_WINDOW_S share a number, and the later ones seem later than they are
            "merged_or_lost": len(committed) * SOCKET_COUNT - len(late),
            **{f"p{share}_ms": round(late[int(len(late) * share / 100)], 1) for share in (50, 95, 99)},
            "worst_ms": round(late[-1], 1),
        },
        "messages": {"sent": messages, "server_us_each": round(1e6 * wall * sum(cores.values()) / messages, 1)},
        "cores": {**cores, "this_client": round(client_cpu / wall, 2)},
        "server_cores": round(sum(cores.values()), 2),
    }


def _receipt_delays(received: list[tuple[int, float]], first: int, committed: list[float]) -> Iterator[float]:
    """Yield how long after its commit a page knew of each change: from that number, or a later one that replaced it."""
    changes = iter(enumerate(committed, first))
    number, commit = next(changes)
    for seq, at in received:
        while number <= seq:
            yield at - commit
            if (following := next(changes, None)) is None:
                return
            number, commit = following


async def _open_sockets(bench: BenchInstance, key: str, topic: str) -> list[LivePageSocket]:
    place, gate, loop = urlsplit(bench.home), asyncio.Semaphore(MAX_HANDSHAKES), asyncio.get_running_loop()

    async def open_socket() -> LivePageSocket:
        lines = [
            "GET /live/ HTTP/1.1",
            f"Host: {place.netloc}",
            f"Origin: http://{place.netloc}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits",
            f"Cookie: sessionid={key}",
        ]
        head = "\r\n".join([*lines, "", ""]).encode()
        async with gate:
            _, page = await loop.create_connection(lambda: LivePageSocket(head, topic), place.hostname, place.port)
            await page.joined
        return page

    return list(await asyncio.gather(*(open_socket() for _ in range(SOCKET_COUNT))))


def _change_node_rows(node: int, committed: list[float]) -> None:
    """Change the row and publish its topic, as an action does. Appends the time at which each commit had returned."""
    from django.db import connection, transaction

    from acmeweb.common import live
    from jobs.models import Node

    began = time.perf_counter()
    for number in range(CHANGES_PER_S * CHANGE_SECONDS):
        time.sleep(max(0.0, began + number / CHANGES_PER_S - time.perf_counter()))
        with transaction.atomic():
            Node.objects.filter(pk=node).update(reason=f"change {number}")
            transaction.on_commit(lambda: committed.append(time.perf_counter()))
            live.publish_on_commit(f"node:{node}")
    connection.close()


# --- the map, and pages


INSERT_PAST_ALLOCATIONS = """
INSERT INTO jobs_allocation (attempt_id, node_id, gpu, held_at, released_at)
SELECT a.id, (%(nodes)s::bigint[])[1 + place.at / %(gpus)s], place.at %% %(gpus)s, a.promised_at, a.ended_at
FROM (SELECT id, promised_at, ended_at, row_number() OVER (ORDER BY promised_at) AS n FROM jobs_attempt
      WHERE ended_at IS NOT NULL) AS a, LATERAL (SELECT (a.n / 4 %% %(all)s)::int AS at) AS place WHERE a.n %% 4 = 0
"""
# The newest running attempts have a node each
INSERT_LIVE_ALLOCATIONS = """
INSERT INTO jobs_allocation (attempt_id, node_id, gpu, held_at)
SELECT a.id, (%(nodes)s::bigint[])[a.n], gpu, a.promised_at
FROM (SELECT id, promised_at, row_number() OVER (ORDER BY promised_at DESC) AS n FROM jobs_attempt
      WHERE ended_at IS NULL) AS a, generate_series(0, %(gpus)s - 1) AS gpu WHERE a.n <= %(busy)s
"""
INSERT_NODE_EVENTS = """
INSERT INTO jobs_event (at, type, cluster_id, node_id, by, request_id, from_state, to_state, why, detail)
SELECT now() - (n * 30.0 / %(events)s) * interval '1 day', 'node.state_changed', %(cluster)s, node, 'sync', '', 'UP',
  'UP+DRAIN', '', '{}' FROM generate_series(%(events)s, 1, -1) AS n, unnest(%(nodes)s::bigint[]) AS node
"""
# Two days of the load by minute, for the trends on the home page
INSERT_MINUTES = """
INSERT INTO jobs_clusterminute (cluster_id, at, gpus, allocated, closed, utilization, running, waiting, requested)
SELECT %(cluster)s, date_trunc('minute', now()) - n * interval '1 minute', 10000, 8000 + n %% 1000, 100, 55, 8000,
  40000 + n %% 5000, 90000 FROM generate_series(1, 2880) AS n ON CONFLICT DO NOTHING
"""


def fill_cluster(bench: BenchInstance, finished: int) -> None:
    """Create a cluster of ten thousand GPUs, and its jobs of the last 28 hours: ten start per second and take an hour.
    So 36,000 are alive at a time; every fourth has a GPU, which makes 9,000 of the 10,000. What the loops store of past
    hours is stored too: an installation that has run for a month has no backlog of a million jobs."""
    from jobs.models import Cluster, Node
    from tests.jobs.api import api_make

    home = api_make.cluster("history", nodes=0)
    Cluster.objects.filter(pk=home.pk).update(created_at=datetime.now(UTC) - timedelta(days=30))
    Node.objects.bulk_create(
        Node(
            cluster=home,
            name=f"node-{n:04d}",
            gpus=GPUS_PER_NODE,
            rack=f"r{n // 16:02d}",
            leaf=f"l{n // 32:02d}",
            state="MIXED",
        )
        for n in range(NODE_COUNT)
    )
    nodes = list(Node.objects.filter(cluster=home).order_by("name").values_list("pk", flat=True))
    bench.connection.close()
    api_load.fill_history(bench, finished, LIVE_JOBS)
    places = {"nodes": nodes, "gpus": GPUS_PER_NODE, "all": NODE_COUNT * GPUS_PER_NODE, "busy": NODE_COUNT * 4 // 5}
    with psycopg.connect(bench.url(), autocommit=True) as session:
        session.execute("SET session_replication_role = replica")
        session.execute(INSERT_PAST_ALLOCATIONS, places)
        session.execute(INSERT_LIVE_ALLOCATIONS, places)
        session.execute(INSERT_NODE_EVENTS, {"events": EVENTS_PER_NODE, "cluster": home.pk, "nodes": nodes})
        session.execute(INSERT_MINUTES, {"cluster": home.pk})
        for table in ("jobs_allocation", "jobs_event", "jobs_node", "jobs_clusterminute"):
            session.execute(f"VACUUM ANALYZE {table}")
    assert Cluster.objects.filter(name="history").exists()
    store_past_results()
    bench.connection.close()


def store_past_results() -> None:
    """Store the diagnoses of the failed attempts and the ledger of the past hours, as the loops would have done."""
    from failures.models import Diagnosis
    from jobs.core.lifecycle import FAILURE_STATES
    from jobs.models import Attempt, clock
    from scheduling.ledger.loops.periods import store_periods_once

    now = clock.now()
    failed = Attempt.objects.filter(state__in=FAILURE_STATES, diagnosis=None)
    Diagnosis.objects.bulk_create(
        (
            Diagnosis(attempt_id=pk, cluster_id=cluster, failed_at=at, judged_at=at, bundle_stored_at=at)
            for pk, cluster, at in failed.values_list("pk", "job__cluster", "ended_at")
        ),
        batch_size=5000,
        ignore_conflicts=True,
    )
    store_periods_once(now, budget_s=3600)


def create_samples(bench: BenchInstance, nodes: list[int], at: datetime, resolution: int) -> None:
    """Create the telemetry of all GPUs at this time."""
    from jobs.models import Sample

    Sample.objects.bulk_create(
        (
            Sample(
                node_id=node,
                at=at,
                resolution=resolution,
                gpu_util=[float((node * 7 + gpu * 13) % 101) for gpu in range(GPUS_PER_NODE)],
                gpu_temperature_c=[40.0 + (node + gpu * 3) % 40 for gpu in range(GPUS_PER_NODE)],
                xid=[0.0] * GPUS_PER_NODE,
            )
            for node in nodes
        ),
        ignore_conflicts=True,
        batch_size=1000,
    )
    bench.connection.close()


def measure_map(bench: BenchInstance) -> dict[str, Any]:
    from jobs.core.telemetry_math import interval_start
    from jobs.models import Node, Resolution

    nodes = list(Node.objects.filter(cluster__name="history").values_list("pk", flat=True))
    now = datetime.now(UTC)
    requests = {"now": ""}
    for hours in (1, 6, 20):
        at = interval_start(now - timedelta(hours=hours), Resolution.FIVE_MINUTES)
        create_samples(bench, nodes, at, Resolution.FIVE_MINUTES)
        requests[f"{hours} h ago"] = f"?at={at:%Y-%m-%dT%H:%M:%SZ}"
    create_samples(bench, nodes, interval_start(now, Resolution.RAW), Resolution.RAW)
    paths = {f"map, {when}": f"/map/history/data/{at}" for when, at in requests.items()}
    paths |= {"errors, now": "/map/history/errors/", "page of 6 h ago": f"/map/{requests['6 h ago']}&cluster=history"}
    return measure_pages(bench, paths)


def measure_pages(bench: BenchInstance, paths: dict[str, str]) -> dict[str, Any]:
    """Measure over one connection, as a browser does; bytes are those transferred."""
    cookie = f"sessionid={api_load.create_session(bench)}"
    figures = {}
    for name, path in paths.items():
        sent: list[bytes] = []
        requests = build_request("GET", path, "", Cookie=cookie, Accept_Encoding="gzip")

        def check_page(status: int, body: bytes, sent: list[bytes] = sent) -> None:
            if status != 200:
                raise SystemExit(f"status {status}: {body[:500]!r}")
            sent.append(body)

        load.run_load(bench.home, itertools.repeat(requests), connections=1, count=5)
        before = bench.cpu_s()
        measured = load.run_load(
            bench.home, itertools.repeat(requests), connections=1, count=PAGE_READS, check=check_page
        )
        spent = {n: after - before.get(n, 0) for n, after in bench.cpu_s().items()}
        figures[name] = measured.figures() | {
            "web_ms": round(1000 * sum(s for n, s in spent.items() if n.startswith("web")) / PAGE_READS, 1),
            "database_ms": round(1000 * sum(s for n, s in spent.items() if n.startswith("post")) / PAGE_READS, 1),
            "bytes": round(statistics.median(map(len, sent))),
            "bytes_unpacked": len(gzip.decompress(sent[-1]) if sent[-1][:2] == b"\x1f\x8b" else sent[-1]),
        }
    return figures


if __name__ == "__main__":
    main()
