"""The events that the time slider of the map marks: incidents, outages, drains and maintenance. Four queries."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from failures.models.permissions import visible_incidents
from jobs.core.charts.map_events import MapEvent
from jobs.models import Cluster, Event, Maintenance
from jobs.models.permissions import Caller

MAX_EVENTS = 2000  # of each kind, newest first


def map_events(cluster: Cluster, caller: Caller, since: datetime, until: datetime) -> list[MapEvent]:
    """The events of the cluster in the period, with the incidents that the caller may see."""
    return [
        *_incident_events(cluster, caller, since),
        *_node_events(cluster, since),
        *_maintenance_events(cluster, since, until),
    ]


def _incident_events(cluster: Cluster, caller: Caller, since: datetime) -> Iterator[MapEvent]:
    rows = visible_incidents(caller).of_platform().filter(cluster=cluster, first_symptom_at__gte=since)
    for at, cause in rows.order_by("-first_symptom_at").values_list("first_symptom_at", "root_cause")[:MAX_EVENTS]:
        yield MapEvent(at=at, end=None, kind="incident", what=cause)


def _node_events(cluster: Cluster, since: datetime) -> Iterator[MapEvent]:
    rows = Event.objects.filter(node__cluster=cluster, at__gte=since).order_by("-at").values_list("at", "node__name")
    # Two statements, because each has an index of its own
    for at, node in rows.filter(type="node.state_changed", to_state__startswith="DOWN")[:MAX_EVENTS]:
        yield MapEvent(at=at, end=None, kind="outage", what=node)
    # Both types, because the index has both
    drains = rows.filter(type__in=("node.drained", "node.resumed")).values_list("at", "node__name", "type")
    for at, node, what in drains[: 2 * MAX_EVENTS]:
        if what == "node.drained":
            yield MapEvent(at=at, end=None, kind="drain", what=node)


def _maintenance_events(cluster: Cluster, since: datetime, until: datetime) -> Iterator[MapEvent]:
    rows = Maintenance.objects.filter(cluster=cluster, end_at__gte=since, start_at__lte=until, cancelled_at=None)
    for name, start, end in rows.order_by("-start_at").values_list("name", "start_at", "end_at")[:MAX_EVENTS]:
        yield MapEvent(at=max(start, since), end=min(end, until), kind="maintenance", what=name)
