"""Nodes that sleep: chosen after awake ones, and their boot is part of every promise."""

from __future__ import annotations

from datetime import timedelta

import pytest

from scheduling.engine.cluster import ClusterSnapshot
from scheduling.engine.placements import PLACEMENTS
from scheduling.engine.policies import LIVE_POLICIES, rules_factory
from scheduling.whatif.replay.start_estimates import start_estimates
from tests.make import NOON
from tests.scheduling.engine.test_engine import decide, node, started, waiting

BOOT_S = 600.0


def asleep(number, **fields):
    return node(number, boot_s=BOOT_S, **fields)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_awake_node_is_chosen_first(placement):
    decisions = decide("fifo", [asleep(1, free=2), node(2)], waiting(1), placement=placement)

    assert list(decisions.starts[0].places) == [2]
    assert "wake" not in decisions.starts[0].why


@pytest.mark.parametrize("policy", LIVE_POLICIES)
def test_job_starts_on_a_sleeping_node_if_no_other_has_room(policy):
    decisions = decide(policy, [asleep(1), node(2)], waiting(1, gpus=8), waiting(2, gpus=8))

    assert sorted(started(decisions)) == [1, 2]
    why = {next(iter(start.places)): start.why for start in decisions.starts}
    assert "1 node must wake up first, which takes about 10 min" in why[1]
    assert "wake up" not in why[2]


def test_gang_may_use_awake_and_sleeping_nodes():
    decisions = decide("fifo", [asleep(1), node(2), asleep(3)], waiting(1, nodes=3, gpus=8))

    assert set(decisions.starts[0].places) == {1, 2, 3}
    assert "2 nodes must wake up" in decisions.starts[0].why


def test_start_estimate_includes_the_boot_once():
    first, second = waiting(1, gpus=8, time_limit=timedelta(hours=1)), waiting(2, gpus=8)
    snapshot = ClusterSnapshot(now=NOON, nodes=(asleep(1),), waiting=(first, second))

    estimates = start_estimates(snapshot, rules_factory("fifo", {}))

    assert estimates[1].p50 == NOON + timedelta(seconds=BOOT_S)
    awake = start_estimates(
        ClusterSnapshot(now=NOON, nodes=(node(1),), waiting=(first, second)), rules_factory("fifo", {})
    )
    assert awake[1].p50 == NOON
    assert estimates[2].p50 == awake[2].p50 + timedelta(seconds=BOOT_S)
