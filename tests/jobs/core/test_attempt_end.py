"""The rules that decide what a job becomes when an attempt ends."""

import pytest

from jobs.core import attempt_end
from jobs.core.attempt_end import AttemptEnd
from jobs.core.lifecycle import FINAL_STATES, Flag, State
from tests.make import NOON


def after(state, requested="", budget=0, **fields):
    return attempt_end.transition_after_end(
        AttemptEnd(state=state, at=NOON, **fields), requested=requested, budget=budget
    )


@pytest.mark.parametrize(
    ("ended", "requested", "budget", "becomes", "spends"),
    [
        (State.COMPLETED, "", 0, State.COMPLETED, False),
        (State.COMPLETED, State.CANCELLED, 0, State.COMPLETED, False),
        (State.FAILED, "", 3, State.FAILED, False),
        (State.FAILED, State.CANCELLED, 3, State.CANCELLED, False),
        (State.FAILED, State.PENDING, 0, State.PENDING, False),
        (State.CANCELLED, "", 3, State.CANCELLED, False),
        (State.CANCELLED, State.PREEMPTED, 1, State.PENDING, False),
        (State.CANCELLED, State.PREEMPTED, 0, State.PREEMPTED, False),
        (State.CANCELLED, State.TIMEOUT, 3, State.TIMEOUT, False),
        (State.NODE_FAIL, "", 1, State.PENDING, True),
        (State.NODE_FAIL, "", 0, State.NODE_FAIL, False),
        (State.NODE_FAIL, State.CANCELLED, 1, State.CANCELLED, False),
        (State.BOOT_FAIL, "", 2, State.PENDING, True),
        (State.TIMEOUT, "", 3, State.TIMEOUT, False),
        (State.OUT_OF_MEMORY, "", 3, State.OUT_OF_MEMORY, False),
    ],
)
def test_reported_end_and_requested_state_decide_the_new_state(ended, requested, budget, becomes, spends):
    following = after(ended, requested, budget)

    assert (following.state, following.spends_budget) == (becomes, spends)


@pytest.mark.parametrize("state", sorted(FINAL_STATES))
def test_every_end_has_an_explanation(state):
    assert after(state).why.endswith(".")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"exit_code": 3}, "Its command ended with exit code 3."),
        ({"signal": 9}, "Its command was ended by signal 9."),
        ({"exit_code": 137, "signal": 9}, "Its command was ended by signal 9."),
    ],
)
def test_failed_job_shows_how_its_command_ended(fields, why):
    assert after(State.FAILED, **fields).why == why


def test_rejected_job_is_held_until_a_user_releases_it():
    following = attempt_end.transition_after_refusal("invalid account")

    assert following.state == State.PENDING
    assert Flag.REQUEUE_HOLD in following.flags
    assert following.why == "The cluster rejected the job: invalid account"


@pytest.mark.parametrize("state", [State.NODE_FAIL, State.BOOT_FAIL, State.PREEMPTED])
def test_end_of_an_attempt_says_nothing_about_the_requeues_of_its_job(state):
    assert "requeue" not in AttemptEnd(state=state, at=NOON).sentence
    assert "no requeues remain" in after(State.NODE_FAIL, budget=0).why
