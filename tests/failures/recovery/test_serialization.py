"""Inputs of decisions survive a round trip through JSON."""

import json

from hypothesis import given

from failures.recovery.rules.remedies import AutomationMode
from failures.recovery.rules.resizing import JobRequest, build_memory_request
from failures.recovery.rules.serialization import from_json, to_json_value
from failures.recovery.rules.values import FailureFacts, FailureHistory, RecoveryPolicy
from tests.failures.recovery.test_recovery import MINUTE, failed
from tests.failures.recovery.test_recovery import facts as any_facts
from tests.failures.recovery.test_recovery import histories as any_histories


def stored(value):
    return json.loads(json.dumps(to_json_value(value)))


@given(any_facts, any_histories)
def test_decision_inputs_are_restored_from_json(case, history):
    restored = from_json(FailureHistory, stored(history))

    assert from_json(FailureFacts, stored(case)) == case
    assert (list(restored.tries), list(restored.done)) == (list(history.tries), list(history.done))
    assert (list(restored.overrides), restored.cluster_nodes) == (list(history.overrides), history.cluster_nodes)


def test_modes_and_durations_of_a_policy_are_restored():
    policy = RecoveryPolicy(modes={("llm", "*"): AutomationMode.ACT}, first_wait=2 * MINUTE, sure=0.9)

    restored = from_json(RecoveryPolicy, stored(policy))

    assert restored == policy
    assert restored.modes["llm", "*"] is AutomationMode.ACT


def test_nested_request_is_restored():
    request = build_memory_request(JobRequest(command="t.py --mbs 8 --gbs $N"), most_memory_mb=5, whole_nodes=True)
    facts = failed("OutOfMemoryError", request=request, ran=3 * MINUTE)

    assert from_json(FailureFacts, stored(facts)) == facts


def test_unknown_fields_are_dropped_and_missing_ones_get_their_default():
    older = {"cluster_nodes": 7, "removed_field": [1]}

    assert from_json(FailureHistory, older) == FailureHistory(cluster_nodes=7)
