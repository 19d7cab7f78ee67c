"""The live view of a terminal: GPUs of each cluster, what runs, what waits and why."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from acme_client import table
from acme_client.api import Acme, Unreachable

LIVE_STATES = "RUNNING,SUSPENDED"
NODES_REFRESH_S = 10.0
UNAVAILABLE_CODES = ("down", "drain", "drng", "fail", "maint", "unk")
HEADER_LINES = 4


@dataclass(frozen=True, kw_only=True)
class LiveSnapshot:
    at: datetime
    nodes: Sequence[table.TableRow] = ()
    running: Sequence[table.TableRow] = ()
    waiting: Sequence[table.TableRow] = ()
    trouble: str = ""


@dataclass(kw_only=True)
class LiveStatusReader:
    """Asks the server; the nodes, which are many and change seldom, not every time."""

    acme: Acme
    query: dict[str, Any] = field(default_factory=dict)
    nodes: list[table.TableRow] = field(default_factory=list)
    nodes_at: float = float("-inf")

    def look(self, rows: int, clock: Callable[[], float] = time.monotonic) -> LiveSnapshot:
        now = datetime.now(UTC)
        if clock() - self.nodes_at >= NODES_REFRESH_S:
            fields = {"fields": "cluster,name,code,gpus,gpus_held"}
            cluster = {"cluster": self.query["cluster"]} if "cluster" in self.query else {}
            self.nodes = list(self.acme.pages("nodes/", fields | cluster, 100_000))
            self.nodes_at = clock()
        running = self._read_jobs({"state__in": LIVE_STATES, "ordering": "-started_at"}, rows)
        waiting = self._read_jobs({"state": "PENDING", "ordering": "-priority,submitted_at"}, rows)
        return LiveSnapshot(at=now, nodes=self.nodes, running=running, waiting=waiting)

    def _read_jobs(self, wanted: dict[str, Any], rows: int) -> list[table.TableRow]:
        return list(self.acme.pages("jobs/", self.query | wanted, rows))


def render_snapshot(seen: LiveSnapshot, lines: int) -> Group:
    """All of it in so many lines."""
    room = max(4, lines - HEADER_LINES - len({node["cluster"] for node in seen.nodes}))
    waiting = min(len(seen.waiting), max(room // 2, room - len(seen.running)))
    columns = table.job_columns(seen.at, wide=False)
    shown = [*seen.running[: room - waiting], *seen.waiting[:waiting]]
    jobs = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), expand=True)
    for title, _ in columns:
        jobs.add_column(title, no_wrap=True, overflow="ellipsis", ratio=4 if title == "NODELIST(REASON)" else None)
    for row in shown:
        style = "dim" if row["state"] == "PENDING" else ""
        jobs.add_row(*(Text(table.clean_text(read(row))) for _, read in columns), style=style)
    head = [Text(f"acme  {seen.at:%H:%M:%S} UTC   q or Ctrl-C ends", style="bold")]
    head += [Text(f"stale: {table.clean_text(seen.trouble)}", style="red")] if seen.trouble else []
    return Group(
        *head, *(capacity_line(name, nodes) for name, nodes in nodes_by_cluster(seen.nodes).items()), Text(""), jobs
    )


def nodes_by_cluster(nodes: Sequence[table.TableRow]) -> dict[str, list[table.TableRow]]:
    found: dict[str, list[table.TableRow]] = {}
    for node in nodes:
        found.setdefault(node["cluster"], []).append(node)
    return found


def capacity_line(name: str, nodes: Sequence[table.TableRow]) -> Text:
    """`seren  gpus 120/256 [#####.....]  nodes: 12 alloc, 3 idle, 1 drain`"""
    held, total = (sum(node[field] for node in nodes) for field in ("gpus_held", "gpus"))
    filled = round(20 * held / total) if total else 0
    codes = Counter(str(node["code"]).rstrip("*") for node in nodes)
    line = Text(f"{table.clean_text(name):12} gpus {held}/{total} [{'#' * filled}{'.' * (20 - filled)}]  nodes: ")
    for place, (code, count) in enumerate(codes.most_common()):
        style = "bold red" if code in UNAVAILABLE_CODES else ""
        line.append(", " if place else "").append(f"{count} {table.clean_text(code)}", style=style)
    return line


def show_live_view(looking: LiveStatusReader, every_s: float, console: Console, ended: Callable[[float], bool]) -> None:
    """Until `ended`, which waits so many seconds for a key. A server that is away leaves the last view, and says so."""
    seen = looking.look(console.height)
    with Live(render_snapshot(seen, console.height), console=console, screen=True, auto_refresh=False) as live:
        live.refresh()
        while not ended(every_s):
            try:
                seen = looking.look(console.height)
            except Unreachable as error:
                seen = LiveSnapshot(
                    at=seen.at, nodes=seen.nodes, running=seen.running, waiting=seen.waiting, trouble=str(error)
                )
            live.update(render_snapshot(seen, console.height), refresh=True)
