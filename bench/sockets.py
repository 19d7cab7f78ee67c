"""The pages under load: a thousand open sockets, the map of ten thousand GPUs now and then, the first page.

    python bench/sockets.py                 everything; about six minutes on a machine with two cores
    python bench/sockets.py sockets         the sockets only; also: map, home
    python bench/sockets.py map --history 100000

It starts an instance of its own, as `make up` does. Sockets are opened as a browser opens them, with a session and
the extensions that Chromium offers; ten times a second a row is changed and its topic told, as every change of ours is.
From the return of the commit until each socket has the message is what is measured, in one process with one clock; what
that process itself costs stands beside it. Prints a table to stderr and JSON to stdout.
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

from bench import door, load
from bench.door import BenchInstance
from bench.load import build_request
from tests.acceptance.instance import running

SOCKET_COUNT, CHANGES_PER_S, CHANGE_SECONDS = 1000, 10, 30
MAX_HANDSHAKES = 32  # at once
QUIET_INTERVAL_S = 3  # without a message
NODE_COUNT, GPUS_PER_NODE, LIVE_JOBS = 1250, 8, 50_000
EVENTS_PER_NODE = 40  # of each node in thirty days
PAGE_READS = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["sockets", "map", "home"])
    parser.add_argument("--history", type=int, default=1_000_000, help="Finished jobs.")
    options = parser.parse_args()
    with running(DEMO="0") as (instance, _):
        bench = BenchInstance(instance)
        found: dict[str, Any] = {
            "machine": {"cores": os.cpu_count(), "load_before": os.getloadavg()[0], "python": platform.python_version()}
        }
        if "sockets" in options.parts:
            found["sockets"] = measure_sockets(bench)
        if {"map", "home"} & set(options.parts):
            fill_cluster(bench, options.history)
        if "map" in options.parts:
            found["map"] = measure_map(bench)
        if "home" in options.parts:
            found["home"] = measure_pages(bench, {"home": "/"})
        found["machine"]["load_after"] = os.getloadavg()[0]
    print(door.format_figures(found), file=sys.stderr)
    print(json.dumps(found, indent=1))


# --- sockets


class LivePageSocket(asyncio.Protocol):
    """One page: the handshake, then frames as the server sends them. Nothing is kept but the time of each number."""

    def __init__(self, head: bytes, topic: str) -> None:
        self.head, self.topic = head, topic
        self.heard: list[tuple[int, float]] = []  # number, when
        self.buffer, self.inflate, self.open = b"", None, False
        self.joined = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.head)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self.buffer += data
        if not self.open:
            head, end, rest = self.buffer.partition(b"\r\n\r\n")
            if not end:
                return
            if not head.startswith(b"HTTP/1.1 101"):
                self.joined.set_exception(SystemExit(f"the handshake was refused: {head[:200]!r}"))
                return
            self.open, self.buffer = True, rest
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
        told = json.loads(payload)
        if "joined" in told:
            self.joined.set_result(told["joined"][self.topic])
        else:
            self.heard.append((told["seq"], now))

    def _send_text(self, text: bytes) -> None:
        self.transport.write(bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text)  # a mask of zeros changes nothing


def measure_sockets(bench: BenchInstance) -> dict[str, Any]:
    return asyncio.run(_measure_sockets(bench, door.create_session(bench)))


async def _measure_sockets(bench: BenchInstance, key: str) -> dict[str, Any]:
    from jobs.models import Node

    node = await asyncio.to_thread(lambda: Node.objects.order_by("pk").first().pk)
    began = time.perf_counter()
    pages = await _open_sockets(bench, key, f"node:{node}")
    opened = time.perf_counter() - began
    committed: list[float] = []
    before, mine, began = bench.cpu_s(), time.process_time(), time.perf_counter()
    changer = threading.Thread(target=_change_node_rows, args=[node, committed])
    changer.start()
    while changer.is_alive():
        await asyncio.sleep(0.2)
    wall = time.perf_counter() - began
    cores = {name: round((now - before.get(name, 0)) / wall, 2) for name, now in bench.cpu_s().items()}
    mine = time.process_time() - mine
    first = pages[0].joined.result() + 1  # the number of the first change
    before_that = -1
    while (messages := sum(len(page.heard) for page in pages)) > before_that:
        before_that = messages
        await asyncio.sleep(QUIET_INTERVAL_S)
    for page in pages:
        page.transport.close()
    late = sorted(1000 * one for page in pages for one in _receipt_delays(page.heard, first, committed))
    return {
        "opened": {"sockets": SOCKET_COUNT, "seconds": round(opened, 1), "compressed": bool(pages[0].inflate)},
        "commit to receipt": {
            "changes": len(committed),
            # Two commits within MERGE_S of each other have one number, and the later ones seem later than they are
            "merged_or_lost": len(committed) * SOCKET_COUNT - len(late),
            **{f"p{share}_ms": round(late[int(len(late) * share / 100)], 1) for share in (50, 95, 99)},
            "worst_ms": round(late[-1], 1),
        },
        "messages": {"sent": messages, "server_us_each": round(1e6 * wall * sum(cores.values()) / messages, 1)},
        "cores": {**cores, "this_client": round(mine / wall, 2)},
        "server_cores": round(sum(cores.values()), 2),
    }


def _receipt_delays(heard: list[tuple[int, float]], first: int, committed: list[float]) -> Iterator[float]:
    """How long after its commit a page knew of each change: from that number, or a higher one that took its place."""
    changes = iter(enumerate(committed, first))
    number, commit = next(changes)
    for seq, at in heard:
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
    """As an action does: the row, then the hint after the commit. When each commit had returned."""
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
# The newest of those who run have a node each
INSERT_LIVE_ALLOCATIONS = """
INSERT INTO jobs_allocation (attempt_id, node_id, gpu, held_at)
SELECT a.id, (%(nodes)s::bigint[])[a.n], gpu, a.promised_at
FROM (SELECT id, promised_at, row_number() OVER (ORDER BY promised_at DESC) AS n FROM jobs_attempt
      WHERE ended_at IS NULL) AS a, generate_series(0, %(gpus)s - 1) AS gpu WHERE a.n <= %(busy)s
"""
INSERT_NODE_EVENTS = """
INSERT INTO jobs_event (at, what, cluster_id, node_id, by, request_id, from_state, to_state, why, detail)
SELECT now() - (n * 30.0 / %(events)s) * interval '1 day', 'node.moved', %(cluster)s, node, 'sync', '', 'UP',
  'UP+DRAIN', '', '{}' FROM generate_series(%(events)s, 1, -1) AS n, unnest(%(nodes)s::bigint[]) AS node
"""


def fill_cluster(bench: BenchInstance, finished: int) -> None:
    """A cluster of ten thousand GPUs, and what became of its jobs in the last 28 hours: ten begin each second and take
    an hour. So 36,000 are alive at once; every fourth has a GPU, which makes 9,000 of the 10,000."""
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
    door.fill_history(bench, finished, LIVE_JOBS)
    places = {"nodes": nodes, "gpus": GPUS_PER_NODE, "all": NODE_COUNT * GPUS_PER_NODE, "busy": NODE_COUNT * 4 // 5}
    with psycopg.connect(bench.url(), autocommit=True) as session:
        session.execute("SET session_replication_role = replica")
        session.execute(INSERT_PAST_ALLOCATIONS, places)
        session.execute(INSERT_LIVE_ALLOCATIONS, places)
        session.execute(INSERT_NODE_EVENTS, {"events": EVENTS_PER_NODE, "cluster": home.pk, "nodes": nodes})
        for table in ("jobs_allocation", "jobs_event", "jobs_node"):
            session.execute(f"VACUUM ANALYZE {table}")
    assert Cluster.objects.filter(name="history").exists()
    bench.connection.close()


def create_samples(bench: BenchInstance, nodes: list[int], at: datetime, resolution: int) -> None:
    """Telemetry of all GPUs at this moment."""
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
    asked = {"now": ""}
    for hours in (1, 6, 20):
        at = interval_start(now - timedelta(hours=hours), Resolution.FIVE_MINUTES)
        create_samples(bench, nodes, at, Resolution.FIVE_MINUTES)
        asked[f"{hours} h ago"] = f"?at={at:%Y-%m-%dT%H:%M:%SZ}"
    create_samples(bench, nodes, interval_start(now, Resolution.RAW), Resolution.RAW)
    paths = {f"map, {when}": f"/map/history/data/{at}" for when, at in asked.items()}
    paths |= {"errors, now": "/map/history/errors/", "page of 6 h ago": f"/map/{asked['6 h ago']}&cluster=history"}
    return measure_pages(bench, paths)


def measure_pages(bench: BenchInstance, paths: dict[str, str]) -> dict[str, Any]:
    """Over one connection, as a browser asks; bytes are those that travel."""
    cookie = f"sessionid={door.create_session(bench)}"
    found = {}
    for name, path in paths.items():
        sent: list[bytes] = []
        asked = build_request("GET", path, "", Cookie=cookie, Accept_Encoding="gzip")

        def check_page(status: int, body: bytes, sent: list[bytes] = sent) -> None:
            if status != 200:
                raise SystemExit(f"status {status}: {body[:500]!r}")
            sent.append(body)

        load.run_load(bench.home, itertools.repeat(asked), connections=1, count=5)
        before = bench.cpu_s()
        measured = load.run_load(bench.home, itertools.repeat(asked), connections=1, count=PAGE_READS, check=check_page)
        spent = {n: after - before.get(n, 0) for n, after in bench.cpu_s().items()}
        found[name] = measured.figures() | {
            "web_ms": round(1000 * sum(s for n, s in spent.items() if n.startswith("web")) / PAGE_READS, 1),
            "database_ms": round(1000 * sum(s for n, s in spent.items() if n.startswith("post")) / PAGE_READS, 1),
            "bytes": round(statistics.median(map(len, sent))),
            "bytes_unpacked": len(gzip.decompress(sent[-1]) if sent[-1][:2] == b"\x1f\x8b" else sent[-1]),
        }
    return found


if __name__ == "__main__":
    main()
