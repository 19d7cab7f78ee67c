"""When a job is not tried again: the two ledgers as a table, and what must always hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.actions import jobs as job_actions
from jobs.actions import progress
from jobs.core.attempt_end import AttemptEnd
from jobs.core.lifecycle import Flag, State
from jobs.core.retry_budget import MAX_RETRIES, PastAttempt, crash_loop_reason, failure_cause
from jobs.models import Attempt, Event, Job, clock
from tests import make

A, B, C, D = "abcd"


def tries(*ends):
    """(cause, step, node), oldest first."""
    return [PastAttempt(cause=cause, step=step, nodes=frozenset({node})) for cause, step, node in ends]


@pytest.mark.parametrize(
    ("ends", "word"),
    [
        ([("oom", 10, A), ("oom", 10, B), ("oom", 9, C)], ""),
        ([("oom", 10, A), ("oom", 10, B), ("oom", 10, C), ("oom", 10, D)], "ended 4 times by oom without"),
        ([("oom", 10, A), ("oom", 10, A)], ""),
        ([("oom", 10, A), ("oom", 10, A), ("oom", 0, A)], "3 times by oom on a without"),
        # progress closes the ledgers
        ([("oom", 10, A), ("oom", 10, B), ("oom", 11, C), ("oom", 11, D)], ""),
        ([("oom", 10, A), ("oom", 10, A), ("oom", 11, A)], ""),
        # another cause between does not
        ([("oom", 5, A), ("oom", 5, B), ("nan", 5, A), ("oom", 5, C), ("oom", 5, D)], "4 times by oom"),
        # what is not known consumes nothing
        ([("oom", None, A)] * 9, ""),
        ([("oom", 5, A), ("oom", None, B), ("oom", None, C), ("oom", 5, D)], ""),
        # who was stopped did not fail
        ([("oom", 5, A), ("oom", 5, B), ("oom", 5, C), ("", 5, D)], ""),
        ([], ""),
    ],
)
def test_the_ledgers(ends, word):
    said = crash_loop_reason(tries(*ends))

    assert word in said and bool(said) is bool(word)


def test_a_gang_is_not_held_because_one_of_its_nodes_was_there_each_time():
    everywhere = frozenset({A, B, C, D})

    assert crash_loop_reason([PastAttempt(cause="nccl", step=5, nodes=everywhere)] * 3) == ""


ends = st.lists(
    st.builds(
        PastAttempt,
        cause=st.sampled_from(["", "oom", "nan"]),
        step=st.none() | st.integers(0, 5),
        nodes=st.frozensets(st.sampled_from([A, B]), min_size=1, max_size=1),
    ),
    max_size=8,
)


@given(ends)
def test_nobody_is_held_who_is_known_to_have_got_further(history):
    best = max((one.step for one in history if one.step is not None), default=0)

    assert crash_loop_reason([*history, PastAttempt(cause="oom", step=best + 1, nodes=frozenset({A}))]) == ""


@given(ends, st.sampled_from([A, B]))
def test_whoever_stands_still_is_held_in_the_end(history, node):
    best = max((one.step for one in history if one.step is not None), default=0)
    stuck = [PastAttempt(cause="oom", step=best, nodes=frozenset({node}))] * (MAX_RETRIES + 1)

    assert crash_loop_reason([*history, *stuck])


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ({"label": "CUDA_OOM", "exit_code": 1}, "CUDA_OOM"),
        ({"exit_code": 137, "signal": 9}, "signal 9"),
        ({"exit_code": 3}, "exit code 3"),
        ({}, "NODE_FAIL"),
    ],
)
def test_a_cause_is_the_diagnosis_or_how_the_command_ended(how, cause):
    facts = {"label": "", "state": "NODE_FAIL", "exit_code": None, "signal": None} | how

    assert failure_cause(**facts) == cause


# applied where attempts end


def fails_under(job, step):
    attempt = make.running(Job.objects.get(pk=job.pk))
    if step is not None:
        progress.record_attempt_heartbeats(attempt.key, [{"step": step}])
    job_actions.finish(attempt, AttemptEnd(state=State.NODE_FAIL, at=clock.now()), author=make.LOOP)
    return Job.objects.get(pk=job.pk)


def test_a_crash_loop_ends_in_a_hold_with_a_sentence_and_a_release_tries_once_more(db):
    job = make.job(gpus_per_node=1, requeue_limit=100)
    assert [fails_under(job, 10).flags for _ in range(2)] == [[Flag.REQUEUED]] * 2

    held = fails_under(job, 10)

    assert (held.state, held.flags, held.hold) == (State.PENDING, [Flag.REQUEUE_HOLD], "user")
    assert held.why.startswith("It ended 3 times by NODE_FAIL on seren-001 without a step of progress")
    job_actions.release(held, author=make.author())
    assert fails_under(job, 11).flags == [Flag.REQUEUED]


def test_a_job_that_reports_nothing_has_its_budget_alone(db):
    job = make.job(gpus_per_node=1, requeue_limit=4)

    assert [fails_under(job, None).state for _ in range(4)] == [State.PENDING] * 4
    last = fails_under(job, None)
    assert (last.state, last.requeues) == (State.NODE_FAIL, 4)


def test_who_gave_way_is_requeued_even_when_the_platform_has_spent_his_budget(db):
    job = make.job(gpus_per_node=1, requeue_limit=1, preemptible=True)
    assert fails_under(job, None).requeues == 1
    attempt = make.running(Job.objects.get(pk=job.pk))
    job_actions.preempt(attempt.job, author=make.LOOP, why="It gives way.")

    job_actions.finish(attempt, AttemptEnd(state=State.CANCELLED, at=clock.now()), author=make.LOOP)

    assert Job.objects.get(pk=job.pk).state == State.PENDING


# when the cause is known only after the decision


def ends_and_is_named(job, state, label):
    """It goes back into its queue, and later somebody has read its log."""
    attempt = make.running(Job.objects.get(pk=job.pk))
    progress.record_attempt_heartbeats(attempt.key, [{"step": 10}])
    job_actions.finish(attempt, AttemptEnd(state=State(state), at=clock.now()), author=make.LOOP)
    job_actions.set_failure_cause(attempt, label, author=make.LOOP)
    return Job.objects.get(pk=job.pk)


def test_ends_that_look_different_are_one_crash_loop_once_their_cause_is_known(db):
    job = make.job(gpus_per_node=1, requeue_limit=100)
    assert ends_and_is_named(job, "NODE_FAIL", "ECCError").hold == ""
    assert ends_and_is_named(job, "BOOT_FAIL", "ECCError").hold == ""

    held = ends_and_is_named(job, "NODE_FAIL", "ECCError")

    assert (held.state, held.flags, held.hold) == (State.PENDING, [Flag.REQUEUE_HOLD], "user")
    assert held.why.startswith("It ended 3 times by ECCError on seren-001 without a step of progress")
    assert Event.objects.filter(job=job, what="job.held", why=held.why).count() == 1


def test_ends_that_look_the_same_are_no_loop_when_their_causes_differ(db):
    job = make.job(gpus_per_node=1, requeue_limit=100)

    for label in ("ECCError", "NetworkError", "NodeFailure", "CUDAError"):
        assert ends_and_is_named(job, "NODE_FAIL", label).hold == ""


def test_what_started_again_before_its_cause_was_known_runs_on(db):
    job = make.job(gpus_per_node=1, requeue_limit=100)
    for _ in range(2):
        ends_and_is_named(job, "NODE_FAIL", "ECCError")
    last = make.running(Job.objects.get(pk=job.pk))
    progress.record_attempt_heartbeats(last.key, [{"step": 10}])
    job_actions.finish(last, AttemptEnd(state=State.BOOT_FAIL, at=clock.now()), author=make.LOOP)
    make.running(Job.objects.get(pk=job.pk))

    job_actions.set_failure_cause(last, "ECCError", author=make.LOOP)

    assert Job.objects.get(pk=job.pk).state == State.RUNNING


def test_a_correction_does_not_hold_again_what_a_person_has_released(db):
    job = make.job(gpus_per_node=1, requeue_limit=100)
    for state in ("NODE_FAIL", "BOOT_FAIL", "NODE_FAIL"):
        ends_and_is_named(job, state, "ECCError")
    job_actions.release(Job.objects.get(pk=job.pk), author=make.author())

    job_actions.set_failure_cause(Attempt.objects.get(job=job, number=3), "ECCError", author=make.author())

    assert Job.objects.get(pk=job.pk).hold == ""
