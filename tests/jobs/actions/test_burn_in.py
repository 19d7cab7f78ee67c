"""The way back of a node: test, repair, burn-in, return. Each step is an Event; nothing else runs there meanwhile."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client

from failures.actions import signs as sign_actions
from failures.detection.findings import DetectorFinding, SymptomType
from failures.loops.burn_in import burn_in_once
from jobs.actions import nodes as node_actions
from jobs.actions.nodes import NodeError, NodeTestResult
from jobs.models import Cluster, Deed, Event, Node, RepairStage, clock
from tests import make

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)
FAILED = NodeTestResult(passed=False, why="FAILED, exit code 1", exit_code=1)
PASSED = NodeTestResult(passed=True, exit_code=0)


@pytest.fixture
def node():
    """Drained by an operator, and empty."""
    make.cluster()
    row = Node.objects.select_related("cluster").get(name="seren-002")
    node_actions.drain(row, author=make.author("olga"), why="odd noise", now=clock.now())
    return row


def comes_out(node, outcome, at):
    """Its open test comes out."""
    deed = Deed.objects.get(node=node, kind="test", done_at=None)
    Deed.objects.filter(pk=deed.pk).update(done_at=at)
    node_actions.record_node_test(node, deed, outcome, author=make.LOOP)


def began(node, now):
    node_actions.start_burn_in(node, author=make.author("olga"), why="New fan.", now=now)


def told():
    return list(Event.objects.filter(what__startswith="node.").order_by("pk").values_list("what", flat=True))


def test_a_node_that_fails_its_test_waits_for_repair(node):
    node_actions.start_node_test(node, author=make.LOOP)
    comes_out(node, FAILED, clock.now())

    node.refresh_from_db()
    assert (node.care, node.drain_asked) == (RepairStage.REPAIR, True)
    assert told()[-2:] == ["node.tested", "node.repair_asked"]


def test_a_test_that_never_ran_says_nothing_of_its_node(node):
    node_actions.start_node_test(node, author=make.LOOP)
    comes_out(node, NodeTestResult(passed=False, ran=False, why="it did not start"), clock.now())

    node.refresh_from_db()
    assert node.care == RepairStage.NONE


def test_in_burn_in_it_is_tested_again_and_again_and_then_returns(node):
    now = clock.now()
    began(node, now)
    assert burn_in_once(now + MINUTE) == 0  # its first test is on

    comes_out(node, PASSED, now + MINUTE)
    assert burn_in_once(now + MINUTE) == 0  # a pause
    assert burn_in_once(now + 3 * MINUTE) == 1
    assert Deed.objects.filter(node=node, kind="test").count() == 2
    comes_out(node, PASSED, now + 4 * MINUTE)
    assert not Node.objects.usable().filter(pk=node.pk).exists()

    assert burn_in_once(now + 61 * MINUTE) == 1
    node.refresh_from_db()
    assert (node.care, node.care_until, node.drain_asked) == (RepairStage.NONE, None, False)
    assert [one for one in told() if "burn" in one] == ["node.burn_in_began", "node.burn_in_passed"]
    assert burn_in_once(now + 62 * MINUTE) == 0


def test_it_does_not_return_on_a_test_that_never_ran(node):
    now = clock.now()
    began(node, now)
    comes_out(node, NodeTestResult(passed=False, ran=False, why="it did not start"), now + 60 * MINUTE)

    assert burn_in_once(now + 61 * MINUTE) == 1
    node.refresh_from_db()
    assert node.care == RepairStage.BURN_IN and Deed.objects.filter(node=node, kind="test", done_at=None).exists()


def test_one_test_that_fails_sends_it_back_to_repair(node):
    now = clock.now()
    began(node, now)
    comes_out(node, FAILED, now + MINUTE)

    assert burn_in_once(now + 61 * MINUTE) == 0
    node.refresh_from_db()
    assert (node.care, node.care_until, node.drain_asked) == (RepairStage.REPAIR, None, True)
    assert told()[-3:] == ["node.tested", "node.burn_in_failed", "node.repair_asked"]


def test_a_bad_sign_of_its_health_sends_it_back_too(node):
    now = clock.now()
    began(node, now)
    node.refresh_from_db()
    hot = DetectorFinding(symptom=SymptomType.NODE, since=now.timestamp(), why="A GPU is at 95 °C.")

    sign_actions.record_finding(hot, node.cluster, now, node=node)

    node.refresh_from_db()
    assert node.care == RepairStage.REPAIR


def test_who_resumes_it_meanwhile_has_decided(node):
    now = clock.now()
    began(node, now)
    node_actions.resume(node, author=make.author("olga"), now=now)

    assert burn_in_once(now + 61 * MINUTE) == 0
    assert node.care == RepairStage.NONE


def test_without_a_burn_in_one_passed_test_is_enough(node):
    Cluster.objects.update(burn_in_minutes=0)
    now = clock.now()
    began(node, now)
    comes_out(node, PASSED, now + MINUTE)

    assert burn_in_once(now + MINUTE) == 1
    assert Node.objects.usable().filter(pk=node.pk).exists()


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("open", "is not drained"),
        ("busy", "1 job still runs"),
        ("twice", "in burn-in already"),
        ("observed", "observed"),
    ],
)
def test_it_is_refused_with_a_sentence(case, why, node):
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

    with pytest.raises(NodeError, match=why):
        began(node, clock.now())


def test_one_node_that_blows_up_leaves_the_others_alone(node, monkeypatch):
    other = Node.objects.select_related("cluster").get(name="seren-003")
    node_actions.drain(other, author=make.LOOP, why="odd", now=clock.now())
    now, real = clock.now(), node_actions.continue_burn_in
    for one in (node, other):
        began(one, now)
        comes_out(one, PASSED, now)

    def broken(row, **how):
        if row.pk == node.pk:
            raise ValueError("no")
        return real(row, **how)

    monkeypatch.setattr(node_actions, "continue_burn_in", broken)

    assert burn_in_once(now + 5 * MINUTE) == 1


def test_the_page_offers_it_and_says_how_long_it_lasts(node):
    olga = Client()
    olga.force_login(make.user("anna", is_superuser=True))
    assert "Burn in seren-002" in olga.get("/nodes/seren/seren-002/").content.decode()

    answer = olga.post("/nodes/seren/seren-002/burn-in/", {"why": "New fan."}, follow=True)

    assert "seren-002: its burn-in begins." in answer.content.decode()
    assert "in burn-in until" in answer.content.decode()
    assert Event.objects.get(what="node.burn_in_began").why == "New fan."


def test_between_tests_that_cannot_start_there_is_a_pause_when_its_time_is_over_too(node):
    now = clock.now()
    began(node, now)
    comes_out(node, NodeTestResult(passed=False, ran=False, why="it did not start"), now + 61 * MINUTE)

    assert burn_in_once(now + 61 * MINUTE + MINUTE / 4) == 0
    assert burn_in_once(now + 63 * MINUTE) == 1
