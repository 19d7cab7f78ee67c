"""The rows that some pages need and a fresh demo lacks: an incident, a maintenance, a channel, two replays.

Runs in `manage.py shell` of a demo that was started for a measurement. Prints the paths of the pages as JSON.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model

from failures.actions import anomalies, notices
from failures.detection.findings import DetectorFinding, SymptomType
from failures.models import Incident
from failures.recovery.loop import decide_and_recover_once
from jobs.actions import maintenance
from jobs.actions.journal import Author
from jobs.actions.maintenance import MaintenanceRequest
from jobs.models import Cluster, Node, Team, clock
from scheduling.actions.node_tests import start_node_test
from scheduling.models import Simulation
from scheduling.whatif.actions import simulations
from scheduling.whatif.loops import run_simulation_once


def main() -> None:
    user = get_user_model().objects.get(username="admin")
    author = Author(by=user.get_username(), user_id=user.pk)
    cluster = Cluster.objects.order_by("pk")[0]
    json.dump(
        {
            "maintenance": f"/queue/{cluster.name}/maintenance/{_maintenance(cluster, author)}/",
            "channel": f"/settings/notifications/{_channel(author)}/",
            "incident": f"/failures/{_incident(cluster)}/",
            "compare": f"/what-if/compare/?of={','.join(_replays(author))}",
        },
        sys.stdout,
    )


def _maintenance(cluster: Cluster, author: Author) -> int:
    now = clock.now()
    nodes = Node.objects.filter(cluster=cluster).order_by("-name").values_list("name", flat=True)[:1]
    times = {"start_at": now + timedelta(hours=20), "end_at": now + timedelta(hours=24)}
    request = MaintenanceRequest(name="cooling-row-3", reason="new pumps", nodes=",".join(nodes), **times)
    return maintenance.schedule_maintenance(cluster, request, author=author, now=now).pk


def _channel(author: Author) -> int:
    """Add a channel that is off: the demo has no mail server."""
    channel = notices.add_channel("email", "operators@example.org", author=author)
    notices.switch_channel(channel, False, author=author)
    return channel.pk


def _incident(cluster: Cluster) -> int:
    node: Any = Node.objects.select_related("cluster").filter(cluster=cluster).order_by("-name").first()
    hot = DetectorFinding(symptom=SymptomType.NODE, since=clock.now().timestamp(), why="A GPU is at 95 °C.")
    anomalies.record_finding(hot, cluster, clock.now(), node=node)
    decide_and_recover_once(clock.now(), start_node_test)
    return Incident.objects.latest("pk").pk


def _replays(author: Author) -> list[str]:
    """Replay a small trace under two policies. The demo's workers may be faster than this process."""
    for policy in ("fifo", "easy"):
        simulations.create_simulation(
            trace="acme:kalos",
            policies=[policy],
            params={"jobs": 200},
            team=Team.objects.order_by("pk")[0],
            author=author,
            now=clock.now(),
        )
    while run_simulation_once(clock.now):
        pass
    return list(Simulation.objects.values_list("public_id", flat=True)[:2])
