"""Rows → how many spare nodes of each kind a cluster needs, and what that is reckoned from. Reads; changes nothing.

A node is away from the moment its cluster calls it DOWN, or recovery closes it, until it takes work again. How often
that happens and how long it takes is counted over thirty days, or for as long as the node has been there; how many are
away at once is then binomial (`nodetest.spares`). Of what began earlier the part within that time counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Exists, OuterRef, Q

from failures.recovery import pair_tests
from jobs.core.lifecycle import USABLE_NODE_STATES
from jobs.models import Allocation, Cluster, Event, Node
from jobs.queries.map_rows import last_node_events, node_first_seen

WINDOW = timedelta(days=30)
DAY = timedelta(days=1)
CONFIDENCE = 0.99
MAX_NODE_EVENTS = 50_000
LOOP_AUTHORS = ("recovery", "detector")  # whoever else closes a node has reasons of his own
GONE, UP, CLOSED, RESUMED = "gone", "up", "closed", "resumed"
OUTAGE_START_OF_END = {UP: GONE, RESUMED: CLOSED}


@dataclass(frozen=True, kw_only=True)
class SpareReserve:
    """Nodes of one kind: those that replace each other."""

    cluster: str
    kind: str
    nodes: int
    free: int  # just now, and taking work
    outages: int
    node_days: float
    days_away: float  # of one outage, the mean
    wanted: int
    enough: float  # how likely that many suffice
    sentence: str

    @property
    def lacks(self) -> int:
        return max(0, self.wanted - self.free)

    @property
    def per_node_day(self) -> float:
        return self.outages / self.node_days if self.node_days else 0.0


def spare_reserves(now: datetime) -> list[SpareReserve]:
    """Every cluster's kinds, the largest first."""
    return [one for cluster in Cluster.objects.order_by("name") for one in _cluster_reserves(cluster, now)]


def _cluster_reserves(cluster: Cluster, now: datetime) -> list[SpareReserve]:
    since = max(now - WINDOW, cluster.created_at)
    away, came = _outages_by_node(cluster, since, now), node_first_seen(cluster)
    kinds: dict[str, list[Node]] = defaultdict(list)
    held = Allocation.objects.filter(node=OuterRef("pk"), released_at__isnull=True)
    for node in Node.objects.filter(cluster=cluster, gpus__gt=0).annotate(is_held=Exists(held)):
        kinds[f"{node.gpus} × {node.gpu_model or 'GPU'}"].append(node)
    found = [
        _node_kind_reserve(
            cluster, kind, nodes, away, sum(_days_between(max(since, came.get(one.pk, since)), now) for one in nodes)
        )
        for kind, nodes in kinds.items()
    ]
    return sorted(found, key=lambda one: (-one.nodes, one.kind))


def _days_between(since: datetime, now: datetime) -> float:
    return max((now - since) / DAY, 0.0)


def _node_kind_reserve(
    cluster: Cluster, kind: str, nodes: Sequence[Node], away: Mapping[int, Sequence[timedelta]], node_days: float
) -> SpareReserve:
    spells = [spell for node in nodes for spell in away.get(node.pk, ())]
    mean = sum(spells, timedelta()) / DAY / len(spells) if spells else 0.0
    rate = len(spells) / node_days if node_days else 0.0
    said = pair_tests.estimate_spares(len(nodes), failures_per_node_day=rate, days_away=mean, confidence=CONFIDENCE)
    free = sum(not node.is_held and not node.drain_asked and node.state in USABLE_NODE_STATES for node in nodes)
    sentence = said.sentence if spells else "None of them was away in this time, so nothing says how many are needed."
    return SpareReserve(
        cluster=cluster.name, kind=kind, nodes=len(nodes), free=free, outages=len(spells), node_days=node_days,
        days_away=mean, wanted=said.spares, enough=said.enough, sentence=sentence,
    )  # fmt: skip


def _outages_by_node(cluster: Cluster, since: datetime, now: datetime) -> Mapping[int, list[timedelta]]:
    """By node, each time that it was away, as far as that lies within the window."""
    down = Q(what="node.moved", to_state__startswith="DOWN") | Q(what="node.moved", from_state__startswith="DOWN")
    closed = Q(what="node.drained", by__in=LOOP_AUTHORS) | Q(what="node.resumed")
    rows = Event.objects.filter(down | closed, node__cluster=cluster, at__gte=since).order_by("-id")
    told = _outages_open_at(cluster, since)
    for node, at, what, to in reversed(rows.values_list("node", "at", "what", "to_state")[:MAX_NODE_EVENTS]):
        told[node].append((at, _outage_event(what, to)))
    return {node: list(outage_durations(events, now)) for node, events in told.items()}


def _outages_open_at(cluster: Cluster, since: datetime) -> dict[int, list[tuple[datetime, str]]]:
    """Who was away when the window began, as if it had begun then."""
    told: dict[int, list[tuple[datetime, str]]] = defaultdict(list)
    for node, what, to, _, by in last_node_events(cluster, since):
        sign = _outage_event(what, to)
        if sign == GONE or (sign == CLOSED and by in LOOP_AUTHORS):
            told[node].append((since, sign))
    return told


def _outage_event(what: str, to_state: str) -> str:
    if what == "node.moved":
        return GONE if to_state.startswith("DOWN") else UP
    return CLOSED if what == "node.drained" else RESUMED


def outage_durations(told: Iterable[tuple[datetime, str]], now: datetime) -> Iterator[timedelta]:
    """One that died and was closed is back when it answers and takes work again, both; so it was away once."""
    reasons: set[str] = set()
    began = now
    for at, sign in told:
        if sign in OUTAGE_START_OF_END:
            was_away = bool(reasons)
            reasons.discard(OUTAGE_START_OF_END[sign])
            if was_away and not reasons:
                yield at - began
        else:
            began = began if reasons else at
            reasons.add(sign)
    if reasons:
        yield now - began
