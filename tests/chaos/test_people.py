"""The operator of a storm records the true outcome of a job, from the cluster's own file."""

from __future__ import annotations

from random import Random

from tests.chaos.effects import Effect
from tests.chaos.people import true_outcome

JOB = "0vqrm34vg06"


def effect(event, job_id, *, number=1, code=None, signal=None):
    return Effect(event=event, job_id=job_id, key=f"k3v9q2m7:{JOB}.{number}", exit_code=code, signal=signal)


def outcomes(*effects):
    return {true_outcome(JOB, effects, Random(seed)) for seed in range(20)}


def test_job_whose_command_ended_with_exit_code_0_succeeded():
    assert outcomes(effect("start", 1), effect("end", 1, code=1), effect("start", 2), effect("end", 2, code=0)) == {
        "mark-succeeded"
    }


def test_job_whose_commands_failed_may_run_again():
    assert outcomes(effect("start", 1), effect("end", 1, code=1)) == {"mark-failed", "run-again"}
    assert outcomes(effect("start", 1), effect("end", 1, signal=9)) == {"mark-failed", "run-again"}


def test_job_that_never_ran_runs_again():
    assert outcomes() == {"run-again"}


def test_operator_decides_nothing_while_a_command_of_the_job_runs():
    assert outcomes(effect("start", 1), effect("end", 1, code=1), effect("start", 2)) == {""}
