"""The last thirty days on the page of a node."""

from __future__ import annotations

from datetime import timedelta

import pytest

from failures.actions import anomalies as anomaly_actions
from failures.detection.findings import DetectorFinding, SymptomType
from jobs.actions import nodes as node_actions
from jobs.core.telemetry_math import interval_start
from jobs.models import Allocation, Attempt, Event, Node, Resolution, Sample, clock
from tests import make
from tests.failures import make as failures

pytestmark = pytest.mark.django_db
MONTH = {"HX-Request": "true", "HX-Target": "section#month"}


def month(client, **headers):
    return client.get("/nodes/seren/seren-001/", headers=headers or MONTH)


@pytest.fixture
def node():
    make.team("pretraining", ada="researcher")
    make.team("speech", ben="researcher")
    make.cluster()
    return Node.objects.select_related("cluster").get(name="seren-001")


def condition(node, days_ago, before, after):
    Event.objects.create(
        type="node.state_changed", at=clock.now() - timedelta(days=days_ago), cluster=node.cluster, node=node,
        from_state=before, to_state=after,
    )  # fmt: skip


def test_states_are_those_of_the_events_and_allocations_of_the_month(node):
    condition(node, 40, "UNKNOWN", "UP")
    condition(node, 20, "UP", "DOWN")
    condition(node, 17, "DOWN", "UP")
    attempt = make.ended(make.job(gpus_per_node=8))
    now = clock.now()
    held = {"held_at": now - timedelta(days=10), "released_at": now - timedelta(days=4)}
    Allocation.objects.filter(attempt=attempt).update(**held)

    found = month(make.browser("ada")).context["month"]()

    assert {share.name: round(share.percent) for share in found.shares} == {"allocated": 20, "idle": 70, "down": 10}
    assert [round(bar.share) for bar in found.states] == [33, 10, 23, 20, 13]


def test_jobs_of_other_teams_are_drawn_without_their_names(node):
    make.ended(make.job(by="ada", name="mine", gpus_per_node=4))
    make.running(make.job(by="ben", name="theirs", gpus_per_node=4))

    drawn = month(make.browser("ada")).content.decode()

    assert "mine of ada: COMPLETED, 4 GPUs" in drawn
    assert "theirs" not in drawn and "job of another team, 4 GPUs" in drawn
    make.user("root", is_superuser=True)
    assert "theirs of ben" in month(make.browser("root")).content.decode()


def test_telemetry_is_drawn_from_the_hourly_means_with_its_range(node):
    hour = interval_start(clock.now(), Resolution.HOUR)
    for ago, busy, hot in ((700, 20.0, 55.0), (699, 90.0, 81.0), (2, 50.0, 60.0), (800, 1.0, 99.0)):
        Sample.objects.create(
            node=node, at=hour - timedelta(hours=ago), resolution=Resolution.HOUR,
            gpu_util=[busy, None], gpu_temperature_c=[30.0, hot],
        )  # fmt: skip

    found = month(make.browser("ada")).context["month"]()

    assert (found.utilization.lowest, found.utilization.highest) == (20.0, 90.0)
    assert (found.temperature.lowest, found.temperature.highest) == (55.0, 81.0)
    assert len(found.utilization.segments) == 2


def test_xids_anomalies_failures_and_drains_have_lanes_of_their_own(node, tmp_path):
    now = clock.now()
    for why in ("Xid 79: GPU has fallen off the bus.", "A GPU is at 95 °C."):
        finding = DetectorFinding(symptom=SymptomType.NODE, since=now.timestamp(), why=why)
        anomaly_actions.record_finding(finding, node.cluster, now, node=node)
        node.anomalies.update(ended_at=now)
    failures.diagnosed(tmp_path, failures.XID, by="ada", on=("seren-001",))
    node_actions.drain(node, author=make.LOOP, why="<b>fan</b>", now=now)

    page = month(make.browser("ada")).content.decode()

    assert "Xids: 1 in 30 days" in page and "Xid 79: GPU has fallen off the bus." in page
    assert "Other anomalies: 1 in 30 days" in page
    assert "A job failed: " in page
    assert "drained by test: &lt;b&gt;fan&lt;/b&gt;" in page


def test_the_month_takes_the_same_queries_for_any_number_of_jobs_and_events(node, django_assert_num_queries):
    for number in range(3):
        attempt = make.ended(make.job(gpus_per_node=1))
        Attempt.objects.filter(pk=attempt.pk).update(cause="TypeError")
        condition(node, number + 1, "UP", "DOWN")
    client = make.browser("ada")

    # session, user, clock, node; allocations, two each for conditions and drains, samples, attempts, teams;
    # anomalies, failures, events
    with django_assert_num_queries(4 + 8 + 3):
        month(client)


def test_a_node_without_history_has_an_empty_month(node):
    answer = month(make.browser("ada"))

    assert answer.status_code == 200
    assert "no telemetry" in answer.content.decode() and "Xids: 0 in 30 days" in answer.content.decode()
