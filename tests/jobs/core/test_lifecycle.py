"""The tables of states and transitions, and how states are shown."""

import re
from itertools import product

import pytest

from acmeweb.common.errors import StateConflict
from jobs.core import lifecycle
from jobs.core.lifecycle import (
    FINAL_STATES,
    JOB_STATES,
    LIVE_STATES,
    STATE_CODES,
    STATE_STYLES,
    TRANSITIONS,
    Flag,
    NodeFlag,
    NodeState,
    State,
)


@pytest.mark.parametrize("state", sorted(FINAL_STATES))
def test_final_state_never_changes(state):
    for target in State:
        with pytest.raises(StateConflict, match=f"a job that is {state} cannot become {target}"):
            lifecycle.check_transition(state, target)


def test_every_state_is_reachable_from_pending():
    reached = {State.PENDING}
    while more := {target for source, target in TRANSITIONS if source in reached} - reached:
        reached |= more

    assert reached == set(JOB_STATES)


def test_live_and_waiting_states_are_not_final():
    assert set(State) == FINAL_STATES | LIVE_STATES | {State.PENDING}
    assert not FINAL_STATES & LIVE_STATES


def test_every_transition_has_a_sentence():
    assert all(re.fullmatch(r"[A-Z].+\.", sentence) for sentence in TRANSITIONS.values())


def test_no_transition_leads_to_its_own_state():
    assert all(source != target for source, target in TRANSITIONS)


@pytest.mark.parametrize(
    ("state", "flags", "shown"),
    [
        (State.RUNNING, [], "RUNNING"),
        (State.RUNNING, [Flag.CONFIGURING], "CONFIGURING"),
        (State.RUNNING, [Flag.SIGNALING], "SIGNALING"),
        (State.RUNNING, [Flag.SIGNALING, Flag.CONFIGURING], "SIGNALING"),
        (State.PENDING, [Flag.REQUEUED], "REQUEUED"),
        (State.PENDING, [Flag.REQUEUE_HOLD, Flag.LAUNCH_FAILED], "REQUEUE_HOLD"),
        (State.COMPLETED, [Flag.COMPLETING], "COMPLETED"),
    ],
)
def test_job_is_named_by_its_most_important_flag(state, flags, shown):
    assert lifecycle.badge(state, flags).label == shown


def test_every_state_is_recognizable_without_color():
    for state, flags in product(State, [[], [Flag.CONFIGURING], [Flag.SIGNALING]]):
        badge = lifecycle.badge(state, flags)
        assert badge.icon and badge.label and badge.code


def test_every_styled_state_has_a_slurm_code():
    assert set(STATE_STYLES) <= set(STATE_CODES)


@pytest.mark.parametrize(
    ("state", "flags", "short", "works"),
    [
        (NodeState.IDLE, [], "idle", True),
        (NodeState.MIXED, [], "mix", True),
        (NodeState.ALLOCATED, [NodeFlag.DRAIN], "drng", False),
        (NodeState.IDLE, [NodeFlag.DRAIN], "drain", False),
        (NodeState.DOWN, [NodeFlag.NOT_RESPONDING], "down*", False),
        (NodeState.IDLE, [NodeFlag.NOT_RESPONDING], "idle*", False),
        (NodeState.IDLE, [NodeFlag.MAINTENANCE], "maint", False),
        (NodeState.UNKNOWN, [], "unk", False),
    ],
)
def test_nodes_have_the_names_of_sinfo(state, flags, short, works):
    assert lifecycle.node_badge(state, flags).code == short
    assert lifecycle.is_schedulable(state, flags) is works


@pytest.mark.parametrize(
    ("gpus", "used", "busy", "expected"),
    [
        (8, 0, False, NodeState.IDLE),
        (8, 3, True, NodeState.MIXED),
        (8, 8, True, NodeState.ALLOCATED),
        (0, 0, True, NodeState.MIXED),
        (8, 0, True, NodeState.MIXED),
    ],
)
def test_state_of_a_healthy_node_follows_from_its_load(gpus, used, busy, expected):
    assert lifecycle.node_state_for_usage(gpus, used, busy) == expected


@pytest.mark.parametrize(
    ("state", "flags", "label", "tone"),
    [
        (NodeState.IDLE, [], "IDLE", "good"),
        (NodeState.IDLE, [NodeFlag.NOT_RESPONDING], "IDLE*", "bad"),
        (NodeState.IDLE, [NodeFlag.DRAIN], "DRAINED", "drain"),
        (NodeState.MIXED, [NodeFlag.DRAIN], "DRAINING", "drain"),
        (NodeState.MIXED, [NodeFlag.RESERVED, NodeFlag.MAINTENANCE], "MAINTENANCE", "drain"),
        (NodeState.DOWN, [NodeFlag.DRAIN], "DOWN", "bad"),
    ],
)
def test_node_that_does_not_respond_is_shown_as_bad(state, flags, label, tone):
    badge = lifecycle.node_badge(state, flags)

    assert (badge.label, badge.tone) == (label, tone)


@pytest.mark.parametrize(
    ("state", "flags", "condition"),
    [
        (NodeState.IDLE, [], "UP"),
        (NodeState.ALLOCATED, [NodeFlag.COMPLETING, NodeFlag.PLANNED], "UP"),
        (NodeState.MIXED, [NodeFlag.NOT_RESPONDING, NodeFlag.DRAIN, NodeFlag.DRAIN], "UP+DRAIN+NOT_RESPONDING"),
        (NodeState.DOWN, [NodeFlag.COMPLETING, NodeFlag.FAIL], "DOWN+FAIL"),
        (NodeState.UNKNOWN, [], "UNKNOWN"),
    ],
)
def test_condition_of_a_node_is_its_health_and_drains_but_not_its_load(state, flags, condition):
    assert lifecycle.node_condition(state, flags) == condition


@pytest.mark.parametrize(
    ("condition", "health", "flags"),
    [
        ("UP", "UP", []),
        ("UP+DRAIN+FAIL", "UP", ["DRAIN", "FAIL"]),
        ("DOWN+DRAIN", "DOWN", ["DRAIN"]),
        ("MIXED", "UP", []),
    ],
)
def test_condition_is_split_into_health_and_flags(condition, health, flags):
    assert lifecycle.parse_node_condition(condition) == (health, flags)
