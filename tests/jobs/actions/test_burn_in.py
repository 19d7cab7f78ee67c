"""The return of a node: test, repair, burn-in, return. Each step writes an Event, and the node runs nothing else."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client

from acmeweb.common.errors import StateConflict
from failures.actions import anomalies as anomaly_actions
from failures.detection.findings import DetectorFinding, SymptomType
from failures.loops.burn_in import burn_in_once
from jobs.actions import nodes as node_actions
from jobs.actions.nodes import NodeTestResult
from jobs.models import Cluster, ClusterCommand, Event, Node, RepairStage, clock
from tests import make
from tests.statements import failing_statement

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)
FAILED = NodeTestResult(passed=False, why="FAILED, exit code 1", exit_code=1)
PASSED = NodeTestResult(passed=True, exit_code=0)


@pytest.fixture
def node():
    """A drained, empty node."""
    make.cluster()
    row = Node.objects.select_related("cluster").get(name="seren-002")
    node_actions.drain(row, author=make.author("olga"), why="odd noise", now=clock.now())
    return row


def complete_test(node, outcome, at):
    """Complete the open test of the node."""
    command = ClusterCommand.objects.get(node=node, kind="test", done_at=None)
    ClusterCommand.objects.filter(pk=command.pk).update(done_at=at)
    node_actions.record_node_test(node, command, outcome, author=make.LOOP)


def began(node, now):
    node_actions.start_burn_in(node, author=make.author("olga"), why="New fan.", now=now)


def node_events():
    return list(Event.objects.filter(type__startswith="node.").order_by("pk").values_list("type", flat=True))


def test_node_that_fails_its_test_waits_for_repair(node):
    node_actions.start_node_test(node, author=make.LOOP)
    complete_test(node, FAILED, clock.now())

    node.refresh_from_db()
    assert (node.repair_stage, node.drain_requested) == (RepairStage.REPAIR, True)
    assert node_events()[-2:] == ["node.tested", "node.repair_requested"]


def test_node_test_that_never_ran_changes_nothing(node):
    node_actions.start_node_test(node, author=make.LOOP)
    complete_test(node, NodeTestResult(passed=False, ran=False, why="it did not start"), clock.now())

    node.refresh_from_db()
    assert node.repair_stage == RepairStage.NONE


def test_node_in_burn_in_is_tested_repeatedly_and_then_returns(node):
    now = clock.now()
    began(node, now)
    assert burn_in_once(now + MINUTE) == 0  # the first test is still open

    complete_test(node, PASSED, now + MINUTE)
    assert burn_in_once(now + MINUTE) == 0  # pause between tests
    assert burn_in_once(now + 3 * MINUTE) == 1
    assert ClusterCommand.objects.filter(node=node, kind="test").count() == 2
    complete_test(node, PASSED, now + 4 * MINUTE)
    assert not Node.objects.usable().filter(pk=node.pk).exists()

    assert burn_in_once(now + 61 * MINUTE) == 1
    node.refresh_from_db()
    assert (node.repair_stage, node.burn_in_until, node.drain_requested) == (RepairStage.NONE, None, False)
    assert [one for one in node_events() if "burn" in one] == ["node.burn_in_started", "node.burn_in_passed"]
    assert burn_in_once(now + 62 * MINUTE) == 0


def test_node_does_not_return_after_a_test_that_never_ran(node):
    now = clock.now()
    began(node, now)
    complete_test(node, NodeTestResult(passed=False, ran=False, why="it did not start"), now + 60 * MINUTE)

    assert burn_in_once(now + 61 * MINUTE) == 1
    node.refresh_from_db()
    assert (
        node.repair_stage == RepairStage.BURN_IN
        and ClusterCommand.objects.filter(node=node, kind="test", done_at=None).exists()
    )


def test_failed_test_returns_the_node_to_repair(node):
    now = clock.now()
    began(node, now)
    complete_test(node, FAILED, now + MINUTE)

    assert burn_in_once(now + 61 * MINUTE) == 0
    node.refresh_from_db()
    assert (node.repair_stage, node.burn_in_until, node.drain_requested) == (RepairStage.REPAIR, None, True)
    assert node_events()[-3:] == ["node.tested", "node.burn_in_failed", "node.repair_requested"]


def test_bad_health_sign_returns_the_node_to_repair(node):
    now = clock.now()
    began(node, now)
    node.refresh_from_db()
    hot = DetectorFinding(symptom=SymptomType.NODE, since=now.timestamp(), why="A GPU is at 95 °C.")

    anomaly_actions.record_finding(hot, node.cluster, now, node=node)

    node.refresh_from_db()
    assert node.repair_stage == RepairStage.REPAIR


def test_resume_by_an_operator_ends_the_burn_in(node):
    now = clock.now()
    began(node, now)
    node_actions.resume(node, author=make.author("olga"), now=now)

    assert burn_in_once(now + 61 * MINUTE) == 0
    assert node.repair_stage == RepairStage.NONE


def test_node_returns_after_one_passed_test_without_a_burn_in_time(node):
    Cluster.objects.update(burn_in_minutes=0)
    now = clock.now()
    began(node, now)
    complete_test(node, PASSED, now + MINUTE)

    assert burn_in_once(now + MINUTE) == 1
    assert Node.objects.usable().filter(pk=node.pk).exists()


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("open", "is not drained"),
        ("busy", "1 job still runs"),
        ("twice", "already in burn-in"),
        ("observed", "mode observe"),
    ],
)
def test_impossible_burn_in_is_rejected_with_a_reason(case, why, node):
    if case == "open":
        node_actions.resume(node, author=make.LOOP, now=clock.now())
    if case == "busy":
        node_actions.resume(node, author=make.LOOP, now=clock.now())
        make.running(make.job(gpus_per_node=1), on=("seren-002",))
        node_actions.drain(node, author=make.LOOP, why="again", now=clock.now())
    if case == "twice":
        began(node, clock.now())
    if case == "observed":
        Cluster.objects.update(mode="observe")

    with pytest.raises(StateConflict, match=why):
        began(node, clock.now())


def test_internal_error_on_one_node_does_not_affect_the_others(node):
    other = Node.objects.select_related("cluster").get(name="seren-003")
    node_actions.drain(other, author=make.LOOP, why="odd", now=clock.now())
    now = clock.now()
    for one in (node, other):
        began(one, now)
        complete_test(one, PASSED, now)

    with failing_statement('FOR UPDATE OF "jobs_node"', node.pk, error=ValueError("no")):
        assert burn_in_once(now + 5 * MINUTE) == 1


def test_node_page_offers_a_burn_in_and_shows_its_end(node):
    olga = Client()
    olga.force_login(make.user("anna", is_superuser=True))
    assert "Burn in seren-002" in olga.get("/nodes/seren/seren-002/").content.decode()

    answer = olga.post("/nodes/seren/seren-002/burn-in/", {"why": "New fan."}, follow=True)

    assert "seren-002: burn-in started." in answer.content.decode()
    assert "in burn-in until" in answer.content.decode()
    assert Event.objects.get(type="node.burn_in_started").why == "New fan."


def test_tests_that_cannot_start_are_retried_after_a_pause_even_after_the_burn_in_time(node):
    now = clock.now()
    began(node, now)
    complete_test(node, NodeTestResult(passed=False, ran=False, why="it did not start"), now + 61 * MINUTE)

    assert burn_in_once(now + 61 * MINUTE + MINUTE / 4) == 0
    assert burn_in_once(now + 63 * MINUTE) == 1
