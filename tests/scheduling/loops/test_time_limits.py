"""Rules enforced by the engine on every cluster: time limits, begin times, holds, dependencies, arrays."""

from datetime import timedelta

import pytest

from jobs.actions import jobs as job_actions
from jobs.core.deadlines import DeadlineAction
from jobs.core.lifecycle import State
from jobs.models import Attempt, ClusterCommand, Event, Job, clock
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.loops.commands.send import send_commands_once
from scheduling.loops.observe.sync import sync_cluster_once
from scheduling.loops.schedule import schedule_once
from scheduling.loops.time_limits import TIME_LIMIT_SLACK, enforce_time_limits_once
from tests import make
from tests.statements import before_statement

MINUTE = timedelta(minutes=1)


def on_cluster(slurm, **asked):
    """It has run for five minutes."""
    attempt = make.running(make.job(gpus_per_node=1, **asked), gpus=(len(slurm.known),))
    slurm.adopt(attempt)
    Attempt.objects.filter(pk=attempt.pk).update(seen_running_at=attempt.confirmed_at)
    ClusterCommand.objects.filter(kind="submit").update(done_at=clock.now())
    return attempt


def past_its_end(slurm, limit):
    attempt = on_cluster(slurm, time_limit="1:00")
    if limit == "its deadline":
        passed = clock.now() - timedelta(minutes=1)
        Job.objects.update(time_limit=None, deadline_at=passed, deadline_action=DeadlineAction.CANCEL)
    return attempt


def wanted(attempt):
    return Attempt.objects.get(pk=attempt.pk).stop_state


def test_attempt_over_its_limit_is_ended_if_the_cluster_does_not(cluster, slurm):
    attempt = on_cluster(slurm, time_limit="1:00")

    assert enforce_time_limits_once(cluster, clock.now()) == 1
    send_commands_once(cluster, slurm, clock.now())
    assert slurm.cancelled == [attempt.backend_id]
    slurm.end(attempt.key, State.CANCELLED, clock.now(), signal=15)
    sync_cluster_once(cluster, slurm, clock.now())

    assert Job.objects.get().state == State.TIMEOUT
    assert Event.objects.get(type="job.limit_requested").why == "The job reached its time limit of 00:01:00."


@pytest.mark.parametrize("stopped", ["its time limit", "its deadline"])
def test_job_that_had_failed_before_it_was_stopped_is_failed(cluster, slurm, stopped):
    """The cluster reports the end late, for example because it was unreachable."""
    attempt = past_its_end(slurm, stopped)

    assert enforce_time_limits_once(cluster, clock.now()) == 1
    slurm.end(attempt.key, State.FAILED, attempt.confirmed_at + timedelta(seconds=30), exit_code=1)
    sync_cluster_once(cluster, slurm, clock.now())

    job = Job.objects.get()
    assert (job.state, job.why) == (State.FAILED, "Its command ended with exit code 1.")


@pytest.mark.parametrize("stopped", ["its time limit", "its deadline"])
def test_attempt_that_the_cluster_does_not_show_is_not_stopped(cluster, slurm, stopped):
    """It may have ended long before, while its cluster was unreachable. Accounting says how."""
    attempt = past_its_end(slurm, stopped)
    Attempt.objects.update(missing_since=clock.now())

    assert enforce_time_limits_once(cluster, clock.now()) == 0
    assert wanted(attempt) == ""


def test_cluster_gets_time_to_enforce_the_limit_itself(cluster, slurm):
    attempt = on_cluster(slurm, time_limit=300)

    assert enforce_time_limits_once(cluster, clock.now()) == 0
    assert enforce_time_limits_once(cluster, clock.now() + TIME_LIMIT_SLACK + MINUTE) == 1
    assert wanted(attempt) == State.TIMEOUT


def test_a_cluster_whose_clock_is_ahead_holds_no_gpu_in_the_future(cluster, slurm):
    attempt = on_cluster(slurm, time_limit=300)
    slurm.end(attempt.key, State.COMPLETED, clock.now() + timedelta(minutes=5), exit_code=0)

    sync_cluster_once(cluster, slurm, clock.now())

    attempt.refresh_from_db()
    assert attempt.ended_at <= clock.now()
    assert attempt.allocations.filter(released_at__gt=clock.now()).count() == 0


def test_a_cluster_whose_clock_is_behind_does_not_end_jobs_early(cluster, slurm):
    """Its clock says that the job began ten minutes ago; it was first seen running just now."""
    attempt = on_cluster(slurm, time_limit=300)
    begun = clock.now() - timedelta(minutes=10)
    Attempt.objects.update(confirmed_at=begun, seen_running_at=clock.now())
    Job.objects.update(started_at=begun)

    assert enforce_time_limits_once(cluster, clock.now()) == 0
    assert enforce_time_limits_once(cluster, clock.now() + timedelta(minutes=9)) == 1
    assert wanted(attempt) == State.TIMEOUT


def test_attempt_without_a_limit_or_being_stopped_is_not_ended(cluster, slurm):
    free, going = on_cluster(slurm), on_cluster(slurm, time_limit="1:00")
    job_actions.cancel(going.job, author=make.author())

    assert enforce_time_limits_once(cluster, clock.now()) == 0
    assert (wanted(free), wanted(going)) == ("", State.CANCELLED)


def test_twice_is_once(cluster, slurm):
    on_cluster(slurm, time_limit="1:00")

    assert [enforce_time_limits_once(cluster, clock.now()) for _ in range(2)] == [1, 0]


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_no_attempt_is_ended_on_an_undriven_cluster(cluster, slurm, mode):
    attempt = on_cluster(slurm, time_limit="1:00")

    assert enforce_time_limits_once(make.cluster(mode=mode), clock.now()) == 0
    assert wanted(attempt) == ""


@pytest.mark.parametrize("policy", sorted(LIVE_POLICIES))
def test_every_policy_keeps_begin_times_holds_dependencies_and_arrays(cluster, policy):
    """An empty cluster could start all of them at once; none of it is left to the cluster."""
    soon = (clock.now() + MINUTE).isoformat()
    first, after, later, held = make.jobs(
        {"gpus_per_node": 1, "key": "a"},
        {"gpus_per_node": 1, "dependencies": "afterok:@a"},
        {"gpus_per_node": 1, "begin_at": soon},
        {"gpus_per_node": 1, "hold": True},
    )
    tasks = make.jobs({"gpus_per_node": 1, "array": "0-5%2"})

    for _ in range(2):
        schedule_once(cluster, LIVE_POLICIES[policy], clock.now(), lambda: None)

    states = dict(Job.objects.values_list("pk", "state"))
    assert [states[one.pk] for one in (first, after, later, held)] == ["RUNNING", "PENDING", "PENDING", "PENDING"]
    assert sorted(states[task.pk] for task in tasks).count("RUNNING") == 2

    schedule_once(cluster, LIVE_POLICIES[policy], clock.now() + 2 * MINUTE, lambda: None)
    assert Job.objects.get(pk=later.pk).state == State.RUNNING


# deadlines


def with_deadline(minutes, action="cancel", **asked):
    deadline_at = (clock.now() + minutes * MINUTE).isoformat()
    return {"deadline_at": deadline_at, "deadline_action": action, **asked}


def test_running_job_ends_at_its_deadline_if_it_asked_for_it(cluster, slurm):
    attempt = on_cluster(slurm, **with_deadline(10))
    wish = on_cluster(slurm, **with_deadline(10, "continue"))

    assert enforce_time_limits_once(cluster, clock.now()) == 0
    assert enforce_time_limits_once(cluster, clock.now() + 11 * MINUTE) == 1
    assert enforce_time_limits_once(cluster, clock.now() + 12 * MINUTE) == 0
    send_commands_once(cluster, slurm, clock.now())
    slurm.end(attempt.key, State.CANCELLED, clock.now(), signal=15)
    sync_cluster_once(cluster, slurm, clock.now())

    assert (wanted(attempt), wanted(wish)) == (State.DEADLINE, "")
    assert Job.objects.get(pk=attempt.job_id).state == State.DEADLINE
    assert Event.objects.get(type="job.limit_requested").why == "Its deadline passed."


def test_job_that_completes_before_the_stop_stays_completed(cluster, slurm):
    attempt = on_cluster(slurm, **with_deadline(10))
    enforce_time_limits_once(cluster, clock.now() + 11 * MINUTE)

    slurm.end(attempt.key, State.COMPLETED, clock.now(), exit_code=0)
    sync_cluster_once(cluster, slurm, clock.now())

    assert Job.objects.get().state == State.COMPLETED


@pytest.mark.parametrize(
    ("asked", "after", "state"),
    [
        (lambda: with_deadline(60, time_limit="30:00"), 29, State.PENDING),
        (lambda: with_deadline(60, time_limit="30:00"), 31, State.DEADLINE),
        (lambda: with_deadline(60), 59, State.PENDING),
        (lambda: with_deadline(60), 61, State.DEADLINE),
        (lambda: with_deadline(60, "continue", time_limit="30:00"), 61, State.PENDING),
    ],
    ids=["fits", "limit does not fit", "no limit", "passed", "continue"],
)
def test_waiting_job_ends_when_its_limit_no_longer_fits(cluster, asked, after, state):
    job = make.job(gpus_per_node=1, **asked())

    enforce_time_limits_once(cluster, clock.now() + after * MINUTE)

    job.refresh_from_db()
    assert (job.state, job.ended_at is not None) == (state, state == State.DEADLINE)


def test_job_with_an_unknown_outcome_does_not_end_at_its_deadline(cluster):
    job = make.job(gpus_per_node=1, **with_deadline(1))
    Job.objects.filter(pk=job.pk).update(flags=["OUTCOME_UNKNOWN"])

    assert enforce_time_limits_once(cluster, clock.now() + 2 * MINUTE) == 0


def test_job_that_was_cancelled_meanwhile_does_not_keep_others_from_ending(cluster):
    first, second = (make.job(gpus_per_node=1, **with_deadline(1)) for _ in range(2))

    with before_statement('UPDATE "jobs_job"', act=lambda: Job.objects.filter(pk=first.pk).update(state="CANCELLED")):
        enforce_time_limits_once(cluster, clock.now() + 2 * MINUTE)

    second.refresh_from_db()
    assert second.state == State.DEADLINE
