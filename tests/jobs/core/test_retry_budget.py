"""When a job is not retried: the two counters as a table, and properties that always hold."""

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
    """Attempts from (cause, step, node), oldest first."""
    return [PastAttempt(cause=cause, step=step, nodes=frozenset({node})) for cause, step, node in ends]


@pytest.mark.parametrize(
    ("ends", "word"),
    [
        ([("oom", 10, A), ("oom", 10, B), ("oom", 9, C)], ""),
        ([("oom", 10, A), ("oom", 10, B), ("oom", 10, C), ("oom", 10, D)], "4 failures with cause oom without"),
        ([("oom", 10, A), ("oom", 10, A)], ""),
        ([("oom", 10, A), ("oom", 10, A), ("oom", 0, A)], "3 failures with cause oom on a without"),
        # progress resets the counters
        ([("oom", 10, A), ("oom", 10, B), ("oom", 11, C), ("oom", 11, D)], ""),
        ([("oom", 10, A), ("oom", 10, A), ("oom", 11, A)], ""),
        # a failure with another cause does not
        ([("oom", 5, A), ("oom", 5, B), ("nan", 5, A), ("oom", 5, C), ("oom", 5, D)], "4 failures with cause oom"),
        # attempts with unknown progress do not count
        ([("oom", None, A)] * 9, ""),
        ([("oom", 5, A), ("oom", None, B), ("oom", None, C), ("oom", 5, D)], ""),
        # a stopped attempt is not a failure
        ([("oom", 5, A), ("oom", 5, B), ("oom", 5, C), ("", 5, D)], ""),
        ([], ""),
    ],
)
def test_retry_counters_decide_when_to_hold(ends, word):
    reason = crash_loop_reason(tries(*ends))

    assert word in reason and bool(reason) is bool(word)


def test_job_on_several_nodes_is_not_held_because_of_one_common_node():
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
def test_job_with_progress_is_not_held(history):
    best = max((one.step for one in history if one.step is not None), default=0)

    assert crash_loop_reason([*history, PastAttempt(cause="oom", step=best + 1, nodes=frozenset({A}))]) == ""


@given(ends, st.sampled_from([A, B]))
def test_job_without_progress_is_finally_held(history, node):
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
def test_cause_is_the_diagnosis_or_how_the_command_ended(how, cause):
    facts = {"label": "", "state": "NODE_FAIL", "exit_code": None, "signal": None} | how

    assert failure_cause(**facts) == cause


# the rules as applied by `finish`


def fails_under(job, step):
    attempt = make.running(Job.objects.get(pk=job.pk))
    if step is not None:
        progress.record_attempt_heartbeats(attempt.key, [{"step": step}])
    job_actions.finish(attempt, AttemptEnd(state=State.NODE_FAIL, at=clock.now()), author=make.LOOP)
    return Job.objects.get(pk=job.pk)


def test_crash_looping_job_is_held_and_a_release_allows_one_more_try(db):
    job = make.job(gpus_per_node=1, requeue_limit=100)
    assert [fails_under(job, 10).flags for _ in range(2)] == [[Flag.REQUEUED]] * 2

    held = fails_under(job, 10)

    assert (held.state, held.flags, held.hold) == (State.PENDING, [Flag.REQUEUE_HOLD], "user")
    assert held.why.startswith("Held after 3 failures with cause NODE_FAIL on seren-001 without progress")
    job_actions.release(held, author=make.author())
    assert fails_under(job, 11).flags == [Flag.REQUEUED]


def test_job_without_reports_is_limited_only_by_its_requeues(db):
    job = make.job(gpus_per_node=1, requeue_limit=4)

    assert [fails_under(job, None).state for _ in range(4)] == [State.PENDING] * 4
    last = fails_under(job, None)
    assert (last.state, last.requeues) == (State.NODE_FAIL, 4)


def test_preempted_job_is_requeued_even_without_remaining_requeues(db):
    job = make.job(gpus_per_node=1, requeue_limit=1, preemptible=True)
    assert fails_under(job, None).requeues == 1
    attempt = make.running(Job.objects.get(pk=job.pk))
    job_actions.preempt(attempt.job, author=make.LOOP, why="It gives way.")

    job_actions.finish(attempt, AttemptEnd(state=State.CANCELLED, at=clock.now()), author=make.LOOP)

    assert Job.objects.get(pk=job.pk).state == State.PENDING


# the cause becomes known after the decision


def ends_and_is_named(job, state, label):
    """The job fails and is requeued; afterwards the diagnosis is recorded."""
    attempt = make.running(Job.objects.get(pk=job.pk))
    progress.record_attempt_heartbeats(attempt.key, [{"step": 10}])
    job_actions.finish(attempt, AttemptEnd(state=State(state), at=clock.now()), author=make.LOOP)
    job_actions.set_failure_cause(attempt, label, author=make.LOOP)
    return Job.objects.get(pk=job.pk)


def test_different_ends_with_the_same_diagnosis_are_one_crash_loop(db):
    job = make.job(gpus_per_node=1, requeue_limit=100)
    assert ends_and_is_named(job, "NODE_FAIL", "ECCError").hold == ""
    assert ends_and_is_named(job, "BOOT_FAIL", "ECCError").hold == ""

    held = ends_and_is_named(job, "NODE_FAIL", "ECCError")

    assert (held.state, held.flags, held.hold) == (State.PENDING, [Flag.REQUEUE_HOLD], "user")
    assert held.why.startswith("Held after 3 failures with cause ECCError on seren-001 without progress")
    assert Event.objects.filter(job=job, type="job.held", why=held.why).count() == 1


def test_equal_ends_with_different_diagnoses_are_no_crash_loop(db):
    job = make.job(gpus_per_node=1, requeue_limit=100)

    for label in ("ECCError", "NetworkError", "NodeFailure", "CUDAError"):
        assert ends_and_is_named(job, "NODE_FAIL", label).hold == ""


def test_job_that_restarted_before_its_diagnosis_keeps_running(db):
    job = make.job(gpus_per_node=1, requeue_limit=100)
    for _ in range(2):
        ends_and_is_named(job, "NODE_FAIL", "ECCError")
    last = make.running(Job.objects.get(pk=job.pk))
    progress.record_attempt_heartbeats(last.key, [{"step": 10}])
    job_actions.finish(last, AttemptEnd(state=State.BOOT_FAIL, at=clock.now()), author=make.LOOP)
    make.running(Job.objects.get(pk=job.pk))

    job_actions.set_failure_cause(last, "ECCError", author=make.LOOP)

    assert Job.objects.get(pk=job.pk).state == State.RUNNING


def test_corrected_diagnosis_does_not_hold_a_released_job_again(db):
    job = make.job(gpus_per_node=1, requeue_limit=100)
    for state in ("NODE_FAIL", "BOOT_FAIL", "NODE_FAIL"):
        ends_and_is_named(job, state, "ECCError")
    job_actions.release(Job.objects.get(pk=job.pk), author=make.author())

    job_actions.set_failure_cause(Attempt.objects.get(job=job, number=3), "ECCError", author=make.author())

    assert Job.objects.get(pk=job.pk).hold == ""
