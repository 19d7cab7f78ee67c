"""The events that the time slider of the map marks."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client

from jobs.actions import journal
from jobs.actions import nodes as node_actions
from jobs.models import Maintenance, Node, clock
from tests import make
from tests.failures import make as failures

pytestmark = pytest.mark.django_db


def marks(client):
    return [(kind, text) for _, _, kind, _, text in client.get("/map/seren/events/").json()["events"]]


def test_incidents_outages_drains_and_maintenance_are_marked(tmp_path, django_assert_num_queries):
    now = clock.now()
    seren = make.cluster(created_at=now - timedelta(days=40), log_root=str(tmp_path))
    node = Node.objects.select_related("cluster").get(name="seren-002")
    node_actions.drain(node, author=make.LOOP, why="<fan>", now=now)
    node_actions.resume(node, author=make.LOOP, why="", now=now)
    journal.node_event("node.state_changed", make.LOOP, node, from_state="UP", to_state="DOWN").save()
    journal.node_event("node.state_changed", make.LOOP, node, from_state="DOWN", to_state="UP").save()
    window = {"cluster": seren, "reason": "pumps", "by": "olga"}
    for name, begin, end, cancelled in (("over", -40, -35, None), ("now", -1, 1, None), ("never", -2, -1, now)):
        times = {"start_at": now + timedelta(days=begin), "end_at": now + timedelta(days=end)}
        Maintenance.objects.create(name=name, cancelled_at=cancelled, **window, **times)
    failures.diagnosed(tmp_path, failures.XID, by="ada", on=("seren-001",))

    root = make.browser("root", is_superuser=True)
    found = marks(root)

    assert sorted(kind for kind, _ in found) == ["drain", "incident", "maintenance", "outage"]
    assert ("maintenance", "now") in found and ("drain", "seren-002") in found and ("outage", "seren-002") in found
    with django_assert_num_queries(4 + 4):  # session, user, cluster, clock
        marks(root)


def test_incidents_of_other_teams_are_not_marked(tmp_path):
    make.cluster(created_at=clock.now() - timedelta(days=40), log_root=str(tmp_path))
    failures.diagnosed(tmp_path, failures.XID, by="ada", on=("seren-001",))
    make.team("speech", ben="researcher")

    assert [kind for kind, _ in marks(make.browser("ada"))] == ["incident"]
    assert marks(make.browser("ben")) == []


def test_unknown_cluster_and_signed_out_users_get_no_events():
    make.cluster()

    assert make.browser("ada").get("/map/nowhere/events/").status_code == 404
    assert Client().get("/map/seren/events/").status_code == 302
