"""The cluster's file of effects: parsing, and violations found in it."""

from __future__ import annotations

import json

from tests.chaos import judge
from tests.chaos.effects import Effect, parse, read_effects

JOB, OTHER = "0vqrm34vg06", "0vqrm34vg07"


def start(job_id, key=f"{JOB}.1"):
    return Effect(event="start", job_id=job_id, key=f"k3v9q2m7:{key}")


def end(job_id, key=f"{JOB}.1", *, code=0, signal=None):
    return Effect(event="end", job_id=job_id, key=f"k3v9q2m7:{key}", exit_code=code, signal=signal)


def line(**fields):
    row = {"event": "start", "job_id": 1, "key": f"{JOB}.1", "at": 1.0, "exit_code": None, "signal": None}
    return json.dumps(row | fields) + "\n"


def test_missing_file_has_no_effects(tmp_path):
    assert read_effects(tmp_path / "job_effects.jsonl") == []


def test_repeated_line_counts_once_and_incomplete_last_line_is_ignored(tmp_path):
    path = tmp_path / "job_effects.jsonl"
    path.write_text(line() + line() + line(event="end", exit_code=0) + line(job_id=2)[:20])

    assert [(effect.event, effect.job_id) for effect in read_effects(path)] == [("start", 1), ("end", 1)]


def test_truncated_line_is_skipped():
    assert [effect.job_id for effect in parse(line()[:30] + "\n" + line(job_id=2))] == [2]


def test_key_is_split_into_installation_job_and_attempt():
    (with_installation,) = parse(line(key=f"k3v9q2m7:{JOB}_3.2"))
    (without,) = parse(line(key=f"{JOB}.2"))
    (test_of_a_node,) = parse(line(key="k3v9q2m7:test.5.1700000000"))

    assert (with_installation.job, with_installation.attempt) == (f"{JOB}_3", f"{JOB}_3.2")
    assert without.job == JOB
    assert test_of_a_node.job == test_of_a_node.attempt == "test.5.1700000000"


def test_restart_after_exit_code_0_is_a_violation():
    again = [start(1), end(1), start(2, f"{JOB}.2")]

    assert list(judge.started_after_success(again)) == [
        f"{JOB} was started as k3v9q2m7:{JOB}.2 (cluster job 2) after k3v9q2m7:{JOB}.1 (cluster job 1)"
        " had ended with exit code 0"
    ]


def test_restart_after_a_failure_is_allowed():
    for failed in (end(1, code=1), end(1, code=0, signal=9), end(1, code=None, signal=9)):
        assert list(judge.side_effects([start(1), failed, start(2, f"{JOB}.2"), end(2, f"{JOB}.2")])) == []


def test_second_start_of_an_attempt_is_a_violation():
    twice = [start(1), end(1, code=1), Effect(event="start", job_id=2, key=f"{JOB}.1")]

    assert list(judge.started_twice(twice)) == [f"attempt {JOB}.1 was started 2 times, as cluster jobs 1, 2"]


def test_two_simultaneous_attempts_of_a_job_are_a_violation():
    (sentence,) = judge.overlapping([start(1), start(2, f"{JOB}.2"), end(1), end(2, f"{JOB}.2")])

    assert sentence == f"k3v9q2m7:{JOB}.2 (cluster job 2) was started while k3v9q2m7:{JOB}.1 (cluster job 1) ran"
    assert list(judge.overlapping([start(1), start(2, f"{OTHER}.1"), end(1)])) == []


def test_node_test_may_run_again():
    def effect(event, job_id):
        return Effect(event=event, job_id=job_id, key="test.5.1700000000", exit_code=0 if event == "end" else None)

    assert list(judge.side_effects([effect("start", 1), effect("end", 1), effect("start", 2)])) == []


def test_completed_job_without_a_successful_command_is_a_violation():
    failed = [start(1), end(1, code=1)]

    assert list(judge.success_without_effect({JOB: "COMPLETED"}, [JOB], failed)) == [
        f"{JOB} is COMPLETED, but no command of it ended with exit code 0"
    ]
    assert list(judge.success_without_effect({JOB: "COMPLETED"}, [JOB], [start(1), end(1)])) == []
    assert list(judge.success_without_effect({JOB: "FAILED"}, [JOB], failed)) == []


def test_successful_command_of_a_job_that_is_not_completed_is_a_violation():
    effects = [start(1), end(1)]

    (sentence,) = judge.success_not_recorded({JOB: "NODE_FAIL"}, effects, [])

    assert sentence == f"{JOB} is NODE_FAIL, but a command of it ended with exit code 0"
    assert list(judge.success_not_recorded({JOB: "COMPLETED"}, effects, [])) == []


def test_cancelled_job_with_a_successful_command_needs_a_cancellation_by_a_user():
    effects = [start(1), end(1)]

    assert list(judge.success_not_recorded({JOB: "CANCELLED"}, effects, [JOB])) == []
    assert len(list(judge.success_not_recorded({JOB: "CANCELLED"}, effects, []))) == 1


def test_job_lost_in_a_failover_is_not_a_violation():
    assert list(judge.success_not_recorded({}, [start(1), end(1)], [])) == []
