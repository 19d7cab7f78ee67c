"""Shows each kind of violation to the judge once: a judge that never reported anything would prove nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.chaos import judge
from tests.chaos.effects import Effect
from tests.chaos.judge import EndedAttempt, Evidence, Holding, JobEvent, JobRow, NodeEvent, Preemption, RecoveryStep

FIRST, SECOND = ("n1", 0), ("n1", 1)


def submitted(job="a", id=1):
    return JobEvent(id=id, group=id, type="job.submitted", job=job, target="PENDING")


def moved(source, target, *, job="a", id=2, group=None, gpus=None):
    held = None if gpus is None else frozenset(gpus)
    return JobEvent(
        id=id, group=group or id, type="job.state_changed", job=job, source=source, target=target, gpus=held
    )


def placed(job, gpus, *, id, group):
    return JobEvent(id=id, group=group, type="job.placed", job=job, gpus=frozenset(gpus))


def story(job="a", at=1, gpus=(FIRST,)):
    return [
        submitted(job, at),
        moved("PENDING", "RUNNING", job=job, id=at + 1, gpus=gpus),
        moved("RUNNING", "COMPLETED", job=job, id=at + 2),
    ]


def test_correct_data_has_no_violations():
    evidence = Evidence(
        accepted={"a": "train"},
        final_once={"a": "COMPLETED"},
        names=["train"],
        rows=[JobRow(job="a", state="COMPLETED", attempts=1)],
        events=story(),
        effects=[Effect(event="start", job_id=1, key="a"), Effect(event="end", job_id=1, key="a", exit_code=0)],
    )

    assert judge.violations(evidence) == []


@pytest.mark.parametrize(
    ("states", "sentence"),
    [({}, "a was accepted and is not in the database"), ({"a": "PENDING"}, "a is still PENDING")],
)
def test_missing_or_unfinished_job_is_a_violation(states, sentence):
    assert list(judge.lost(["a"], states)) == [sentence]


def test_request_that_became_two_jobs_is_a_violation():
    assert list(judge.recorded_twice(["train", "train"])) == ["train is in the database 2 times"]


def test_job_ended_by_its_time_limit_is_a_violation():
    assert list(judge.timed_out({"a": "TIMEOUT", "b": "FAILED"}, ["a", "b"])) == [
        "a is TIMEOUT, long before its time limit"
    ]


def test_cancelled_attempt_without_a_request_is_a_violation():
    def attempt(state, requested):
        return EndedAttempt(key="a.1", state=state, stop_requested=requested)

    assert list(judge.cancelled_by_nobody([attempt("CANCELLED", True), attempt("FAILED", False)])) == []
    assert list(judge.cancelled_by_nobody([attempt("CANCELLED", False)])) == [
        "attempt a.1 was cancelled without a request"
    ]
    assert list(judge.cancelled_by_nobody([attempt("CANCELLED", False)], {"a.1"})) == []


def test_success_of_an_attempt_that_somebody_else_stopped_need_not_be_recorded():
    key = "0vqrm34vg06.1"
    evidence = Evidence(
        rows=[JobRow(job="0vqrm34vg06", state="CANCELLED", attempts=1)],
        events=[*story("0vqrm34vg06")[:2], moved("RUNNING", "CANCELLED", job="0vqrm34vg06", id=3)],
        effects=[Effect(event="start", job_id=1, key=key), Effect(event="end", job_id=1, key=key, exit_code=0)],
        ended_attempts=[EndedAttempt(key=key, state="CANCELLED", stop_requested=False)],
    )

    assert len(judge.violations(evidence)) == 2
    assert judge.violations(replace(evidence, stopped_by_others={key})) == []


def test_attempt_that_ran_on_out_of_sight_is_not_counted():
    first, second = "0vqrm34vg06.1", "0vqrm34vg06.2"
    twice = [Effect(event="start", job_id=1, key=first), Effect(event="start", job_id=2, key=second)]

    assert len(judge.violations(Evidence(effects=twice))) == 1
    assert judge.violations(Evidence(effects=twice, out_of_sight={first})) == []


def test_gpu_with_two_holders_is_a_violation():
    events = [*story("a")[:2], *story("b", at=11)]

    assert list(judge.held_twice(events)) == ["n1 GPU 0 was given to b while a held it (12)"]
    assert list(judge.held_twice([*story("a"), *story("b", at=11)])) == []


def test_gpus_swapped_in_one_transaction_have_one_holder_each():
    both = [*story("a", gpus=[FIRST])[:2], *story("b", at=11, gpus=[SECOND])[:2]]
    swap = [placed("a", [SECOND], id=20, group="t"), placed("b", [FIRST], id=21, group="t")]

    assert list(judge.held_twice([*both, *swap])) == []
    assert len(list(judge.held_twice([*both, swap[0]]))) == 1


def test_changed_final_state_is_a_violation():
    assert list(judge.moved_after_the_end({"a": "FAILED"}, [JobRow(job="a", state="PENDING")], [])) == [
        "a was FAILED and is PENDING"
    ]
    assert list(judge.moved_after_the_end({}, [], [moved("FAILED", "PENDING")])) == ["a left FAILED (event 2)"]


@pytest.mark.parametrize(
    ("row", "events", "sentence"),
    [
        (JobRow(job="a", state="PENDING"), [], "a: no Event says that it was submitted"),
        (JobRow(job="a", state="FAILED"), [submitted()], "a: the last Event says PENDING, the row FAILED"),
        (JobRow(job="a", state="PENDING", attempts=1), [submitted()], "a: 1 attempts, but 0 Events of a promise"),
        (JobRow(job="a", state="PENDING", live_attempts=1), [submitted()], "a is PENDING with 1 live attempts"),
        (
            JobRow(job="a", state="FAILED"),
            [submitted(), moved("RUNNING", "FAILED")],
            "a: PENDING was followed by RUNNING to FAILED (event 2)",
        ),
    ],
)
def test_change_without_its_event_is_a_violation(row, events, sentence):
    assert list(judge.unexplained([row], events)) == [sentence]


def test_database_that_keeps_changing_is_a_violation():
    assert list(judge.unsteady("x", "x")) == []
    assert len(list(judge.unsteady("x", "y"))) == 1


def recovered(job="a", *, id, attempt="a.1"):
    return JobEvent(id=id, group=id, type="job.recovered", job=job, attempt=attempt)


def test_decision_executed_twice_is_a_violation():
    drained = RecoveryStep(decision=7, kind="drained", node="n1")

    assert list(judge.carried_out_twice([drained, RecoveryStep(decision=7, kind="drained", node="n2")], [])) == []
    assert list(judge.carried_out_twice([drained, drained], [])) == ["decision 7 has drained n1 2 times"]
    twice = [recovered(id=1), recovered(id=2)]
    assert list(judge.carried_out_twice([], twice)) == ["a.1 was recovered from 2 times"]
    assert list(judge.carried_out_twice([], [recovered(id=1), recovered(id=2, attempt="a.2")])) == []


def test_recovery_may_cordon_a_node_again_only_after_an_operator_resumed_it():
    drained, resumed = ("node.drained", "recovery"), ("node.resumed", "olga")

    def story(*events):
        return [NodeEvent(id=at, node="n1", type=what, by=by) for at, (what, by) in enumerate(events, 1)]

    assert list(judge.cordoned_twice(story(drained, resumed, drained))) == []
    assert list(judge.cordoned_twice(story(drained, ("node.drained", "olga")))) == []
    (sentence,) = judge.cordoned_twice(story(drained, ("node.drained", "olga"), drained))
    assert sentence == "n1 was drained by recovery, which had drained it before (event 3)"


def test_restart_of_a_running_job_is_a_violation():
    events = [submitted(), moved("PENDING", "RUNNING", id=2), recovered(id=3)]
    correct = [*events[:2], moved("RUNNING", "PENDING", id=3), recovered(id=4)]

    assert list(judge.restarted_alive(events)) == ["a was recovered while it was RUNNING (event 3)"]
    assert list(judge.restarted_alive(correct)) == []


def test_violations_include_errors_of_recovery():
    drained = RecoveryStep(decision=7, kind="tested")
    evidence = Evidence(steps=[drained, drained])

    assert judge.violations(evidence) == ["decision 7 has tested 2 times"]


BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def promise(after_s, job="a", gpus=(FIRST,)):
    event = moved("PENDING", "RUNNING", gpus=list(gpus))
    return replace(event, job=job, group=(job, after_s), at=BEGAN + timedelta(seconds=after_s))


def held_by_other(gpu=FIRST, job="b"):
    return Holding(job=job, attempt=f"{job}.1", gpu=gpu, since=BEGAN, until=BEGAN + timedelta(minutes=2))


def to_both(*events, others=(), effects=(), counted=()):
    """What is wrong with these events of one installation."""
    one, other = Evidence(events=events, counted_nodes=dict(counted)), Evidence(holdings=others)
    return list(judge.promised_to_both(one, other, effects))


def test_allocation_of_a_gpu_used_by_the_other_installation_is_a_violation():
    ended = Effect(event="end", job_id=1, key="other:b.1", exit_code=0, at=(BEGAN + timedelta(seconds=90)).timestamp())
    others = [held_by_other()]

    assert len(to_both(promise(60), others=others)) == 1
    assert to_both(promise(10), others=others) == []  # decided from older data
    assert to_both(promise(130), others=others) == []
    assert len(to_both(promise(85), others=others, effects=[ended])) == 1
    assert to_both(promise(100), others=others, effects=[ended]) == []  # ended before; its owner learned it later


def test_correction_that_keeps_a_gpu_promised_before_is_no_violation():
    node, number = FIRST
    corrected = promise(60, gpus=[FIRST, (node, number + 1)])

    assert to_both(promise(10), corrected, others=[held_by_other()]) == []
    assert len(to_both(promise(10, gpus=[(node, number + 1)]), corrected, others=[held_by_other()])) == 1


def test_allocation_of_more_gpus_than_a_counted_node_has_is_a_violation():
    node, _ = FIRST
    others = [held_by_other((node, number)) for number in (0, 1)]
    three, counted = promise(60, gpus=[(node, number) for number in (0, 1, 2)]), {node: 5}

    assert to_both(three, others=others, counted=counted) == []  # each installation numbers the GPUs itself
    (sentence,) = to_both(three, promise(70, "c", [(node, 3)]), others=others, counted=counted)
    assert "has 5 GPUs, and 6 were promised or in use" in sentence
    ended = replace(moved("RUNNING", "COMPLETED"), job="a", group="end", at=BEGAN + timedelta(seconds=65))
    assert to_both(three, ended, promise(70, "c", [(node, 3)]), others=others, counted=counted) == []


STARTED = datetime(2026, 1, 31, 12, tzinfo=UTC)


def seconds(number):
    return timedelta(seconds=number)


@pytest.mark.parametrize(
    ("facts", "breach"),
    [
        ({}, ""),
        ({"preemptible": False}, "although its job is not preemptible"),
        ({"exempt": seconds(100)}, ""),
        ({"exempt": seconds(101)}, "within 101 s of its start"),
        ({"exempt": seconds(1), "started_at": None}, "within 1 s of its start"),
        ({"per_day": 2, "earlier": [STARTED - seconds(60)]}, ""),
        ({"per_day": 1, "earlier": [STARTED - timedelta(hours=25)]}, ""),
        (
            {"per_day": 1, "earlier": [STARTED - seconds(60)]},
            "although it had been preempted 1 times within a day, of 1 allowed",
        ),
        ({"per_day": 0}, "although it had been preempted 0 times within a day, of 0 allowed"),
        ({"at_checkpoint": True, "saved_at": [STARTED + seconds(40)]}, ""),
        ({"at_checkpoint": True}, "without a new checkpoint"),
        ({"at_checkpoint": True, "saved_at": [STARTED - seconds(1)]}, "without a new checkpoint"),
        ({"at_checkpoint": True, "saved_at": [STARTED + seconds(101)]}, "without a new checkpoint"),
    ],
)
def test_preemption_outside_its_contract_is_a_violation(facts, breach):
    at = STARTED + seconds(100)
    common = {"job": "a", "attempt": "a.1", "decided_at": at, "queued_at": at, "started_at": STARTED}

    found = judge.violations(Evidence(preemptions=[Preemption(**(common | facts))]))

    assert found == ([f"a.1 was preempted {breach}"] if breach else [])
