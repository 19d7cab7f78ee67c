"""A judge who has never convicted anybody proves nothing: every violation is shown to it once."""

from __future__ import annotations

import pytest

from tests.chaos import judge
from tests.chaos.judge import Closing, Done, Evidence, Kept, Ran, Told

FIRST, SECOND = ("n1", 0), ("n1", 1)


def submitted(job="a", id=1):
    return Told(id=id, group=id, what="job.submitted", job=job, target="PENDING")


def moved(source, target, *, job="a", id=2, group=None, gpus=None):
    held = None if gpus is None else frozenset(gpus)
    return Told(id=id, group=group or id, what="job.moved", job=job, source=source, target=target, gpus=held)


def placed(job, gpus, *, id, group):
    return Told(id=id, group=group, what="job.placed", job=job, gpus=frozenset(gpus))


def story(job="a", at=1, gpus=(FIRST,)):
    return [
        submitted(job, at),
        moved("PENDING", "RUNNING", job=job, id=at + 1, gpus=gpus),
        moved("RUNNING", "COMPLETED", job=job, id=at + 2),
    ]


def test_an_honest_record_is_acquitted():
    evidence = Evidence(
        accepted={"a": "train"},
        final_once={"a": "COMPLETED"},
        names=["train"],
        rows=[Kept(job="a", state="COMPLETED", attempts=1)],
        told=story(),
        ran=[Ran(key="a.1", state="COMPLETED", started=True)],
    )

    assert judge.violations(evidence) == []


@pytest.mark.parametrize(
    ("states", "sentence"),
    [({}, "a was accepted and is not in the record"), ({"a": "PENDING"}, "a is still PENDING")],
)
def test_a_job_that_is_gone_or_stuck_is_lost(states, sentence):
    assert list(judge.lost(["a"], states)) == [sentence]


def test_what_ran_twice_is_named_unless_the_second_run_was_cancelled():
    def run(state):
        return Ran(key="a.1", state=state, started=True)

    assert list(judge.run_twice([run("COMPLETED"), run("CANCELLED")], [])) == []
    assert list(judge.run_twice([run("COMPLETED"), run("FAILED")], [])) == ["attempt a.1 ran 2 times"]


def test_two_attempts_of_a_job_may_not_both_complete():
    ran = [Ran(key=f"a.{n}", state="COMPLETED", started=True) for n in (1, 2)]

    assert list(judge.run_twice(ran, [])) == ["a completed 2 times"]


def test_a_wish_that_became_two_jobs_is_named():
    assert list(judge.run_twice([], ["train", "train"])) == ["train is in the record 2 times"]


def test_a_gpu_with_two_holders_is_named_by_the_events():
    told = [*story("a")[:2], *story("b", at=11)]

    assert list(judge.held_twice(told)) == ["n1 GPU 0 was given to b while a held it (event 12)"]
    assert list(judge.held_twice([*story("a"), *story("b", at=11)])) == []


def test_gpus_that_were_swapped_in_one_transaction_had_one_holder_each():
    both = [*story("a", gpus=[FIRST])[:2], *story("b", at=11, gpus=[SECOND])[:2]]
    swap = [placed("a", [SECOND], id=20, group="t"), placed("b", [FIRST], id=21, group="t")]

    assert list(judge.held_twice([*both, *swap])) == []
    assert len(list(judge.held_twice([*both, swap[0]]))) == 1


def test_an_end_that_did_not_last_is_named():
    assert list(judge.moved_after_the_end({"a": "FAILED"}, [Kept(job="a", state="PENDING")], [])) == [
        "a was FAILED and is PENDING"
    ]
    assert list(judge.moved_after_the_end({}, [], [moved("FAILED", "PENDING")])) == ["a left FAILED (event 2)"]


@pytest.mark.parametrize(
    ("row", "told", "sentence"),
    [
        (Kept(job="a", state="PENDING"), [], "a: nobody wrote down that it was submitted"),
        (Kept(job="a", state="FAILED"), [submitted()], "a: the last Event says PENDING, the row FAILED"),
        (Kept(job="a", state="PENDING", attempts=1), [submitted()], "a: 1 attempts, but 0 promises were told"),
        (Kept(job="a", state="PENDING", live_attempts=1), [submitted()], "a is PENDING with 1 live attempts"),
        (
            Kept(job="a", state="FAILED"),
            [submitted(), moved("RUNNING", "FAILED")],
            "a: PENDING was followed by RUNNING to FAILED (event 2)",
        ),
    ],
)
def test_a_change_without_its_event_is_named(row, told, sentence):
    assert list(judge.untold([row], told)) == [sentence]


def test_a_record_that_does_not_come_to_rest_is_named():
    assert list(judge.unsteady("x", "x")) == []
    assert len(list(judge.unsteady("x", "y"))) == 1


def recovered(job="a", *, id, attempt="a.1"):
    return Told(id=id, group=id, what="job.recovered", job=job, attempt=attempt)


def test_a_decision_that_was_carried_out_twice_is_named():
    drained = Done(decision=7, kind="drained", node="n1")

    assert list(judge.carried_out_twice([drained, Done(decision=7, kind="drained", node="n2")], [])) == []
    assert list(judge.carried_out_twice([drained, drained], [])) == ["decision 7 has drained n1 2 times"]
    twice = [recovered(id=1), recovered(id=2)]
    assert list(judge.carried_out_twice([], twice)) == ["a.1 was recovered from 2 times"]
    assert list(judge.carried_out_twice([], [recovered(id=1), recovered(id=2, attempt="a.2")])) == []


def test_a_node_that_recovery_closed_twice_is_named_unless_somebody_opened_it():
    drained, resumed = ("node.drained", "recovery"), ("node.resumed", "olga")

    def story(*events):
        return [Closing(id=at, node="n1", what=what, by=by) for at, (what, by) in enumerate(events, 1)]

    assert list(judge.cordoned_twice(story(drained, resumed, drained))) == []
    assert list(judge.cordoned_twice(story(drained, ("node.drained", "olga")))) == []
    (sentence,) = judge.cordoned_twice(story(drained, ("node.drained", "olga"), drained))
    assert sentence == "n1 was drained by recovery, and was drained by it already (event 3)"


def test_a_job_that_was_started_again_while_it_ran_is_named():
    told = [submitted(), moved("PENDING", "RUNNING", id=2), recovered(id=3)]
    honest = [*told[:2], moved("RUNNING", "PENDING", id=3), recovered(id=4)]

    assert list(judge.restarted_alive(told)) == ["a was recovered while it was RUNNING (event 3)"]
    assert list(judge.restarted_alive(honest)) == []


def test_what_recovery_did_wrong_is_among_the_violations():
    drained = Done(decision=7, kind="tested")
    evidence = Evidence(done=[drained, drained])

    assert judge.violations(evidence) == ["decision 7 has tested 2 times"]
