"""Spare nodes: the outages of nodes, and how many spares they require."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client

from failures.recovery.decisions import RECOVERY_AUTHOR
from failures.recovery.spare_nodes import CLOSED, GONE, RESUMED, UP, outage_durations, spare_reserves
from jobs.actions import nodes as node_actions
from jobs.models import Cluster, Event, Node, clock
from tests import make

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.mark.parametrize(
    ("told", "hours"),
    [
        ([(1, GONE), (3, UP)], [2]),
        ([(1, GONE), (2, CLOSED), (3, UP), (5, RESUMED)], [4]),
        ([(1, CLOSED), (2, GONE), (5, RESUMED), (9, UP)], [8]),
        ([(1, GONE), (2, UP), (4, CLOSED)], [1, 6]),
        ([(1, UP), (2, RESUMED)], []),
        ([(1, GONE), (2, GONE), (3, UP)], [2]),
    ],
)
def test_outage_lasts_until_the_node_is_up_and_resumed(told, hours):
    noon = make.NOON

    found = list(outage_durations([(noon + at * HOUR, anomaly) for at, anomaly in told], noon + 10 * HOUR))

    assert found == [many * HOUR for many in hours]


pytestmark = pytest.mark.django_db


def died(name, began, hours):
    """The cluster reported the node DOWN, and later up again."""
    node = Node.objects.get(name=name)
    moves = (("IDLE", "DOWN", began), ("DOWN", "IDLE", began + hours * HOUR))
    Event.objects.bulk_create(
        Event(
            type="node.state_changed",
            cluster=node.cluster,
            node=node,
            by="sync",
            at=at,
            from_state=before,
            to_state=after,
        )
        for before, after, at in moves
    )


@pytest.fixture
def home():
    found = make.cluster(nodes=4)
    Cluster.objects.update(created_at=clock.now() - 60 * DAY)
    return found


def test_spares_are_calculated_from_past_outages(home):
    now = clock.now()
    died("seren-001", now - 10 * DAY, 24)
    died("seren-002", now - 5 * DAY, 48)

    [one] = spare_reserves(now)

    assert (one.cluster, one.nodes, one.free) == ("seren", 4, 4)
    assert (one.outages, one.days_away, one.node_days) == (2, 1.5, pytest.approx(120))
    assert one.wanted >= 1 and one.enough >= 0.99 and f"{one.wanted} spares for 4 nodes" in one.sentence
    assert one.lacks == max(0, one.wanted - 4)


def test_only_the_part_of_an_outage_within_the_window_counts(home):
    now = clock.now()
    died("seren-001", now - 40 * DAY, 12 * 24)  # came back 28 days ago
    died("seren-002", now - 50 * DAY, 24)  # over before

    [one] = spare_reserves(now)

    assert (one.outages, one.days_away) == (1, pytest.approx(2, abs=0.01))


def test_node_that_was_down_all_the_time_counts_for_the_whole_window(home):
    now = clock.now()
    Event.objects.create(
        type="node.state_changed", cluster=home, node=Node.objects.get(name="seren-001"), by="sync", at=now - 40 * DAY,
        from_state="IDLE", to_state="DOWN",
    )  # fmt: skip

    [one] = spare_reserves(now)

    assert (one.outages, one.days_away) == (1, pytest.approx(30, abs=0.01))


def test_node_counts_since_it_was_added(home):
    now = clock.now()
    node = Node.objects.get(name="seren-004")
    Event.objects.create(
        type="node.state_changed",
        cluster=home,
        node=node,
        by="sync",
        at=now - 3 * DAY,
        from_state="UNKNOWN",
        to_state="IDLE",
    )

    [one] = spare_reserves(now)

    assert one.node_days == pytest.approx(3 * 30 + 3)


def test_nodes_without_outages_give_no_estimate(home):
    [one] = spare_reserves(clock.now())

    assert (one.outages, one.wanted, one.lacks) == (0, 0, 0) and "cannot be estimated" in one.sentence


def test_drain_by_a_user_is_not_an_outage_but_a_drain_by_recovery_is(home):
    by_hand, by_us = Node.objects.get(name="seren-001"), Node.objects.get(name="seren-002")
    node_actions.drain(by_hand, author=make.author(), why="new pumps", now=clock.now())
    node_actions.drain(by_us, author=RECOVERY_AUTHOR, why="GPUFallenOffBus", now=clock.now())

    [one] = spare_reserves(clock.now())

    assert (one.outages, one.free) == (1, 2)


def test_node_kinds_do_not_replace_each_other(home):
    Node.objects.filter(name="seren-004").update(gpu_model="h100")

    assert [(one.kind, one.nodes) for one in spare_reserves(clock.now())] == [("8 × a100", 3), ("8 × h100", 1)]


def test_page_shows_the_spare_reserves(home):
    node_actions.drain(Node.objects.get(name="seren-001"), author=RECOVERY_AUTHOR, why="ECC", now=clock.now())
    reader = Client()
    reader.force_login(make.user("ada"))

    page = reader.get("/settings/recovery/").content.decode()

    assert "Spares" in page and "8 × a100" in page and "binomial" in page
