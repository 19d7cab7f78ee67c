"""Which nodes fall asleep and wake up, and how many are needed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.power.rules.awake_nodes import STEP_S
from scheduling.power.rules.sleep_plan import (
    SleepCandidate,
    SleepPlan,
    SleepRules,
    boot_time_s,
    needed_nodes,
    sleep_plan,
)

NOW = 100 * 86_400.0
HOUR = 3600.0


def node(number, **fields):
    return SleepCandidate(id=number, **{"hardware": "a100", "is_idle": True, **fields})


def asleep(number, **fields):
    return node(number, is_asleep=True, **{"since_s": NOW - 2 * HOUR, **fields})


def plan(nodes, needed, **rules):
    return sleep_plan(nodes, needed, SleepRules(**rules), NOW)


HALF_AN_HOUR = [(int(NOW // STEP_S) - 3, 0)]


def needed(history=HALF_AN_HOUR, busy=0, queued=0, total=20, *, boot_s=600.0, reserve=1):
    return needed_nodes(history, busy, queued, total, NOW, boot_s=boot_s, reserve=reserve)


def test_node_that_is_awake_longest_falls_asleep_first():
    nodes = [node(1, since_s=NOW - 2 * HOUR), node(2, since_s=NOW - 3 * HOUR), node(3, is_idle=False)]

    assert plan(nodes, 2) == SleepPlan(sleep=(2,))


def test_node_that_is_asleep_longest_wakes_up_first():
    nodes = [node(1, is_idle=False), asleep(2), asleep(3, since_s=NOW - 3 * HOUR)]

    assert plan(nodes, 2) == SleepPlan(wake=(3,))


@pytest.mark.parametrize(
    "tired",
    [
        node(1, is_idle=False),
        node(1, may_sleep=False),
        node(1, since_s=NOW - HOUR + 1),
        node(1, wakes_today=4),
    ],
    ids=("busy", "drained", "just-woken-up", "woke-up-often"),
)
def test_node_stays_awake(tired):
    assert plan([tired, node(2, is_idle=False)], 0, reserve_nodes=0) == SleepPlan()


def test_node_sleeps_for_its_minimum_time():
    assert plan([node(1, is_idle=False), asleep(2, since_s=NOW - HOUR / 2 + 1)], 2) == SleepPlan()
    assert plan([node(1, is_idle=False), asleep(2, since_s=NOW - HOUR / 2)], 2) == SleepPlan(wake=(2,))


def test_each_kind_of_hardware_keeps_its_reserve():
    nodes = [node(1), node(2), node(3, hardware="h100"), asleep(4, hardware="v100")]

    assert plan(nodes, 0) == SleepPlan(wake=(4,))
    assert plan(nodes[:3], 0) == SleepPlan(sleep=(1,))
    assert plan(nodes[:3], 0, reserve_nodes=0) == SleepPlan(sleep=(1, 2, 3))


@given(
    st.lists(
        st.tuples(st.booleans(), st.booleans(), st.booleans(), st.integers(0, 10_000), st.integers(0, 5)), max_size=30
    ),
    st.integers(0, 40),
    st.integers(0, 3),
)
def test_plan_never_breaks_a_limit(drawn, want, reserve):
    nodes = [
        node(number, is_asleep=sleeps, is_idle=idle or sleeps, may_sleep=may, since_s=NOW - age, wakes_today=wakes)
        for number, (sleeps, idle, may, age, wakes) in enumerate(drawn)
    ]

    result = plan(nodes, want, reserve_nodes=reserve)

    by_id, awake = {one.id: one for one in nodes}, [one for one in nodes if not one.is_asleep]
    assert not (result.sleep and result.wake)
    for one in (by_id[number] for number in result.sleep):
        assert one.is_idle and one.may_sleep and not one.is_asleep and one.wakes_today < 4
        assert NOW - one.since_s >= HOUR
    assert all(by_id[number].is_asleep and NOW - by_id[number].since_s >= HOUR / 2 for number in result.wake)
    if result.sleep:
        assert len(awake) - len(result.sleep) >= want
        assert sum(one.is_idle for one in awake) - len(result.sleep) >= reserve


def test_running_and_waiting_jobs_are_always_needed():
    assert needed(busy=3, queued=5, reserve=2) == 10
    assert needed(busy=19, queued=5) == 20


def test_demand_of_the_last_half_hour_is_needed_with_its_reserve():
    step = int(NOW // STEP_S)
    calm = [(at, 4) for at in range(step - 2000, step)]

    assert needed(calm, busy=2) == 5
    assert needed([*calm[:-2], (step - 2, 12), (step - 1, 4)], busy=2) > 12
    assert needed([*calm[:-4], (step - 4, 12), *calm[-3:]], busy=2, total=20) < 12


def test_recurring_rise_makes_the_reserve_larger():
    step = int(NOW // STEP_S)
    mornings = [(at, 16 if at % 144 < 60 else 4) for at in range(step - 2000, step)]

    assert needed(mornings, busy=4) > needed([(at, 4) for at, _ in mornings], busy=4)


def test_later_steps_of_a_wrong_clock_are_ignored():
    step = int(NOW // STEP_S)

    assert needed([*HALF_AN_HOUR, (step + 5, 19)], busy=1) == needed(busy=1)


@pytest.mark.parametrize("known_steps", [(), (1,), (2, 1)])
def test_all_nodes_are_needed_until_the_demand_of_half_an_hour_is_known(known_steps):
    step = int(NOW // STEP_S)

    assert needed([(step - ago, 0) for ago in known_steps]) == 20


@pytest.mark.parametrize(
    ("boots", "expected"), [((), 600.0), ((90.0,), 90.0), (tuple(map(float, range(1, 101))), 96.0)]
)
def test_boot_time_is_a_late_one_of_the_past(boots, expected):
    assert boot_time_s(boots, 600.0) == expected
