"""The live view for terminals: GPUs of each cluster, running jobs, and pending jobs with their reason."""

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
    """What one refresh shows."""

    at: datetime
    nodes: Sequence[table.TableRow] = ()
    running: Sequence[table.TableRow] = ()
    waiting: Sequence[table.TableRow] = ()
    error: str = ""


@dataclass(kw_only=True)
class LiveStatusReader:
    """Reads jobs at each refresh, and nodes less often, because they are many and rarely change."""

    acme: Acme
    query: dict[str, Any] = field(default_factory=dict)
    nodes: list[table.TableRow] = field(default_factory=list)
    nodes_at: float = float("-inf")

    def look(self, rows: int, clock: Callable[[], float] = time.monotonic) -> LiveSnapshot:
        now = datetime.now(UTC)
        if clock() - self.nodes_at >= NODES_REFRESH_S:
            fields = {"fields": "cluster,name,code,gpus,gpus_allocated"}
            cluster = {"cluster": self.query["cluster"]} if "cluster" in self.query else {}
            self.nodes = list(self.acme.pages("nodes/", fields | cluster, 100_000))
            self.nodes_at = clock()
        running = self._read_jobs({"state__in": LIVE_STATES, "ordering": "-started_at"}, rows)
        waiting = self._read_jobs({"state": "PENDING", "ordering": "-priority,submitted_at"}, rows)
        return LiveSnapshot(at=now, nodes=self.nodes, running=running, waiting=waiting)

    def _read_jobs(self, filters: dict[str, Any], rows: int) -> list[table.TableRow]:
        return list(self.acme.pages("jobs/", self.query | filters, rows))


def render_snapshot(snapshot: LiveSnapshot, lines: int) -> Group:
    """Render the snapshot in this many lines."""
    available = max(4, lines - HEADER_LINES - len({node["cluster"] for node in snapshot.nodes}))
    waiting = min(len(snapshot.waiting), max(available // 2, available - len(snapshot.running)))
    columns = table.job_columns(snapshot.at, wide=False)
    shown = [*snapshot.running[: available - waiting], *snapshot.waiting[:waiting]]
    jobs = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), expand=True)
    for title, _ in columns:
        jobs.add_column(title, no_wrap=True, overflow="ellipsis", ratio=4 if title == "NODELIST(REASON)" else None)
    for row in shown:
        style = "dim" if row["state"] == "PENDING" else ""
        jobs.add_row(*(Text(table.clean_text(read(row))) for _, read in columns), style=style)
    head = [Text(f"acme  {snapshot.at:%H:%M:%S} UTC   q or Ctrl-C quits", style="bold")]
    head += [Text(f"stale: {table.clean_text(snapshot.error)}", style="red")] if snapshot.error else []
    return Group(
        *head, *(capacity_line(name, nodes) for name, nodes in nodes_by_cluster(snapshot.nodes).items()), Text(""), jobs
    )


def nodes_by_cluster(nodes: Sequence[table.TableRow]) -> dict[str, list[table.TableRow]]:
    groups: dict[str, list[table.TableRow]] = {}
    for node in nodes:
        groups.setdefault(node["cluster"], []).append(node)
    return groups


def capacity_line(name: str, nodes: Sequence[table.TableRow]) -> Text:
    """`seren  gpus 120/256 [#####.....]  nodes: 12 alloc, 3 idle, 1 drain`"""
    allocated, total = (sum(node[field] for node in nodes) for field in ("gpus_allocated", "gpus"))
    filled = round(20 * allocated / total) if total else 0
    codes = Counter(str(node["code"]).rstrip("*") for node in nodes)
    line = Text(f"{table.clean_text(name):12} gpus {allocated}/{total} [{'#' * filled}{'.' * (20 - filled)}]  nodes: ")
    for place, (code, count) in enumerate(codes.most_common()):
        style = "bold red" if code in UNAVAILABLE_CODES else ""
        line.append(", " if place else "").append(f"{count} {table.clean_text(code)}", style=style)
    return line


def show_live_view(
    reader: LiveStatusReader, every_s: float, console: Console, should_stop: Callable[[float], bool]
) -> None:
    """Refresh until `should_stop`, which waits for a key. While the server is unavailable, keep the last view."""
    snapshot = reader.look(console.height)
    with Live(render_snapshot(snapshot, console.height), console=console, screen=True, auto_refresh=False) as live:
        live.refresh()
        while not should_stop(every_s):
            try:
                snapshot = reader.look(console.height)
            except Unreachable as error:
                snapshot = LiveSnapshot(
                    at=snapshot.at,
                    nodes=snapshot.nodes,
                    running=snapshot.running,
                    waiting=snapshot.waiting,
                    error=str(error),
                )
            live.update(render_snapshot(snapshot, console.height), refresh=True)
