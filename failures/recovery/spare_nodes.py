"""How many spare nodes of each kind a cluster needs, calculated from past outages. Read-only.

An outage lasts from the time at which the cluster reports a node DOWN or recovery drains it until the node accepts jobs
again. Outages are counted over 30 days, or since the node was added; of earlier outages, the part in this period
counts. The number of simultaneous outages is binomial (`pair_tests.estimate_spares`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Exists, OuterRef, Q

from failures.recovery.rules import pair_tests
from jobs.core.lifecycle import USABLE_NODE_STATES, StatusBadge
from jobs.models import Allocation, Cluster, Event, Node
from jobs.queries.map_rows import last_node_events, node_first_seen

WINDOW = timedelta(days=30)
DAY = timedelta(days=1)
CONFIDENCE = 0.99
MAX_NODE_EVENTS = 50_000
LOOP_AUTHORS = ("recovery", "detector")  # drains by users are not outages
GONE, UP, CLOSED, RESUMED = "gone", "up", "closed", "resumed"
OUTAGE_START_OF_END = {UP: GONE, RESUMED: CLOSED}


@dataclass(frozen=True, kw_only=True)
class SpareReserve:
    """The spares of one kind of nodes. Nodes of one kind can replace each other."""

    cluster: str
    kind: str
    nodes: int
    free: int  # idle and accepting jobs
    outages: int
    node_days: float
    days_away: float  # mean duration of an outage
    wanted: int
    enough: float  # probability that this many suffice
    sentence: str

    @property
    def lacks(self) -> int:
        return max(0, self.wanted - self.free)

    @property
    def needed(self) -> str:
        """The number of spares, or an empty string if there was no outage to derive it from."""
        return str(self.wanted) if self.outages else ""

    @property
    def shortage_badge(self) -> StatusBadge:
        return StatusBadge(tone="warn", icon="▲", label=f"{self.lacks} short")

    @property
    def per_node_day(self) -> float:
        return self.outages / self.node_days if self.node_days else 0.0


def spare_reserves(now: datetime) -> list[SpareReserve]:
    """The reserves of all clusters, by cluster, largest kind first."""
    return [reserve for cluster in Cluster.objects.order_by("name") for reserve in _cluster_reserves(cluster, now)]


def _cluster_reserves(cluster: Cluster, now: datetime) -> list[SpareReserve]:
    since = max(now - WINDOW, cluster.created_at)
    away, first_seen = _outages_by_node(cluster, since, now), node_first_seen(cluster)
    kinds: dict[str, list[Node]] = defaultdict(list)
    held = Allocation.objects.filter(node=OuterRef("pk"), released_at__isnull=True)
    for node in Node.objects.filter(cluster=cluster, gpus__gt=0).annotate(is_held=Exists(held)):
        kinds[f"{node.gpus} × {node.gpu_model or 'GPU'}"].append(node)
    reserves = []
    for kind, nodes in kinds.items():
        node_days = sum(_days_between(max(since, first_seen.get(node.pk, since)), now) for node in nodes)
        reserves.append(_node_kind_reserve(cluster, kind, nodes, away, node_days))
    return sorted(reserves, key=lambda item: (-item.nodes, item.kind))


def _days_between(since: datetime, now: datetime) -> float:
    return max((now - since) / DAY, 0.0)


def _node_kind_reserve(
    cluster: Cluster, kind: str, nodes: Sequence[Node], away: Mapping[int, Sequence[timedelta]], node_days: float
) -> SpareReserve:
    spells = [spell for node in nodes for spell in away.get(node.pk, ())]
    mean = sum(spells, timedelta()) / DAY / len(spells) if spells else 0.0
    rate = len(spells) / node_days if node_days else 0.0
    estimate = pair_tests.estimate_spares(len(nodes), failures_per_node_day=rate, days_away=mean, confidence=CONFIDENCE)
    free = sum(not node.is_held and not node.drain_requested and node.state in USABLE_NODE_STATES for node in nodes)
    sentence = (
        estimate.sentence if spells else "No outages in this period, so the number of spares cannot be estimated."
    )
    return SpareReserve(
        cluster=cluster.name, kind=kind, nodes=len(nodes), free=free, outages=len(spells), node_days=node_days,
        days_away=mean, wanted=estimate.spares, enough=estimate.enough, sentence=sentence,
    )  # fmt: skip


def _outages_by_node(cluster: Cluster, since: datetime, now: datetime) -> Mapping[int, list[timedelta]]:
    """The durations of the outages of each node within the window, by node id."""
    down = Q(type="node.state_changed", to_state__startswith="DOWN") | Q(
        type="node.state_changed", from_state__startswith="DOWN"
    )
    closed = Q(type="node.drained", by__in=LOOP_AUTHORS) | Q(type="node.resumed")
    rows = Event.objects.filter(down | closed, node__cluster=cluster, at__gte=since).order_by("-id")
    events_by_node = _outages_open_at(cluster, since)
    for node, at, what, to in reversed(rows.values_list("node", "at", "type", "to_state")[:MAX_NODE_EVENTS]):
        events_by_node[node].append((at, _outage_event(what, to)))
    return {node: list(outage_durations(events, now)) for node, events in events_by_node.items()}


def _outages_open_at(cluster: Cluster, since: datetime) -> dict[int, list[tuple[datetime, str]]]:
    """The outages that were already open when the window began, as if they had begun then."""
    events_by_node: dict[int, list[tuple[datetime, str]]] = defaultdict(list)
    for node, what, to, _, by in last_node_events(cluster, since):
        anomaly = _outage_event(what, to)
        if anomaly == GONE or (anomaly == CLOSED and by in LOOP_AUTHORS):
            events_by_node[node].append((since, anomaly))
    return events_by_node


def _outage_event(what: str, to_state: str) -> str:
    if what == "node.state_changed":
        return GONE if to_state.startswith("DOWN") else UP
    return CLOSED if what == "node.drained" else RESUMED


def outage_durations(events: Iterable[tuple[datetime, str]], now: datetime) -> Iterator[timedelta]:
    """The durations of the outages. Overlapping reasons count once: a node that is both DOWN and drained is back only
    when it is up and resumed."""
    reasons: set[str] = set()
    began = now
    for at, anomaly in events:
        if anomaly in OUTAGE_START_OF_END:
            was_away = bool(reasons)
            reasons.discard(OUTAGE_START_OF_END[anomaly])
            if was_away and not reasons:
                yield at - began
        else:
            began = began if reasons else at
            reasons.add(anomaly)
    if reasons:
        yield now - began
