"""The node list, as in sinfo, with telemetry and lemon scores. It is here because jobs must not import failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.http import urlencode
from django.views.decorators.http import require_safe

from failures.detection.node_health import LEMON_THRESHOLD
from failures.queries import node_history
from jobs.core.lifecycle import NodeState
from jobs.models import Allocation, Cluster, Node, clock
from jobs.queries.node_load import NodeLoad, node_loads, utilization_lines
from jobs.web.list_table import TableColumn, TableSpec, largest_first, read_table
from jobs.web.page import PageQuery, digits_reader, read_cluster_name, render_page

NO_LOAD = NodeLoad()
NODES_PER_PAGE = 100
MAX_PAGE_DIGITS = 4


@dataclass(frozen=True, kw_only=True)
class NodeRow:
    """One row of the list."""

    node: Node
    held: int  # GPUs
    load: NodeLoad
    lemon: float
    line: str = ""  # points of the sparkline of the last 24 hours; only of rows that are shown

    @property
    def is_unreliable(self) -> bool:
        return self.lemon >= LEMON_THRESHOLD


NODE_FILTERS: dict[str, Callable[[NodeRow], bool]] = {
    "all": lambda row: True,
    "closed": lambda row: not row.node.is_schedulable,
    "idle": lambda row: row.node.is_schedulable and row.node.state == NodeState.IDLE and not row.node.is_asleep,
    "asleep": lambda row: row.node.is_asleep,
    "mixed": lambda row: row.node.is_schedulable and row.node.state == NodeState.MIXED,
    "allocated": lambda row: row.node.is_schedulable and row.node.state == NodeState.ALLOCATED,
    "drain": lambda row: row.node.is_drained,
    "down": lambda row: row.node.badge.tone == "bad",
    "unreliable": lambda row: row.is_unreliable,
}

NODE_TABLE = TableSpec(
    name="nodes",
    page="nodes",
    default_sort="node",
    columns=(
        TableColumn(name="node", label="Node", css="c-node", sortable=True, is_fixed=True),
        TableColumn(name="state", label="State", css="c-st", sortable=True, is_fixed=True),
        largest_first("gpus", "GPUs", "c-n num", title="allocated / all"),
        largest_first("utilization", "Utilization", "c-load", title="Mean of the GPUs: last 24 h, and now"),
        largest_first("temperature", "Temp.", "c-n num", title="Hottest GPU, now"),
        largest_first("lemon", "Lemon score", "c-lemon num", term="Lemon node"),
        largest_first("cpus", "CPUs", "c-n num", is_default=False),
        largest_first("memory", "Memory", "c-n num", is_default=False),
        TableColumn(name="model", label="Model", css="c-model", sortable=True),
        TableColumn(name="rack", label="Rack", css="c-rack", sortable=True),
        TableColumn(name="leaf", label="Leaf", css="c-rack", sortable=True, is_default=False),
        TableColumn(name="reason", label="Reason", css="c-place"),
    ),
)

# None is sorted last in both directions
SORT_VALUES: dict[str, Callable[[NodeRow], Any]] = {
    "node": lambda row: (row.node.cluster.name, row.node.name),
    "state": lambda row: row.node.badge.label,
    "gpus": lambda row: row.held,
    "utilization": lambda row: row.load.utilization,
    "temperature": lambda row: row.load.temperature,
    "lemon": lambda row: row.lemon,
    "cpus": lambda row: row.node.cpus,
    "memory": lambda row: row.node.memory_mb,
    "model": lambda row: row.node.gpu_model or None,
    "rack": lambda row: row.node.rack or None,
    "leaf": lambda row: row.node.leaf or None,
}


@dataclass(frozen=True, kw_only=True)
class NodeFilterLink:
    """One link of the state filter."""

    name: str
    url: str
    count: int
    is_enabled: bool


@require_safe
def node_list_page(request: HttpRequest) -> HttpResponse:
    address, now = PageQuery(request.GET), clock.now()
    state = address.choice_value("state", list(NODE_FILTERS), "all")
    cluster = address.read("cluster", read_cluster_name, "")
    params = {name: value for name, value in (("state", state), ("cluster", cluster)) if value not in ("", "all")}
    table = read_table(request, address, NODE_TABLE, params)
    clusters = list(Cluster.objects.all())
    rows = _node_rows(cluster, clusters, now)
    found = sorted_rows(filter(NODE_FILTERS[state], rows), table.sort)
    page = node_page(found, address.read("page", digits_reader(MAX_PAGE_DIGITS), 1), params | table.sort_param)
    context = {
        "now": now,
        "rows": _with_lines(page.rows, now) if table.shows["utilization"] else page.rows,
        "page": page,
        "table": table,
        "filters": [_filter_link(name, rows, state, params | table.sort_param) for name in NODE_FILTERS],
        "wanted": params.get("state", ""),
        "cluster": cluster,
        "clusters": clusters,
        "here": request.get_full_path(),
        "may_operate": request.user.has_perm("jobs.operate_cluster"),
        "lemon_threshold": LEMON_THRESHOLD,
    }
    return render_page(request, "nodes/nodes.html", context, {"nodes": "nodes/_nodes.html"}, address.wrong)


@dataclass(frozen=True, kw_only=True)
class NodePage:
    """The rows of one page, and the URLs of its neighbors, which are empty if there are none."""

    rows: Sequence[NodeRow]
    first: int  # number of the first row, counted from 1
    count: int  # rows on all pages
    previous: str
    following: str

    @property
    def last(self) -> int:
        return self.first + len(self.rows) - 1


def node_page(rows: Sequence[NodeRow], number: int, params: Mapping[str, str]) -> NodePage:
    """The page of this number, counted from 1. The last page if there are fewer, as after nodes were removed."""
    last = max(1, -(-len(rows) // NODES_PER_PAGE))
    number = min(max(number, 1), last)
    start = (number - 1) * NODES_PER_PAGE

    def page_url(other: int) -> str:
        query = params if other == 1 else {**params, "page": str(other)}
        return "?" + urlencode(query) if 1 <= other <= last else ""

    return NodePage(
        rows=rows[start : start + NODES_PER_PAGE],
        first=start + 1,
        count=len(rows),
        previous=page_url(number - 1),
        following=page_url(number + 1),
    )


def _with_lines(rows: Sequence[NodeRow], now: datetime) -> list[NodeRow]:
    lines = utilization_lines([row.node.pk for row in rows], now)
    return [replace(row, line=lines.get(row.node.pk, "")) for row in rows]


def _node_rows(cluster: str, clusters: Iterable[Cluster], now: Any) -> list[NodeRow]:
    """The nodes of the cluster, or of all clusters, by name. Three queries per cluster for the lemon scores."""
    held, loads = Allocation.objects.held_per_node(), node_loads(now)
    shown = {one.pk: one for one in clusters if cluster in ("", one.name)}
    lemons: dict[int, float] = {}
    for one in shown.values():
        lemons |= node_history.lemon_scores(one, now)
    return [
        NodeRow(
            node=node,
            held=held.get(node.pk, 0) + len(node.foreign_gpus),
            load=loads.get(node.pk, NO_LOAD),
            lemon=lemons.get(node.pk, 0.0),
        )
        for node in _nodes_of(shown)
    ]


def _nodes_of(clusters: Mapping[int, Cluster]) -> Iterator[Node]:
    """The nodes by cluster and name. They share their cluster: joined, it would be created for each of thousands."""
    for node in Node.objects.filter(cluster__in=clusters).order_by("cluster__name", "name"):
        node.cluster = clusters[node.cluster_id]
        yield node


def sorted_rows(rows: Iterable[NodeRow], sort: str) -> list[NodeRow]:
    """The rows in this order. Rows that are equal in it stay in the order of their names."""
    value, descends = SORT_VALUES[sort.removeprefix("-")], sort.startswith("-")
    known: list[NodeRow] = []
    unknown: list[NodeRow] = []
    for row in rows:
        (unknown if value(row) is None else known).append(row)
    return sorted(known, key=value, reverse=descends) + unknown


def _filter_link(name: str, rows: Iterable[NodeRow], state: str, params: Mapping[str, str]) -> NodeFilterLink:
    others = {key: value for key, value in params.items() if key != "state"}
    url = "?" + urlencode(({} if name == "all" else {"state": name}) | others)
    return NodeFilterLink(name=name, url=url, count=sum(map(NODE_FILTERS[name], rows)), is_enabled=name == state)
