"""The exact bounds of the limits of a mode and of the circuit breaker."""

from dataclasses import replace
from datetime import timedelta

import pytest

from failures.recovery.rules.limits import breaker_trip_reason
from failures.recovery.rules.remedies import AutomationMode, RecoveryAction
from failures.recovery.rules.resizing import JobRequest, build_memory_request
from failures.recovery.rules.values import CircuitBreaker
from tests.failures.recovery.test_recovery import EVERYTHING, MINUTE, NOW, decided, done, failed, past

SECOND = timedelta(seconds=1)
BREAKER = CircuitBreaker(cordoned_share=0.1, restarts=3)


def suspected(**fields):
    return failed(**({"suspects": frozenset({"n2"})} | fields))


def elsewhere(count, **fields):
    return [done(RecoveryAction.ELSEWHERE, **fields)] * count


def drained(count, minutes=5):
    return [
        done(RecoveryAction.ELSEWHERE, minutes=minutes, nodes=frozenset({f"x{number}"}), job=f"x{number}")
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("facts", "history", "mode"),
    [
        # a failure expires after its term, not at it
        ({"at": NOW - 30 * MINUTE}, {}, AutomationMode.ACT),
        ({"at": NOW - 30 * MINUTE - SECOND}, {}, AutomationMode.OBSERVE),
        # the threshold itself is confident enough
        ({"confidence": EVERYTHING.sure}, {}, AutomationMode.ACT),
        ({"confidence": EVERYTHING.sure - 0.01}, {}, AutomationMode.PROPOSE),
        # the third action within the hour is the last one; those of an hour ago, of other jobs and others do not count
        ({}, {"done": elsewhere(2)}, AutomationMode.ACT),
        ({}, {"done": elsewhere(3)}, AutomationMode.PROPOSE),
        ({}, {"done": elsewhere(2) + elsewhere(1, minutes=60)}, AutomationMode.ACT),
        ({}, {"done": elsewhere(2) + elsewhere(1, job="j2")}, AutomationMode.ACT),
        ({}, {"done": [*elsewhere(2), done(RecoveryAction.RESTART)]}, AutomationMode.ACT),
        # run time of exactly the bound is cheap enough to repeat
        ({"checkpoints": (), "ran": 30 * MINUTE}, {}, AutomationMode.ACT),
        ({"checkpoints": (), "ran": 30 * MINUTE + SECOND}, {}, AutomationMode.PROPOSE),
        # loaded step 0 and lost it
        ({"checkpoints": (), "ran": MINUTE, "started_from": 0}, {}, AutomationMode.PROPOSE),
    ],
)
def test_limit_holds_from_its_bound_on(facts, history, mode):
    assert decided(suspected(**facts), past(250, **history)).mode is mode


@pytest.mark.parametrize(("step", "mode"), [(0, AutomationMode.ACT), (1, AutomationMode.PROPOSE)])
def test_job_without_progress_needs_no_checkpoint(step, mode):
    assert decided(suspected(checkpoints=()), past(step)).mode is mode


def test_number_and_period_of_repetitions_are_stated():
    decision = decided(suspected(), past(250, done=elsewhere(4)))

    assert decision.limits == ((AutomationMode.PROPOSE, "“restart elsewhere” was carried out 4 times within 1 h"),)


def out_of_memory(command, **labels):
    request = build_memory_request(JobRequest(command=command), most_memory_mb=0, whole_nodes=False)
    return decided(failed("OutOfMemoryError", request=request, labels=labels), past(250, cause="OutOfMemoryError"))


@pytest.mark.parametrize(
    ("command", "labels", "limits"),
    [
        ("t.py --mbs 8 --gbs 64", {"acme-resize": "on"}, []),
        ("t.py --mbs 8 --gbs 64", {"acme-resize": "off"}, ["only with the label acme-resize=on"]),
        ("t.py --mbs 8 --gbs 64", {}, ["only with the label acme-resize=on"]),
        ("t.py --batch-size 8", {"acme-resize": "on"}, ["reduce the global batch"]),
        ("t.py --batch-size 8", {}, ["only with the label", "reduce the global batch"]),
        ("t.py", {}, []),
    ],
)
def test_request_is_changed_automatically_only_with_consent_and_an_unchanged_batch(command, labels, limits):
    decision = out_of_memory(command, **labels)

    assert len(decision.limits) == len(limits)
    for (mode, why), word in zip(decision.limits, limits, strict=True):
        assert mode is AutomationMode.PROPOSE and word in why


# --- the circuit breaker of a cluster


@pytest.mark.parametrize(
    ("nodes", "cluster_nodes", "trips"),
    [
        (3, 30, False),  # exactly the share
        (3, 29, True),
        (1, 4, False),  # one node may always be drained
        (2, 4, True),
        (0, 0, False),
    ],
)
def test_circuit_breaker_trips_above_its_share_of_nodes(nodes, cluster_nodes, trips):
    history = past(cluster_nodes=cluster_nodes, done=drained(nodes))

    assert bool(breaker_trip_reason(history, replace(BREAKER, restarts=99), NOW)) is trips


def test_nodes_about_to_be_drained_count_once():
    history = past(cluster_nodes=20, done=drained(2))
    breaker = replace(BREAKER, restarts=99)

    assert breaker_trip_reason(history, breaker, NOW, frozenset({"x0", "x1"})) == ""
    assert (
        breaker_trip_reason(history, breaker, NOW, frozenset({"n1"}))
        == "3 of 20 nodes would be drained within 30 minutes; the limit is 10%"
    )


def test_drains_before_the_window_and_nodes_of_plain_restarts_do_not_count():
    breaker = replace(BREAKER, restarts=99)
    restarts = [done(nodes=frozenset({f"x{number}"})) for number in range(3)]

    assert breaker_trip_reason(past(cluster_nodes=20, done=drained(3, minutes=30)), breaker, NOW) == ""
    assert breaker_trip_reason(past(cluster_nodes=20, done=drained(3, minutes=29)), breaker, NOW) != ""
    assert breaker_trip_reason(past(cluster_nodes=20, done=restarts), breaker, NOW) == ""


@pytest.mark.parametrize(
    ("actions", "trips"),
    [
        ([done()] * 2, False),
        ([done()] * 3, True),
        ([done()] * 2 + [done(minutes=60)], False),
        ([done()] * 2 + [done(minutes=59)], True),
        ([done()] * 2 + [done(RecoveryAction.RESIZE)], True),
        ([done()] * 2 + [done(RecoveryAction.STOP)], False),
    ],
)
def test_circuit_breaker_counts_the_restarts_of_its_window(actions, trips):
    reason = breaker_trip_reason(past(cluster_nodes=99, done=actions), BREAKER, NOW)

    assert reason == ("3 jobs were restarted within 60 minutes; the limit is 3" if trips else "")


def test_tripped_circuit_breaker_does_not_hold_back_actions_without_a_restart():
    many = [done(job=f"x{number}") for number in range(60)]

    assert decided(failed("KeyError"), past(250, cause="KeyError", done=many)).is_automatic
    assert not decided(suspected(), past(250, done=many)).is_automatic
