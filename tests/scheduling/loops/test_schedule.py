"""Schedule: starts, wait reasons, and concurrent changes."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs.actions import jobs as job_actions
from jobs.actions import nodes as node_actions
from jobs.core import attempt_end
from jobs.core.lifecycle import RECOVERING, Flag, State
from jobs.models import Allocation, Attempt, Job, Quota, clock
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.loops.schedule import schedule_once
from scheduling.loops.turn import LeaseLost
from scheduling.queries import snapshot
from tests import make


def schedule(cluster, policy="fifo-skip", fence=lambda: None):
    return schedule_once(cluster, LIVE_POLICIES[policy], clock.now(), fence)


def state_of(job):
    return Job.objects.get(pk=job.pk)


# who is eligible, in which order


def test_higher_priority_starts_first_then_the_earlier_submission(cluster):
    late, early, urgent = (
        make.job(name="late", gpus_per_node=8, nodes=2),
        make.job(name="early", gpus_per_node=8, nodes=2),
        make.job(name="urgent", gpus_per_node=8, nodes=2, priority=5),
    )

    schedule(cluster)

    assert state_of(urgent).is_configuring and state_of(late).is_configuring
    assert state_of(early).state == State.PENDING


@pytest.mark.parametrize(
    ("asked", "reason"),
    [({"hold": True}, "JobHeldUser"), ({"begin_at": "2099-01-01T00:00:00Z"}, "BeginTime")],
)
def test_ineligible_job_gets_its_wait_reason(cluster, asked, reason):
    job = make.job(**asked)

    assert schedule(cluster) == 0
    assert state_of(job).reason == reason


def test_job_waiting_for_recovery_is_not_shown_as_held(cluster):
    job = make.job()
    Job.objects.filter(pk=job.pk).update(hold="user", reason=RECOVERING, why="It is decided what to do.")

    assert schedule(cluster) == 0
    assert (state_of(job).reason, state_of(job).why) == ("Recovering", "It is decided what to do.")


def test_a_dependent_job_waits_until_the_other_ended_well(cluster):
    first, second = make.jobs({"key": "a"}, {"dependencies": "afterok:@a"})
    schedule(cluster)
    assert state_of(second).reason == "Dependency"
    assert first.public_id in state_of(second).why

    attempt = Attempt.objects.get(job=first)
    job_actions.finish(attempt, attempt_end.AttemptEnd(state=State.COMPLETED, at=clock.now()), author=make.author())
    schedule(cluster)

    assert state_of(second).is_configuring


@pytest.mark.parametrize(
    ("after", "ended", "becomes"),
    [
        ("afterok", State.FAILED, State.FAILED),
        ("afternotok", State.COMPLETED, State.FAILED),
        ("afternotok", State.FAILED, State.RUNNING),
        ("afterany", State.FAILED, State.RUNNING),
    ],
)
def test_a_dependency_that_can_never_come_true_fails_the_job(cluster, after, ended, becomes):
    first, second = make.jobs({"key": "a"}, {"dependencies": f"{after}:@a"})
    attempt = make.attempt(first)
    job_actions.finish(attempt, attempt_end.AttemptEnd(state=ended, at=clock.now()), author=make.author())

    schedule(cluster)

    assert state_of(second).state == becomes


def test_job_that_does_not_fit_names_the_missing_resources(cluster):
    make.running(make.job(nodes=3, gpus_per_node=8))
    job = make.job(nodes=2, gpus_per_node=8)

    schedule(cluster)

    assert state_of(job).reason == "Resources"
    assert state_of(job).why == "It needs 2 × 8 GPUs; 1 node has 8 free (8 GPUs free in total)."


def test_a_strict_queue_lets_a_wide_job_hold_back_a_narrow_one(cluster):
    make.running(make.job(nodes=3, gpus_per_node=8))
    wide, narrow = make.job(nodes=2, gpus_per_node=8), make.job(gpus_per_node=1)

    assert schedule(cluster, "fifo") == 0
    assert state_of(narrow).why == f"{wide.public_id} is ahead of it in the queue."
    assert schedule(cluster, "fifo-skip") == 1


def test_a_team_over_its_quota_waits(cluster):
    Quota.objects.create(team=make.team(ada="researcher"), cluster=cluster, gpus=8)
    first, second = make.job(gpus_per_node=8), make.job(gpus_per_node=8)
    borrowing = make.job(gpus_per_node=8, preemptible=True)

    schedule(cluster)

    assert state_of(first).is_configuring and state_of(borrowing).is_configuring
    assert (state_of(second).reason, state_of(second).why) == (
        "AssocGrpGRES",
        "Team pretraining holds 8 of its 8 GPUs; this job needs 8.",
    )


def test_an_array_runs_no_more_tasks_at_once_than_asked(cluster):
    make.jobs({"array": "0-5%2", "gpus_per_node": 1})

    assert schedule(cluster) == 2
    assert Job.objects.filter(reason="JobArrayTaskLimit").count() == 4


def test_closed_nodes_and_foreign_gpus_are_not_allocated(cluster):
    nodes = list(cluster.nodes.all())
    nodes[0].drain_requested = True
    nodes[0].save()
    nodes[1].foreign_gpus = list(range(8))
    nodes[1].save()
    nodes[2].flags = ["NOT_RESPONDING"]
    nodes[2].save()
    make.jobs({"gpus_per_node": 8}, {"gpus_per_node": 8})

    assert schedule(cluster) == 1
    assert set(Allocation.objects.values_list("node__name", flat=True)) == {"seren-004"}


def test_cpus_and_memory_count_once_a_node_not_once_a_gpu(cluster):
    make.running(make.job(gpus_per_node=4, cpus_per_node=64), gpus=(0, 1, 2, 3))
    job = make.job(gpus_per_node=4, cpus_per_node=64)

    schedule(cluster)

    assert job.attempts.get().allocations.values_list("node__name", "gpu").first() == ("seren-001", 4)


# somebody else was faster


def test_lost_lease_stops_the_turn_before_any_allocation(cluster):
    job = make.job(gpus_per_node=1)

    def lost():
        raise LeaseLost("over")

    with pytest.raises(LeaseLost):
        schedule(cluster, fence=lost)
    assert state_of(job).state == State.PENDING


def test_job_cancelled_during_the_policy_stays_cancelled(cluster):
    first, second = make.jobs({"gpus_per_node": 1}, {"gpus_per_node": 1})

    def cancel_first():
        if state_of(first).state == State.PENDING:
            job_actions.cancel(state_of(first), author=make.author())

    assert schedule(cluster, fence=cancel_first) == 1
    assert state_of(first).state == State.CANCELLED
    assert state_of(second).is_configuring


def test_a_gpu_taken_meanwhile_leaves_the_job_waiting(cluster):
    job, thief = make.jobs({"gpus_per_node": 8}, {"gpus_per_node": 8, "hold": True})

    def policy(picture):
        decided = LIVE_POLICIES["fifo"](picture)
        job_actions.release(state_of(thief), author=make.author())
        make.attempt(state_of(thief), gpus=tuple(range(8)))
        return decided

    assert schedule_once(cluster, policy, clock.now(), lambda: None) == 0
    assert state_of(job).state == State.PENDING
    assert Allocation.objects.count() == 8


def test_hold_during_the_policy_is_respected(cluster):
    job = make.job(gpus_per_node=1)

    def policy(picture):
        job_actions.hold(state_of(job), author=make.author(), why="wait for me")
        return LIVE_POLICIES["fifo"](picture)

    assert schedule_once(cluster, policy, clock.now(), lambda: None) == 0
    assert (state_of(job).state, state_of(job).why) == (State.PENDING, "Held by its owner: wait for me")


def test_node_drained_during_the_policy_gets_no_job(cluster):
    job = make.job(gpus_per_node=8)

    def policy(picture):
        for node in cluster.nodes.all():
            node_actions.drain(node, author=make.author(), why="loose cable", now=clock.now())
        return LIVE_POLICIES["fifo"](picture)

    assert schedule_once(cluster, policy, clock.now(), lambda: None) == 0
    assert state_of(job).state == State.PENDING


def test_late_wait_reason_does_not_overwrite_a_hold(cluster):
    job = make.job()
    job_actions.hold(job, author=make.author(), why="wait for me")

    job_actions.store_wait_reasons([job_actions.WaitReason(job.pk, "Resources", "It needs 8 GPUs.")])

    assert state_of(job).why == "Held by its owner: wait for me"


# modes


def test_an_observed_cluster_is_left_alone(cluster):
    cluster.mode = "observe"
    job = make.job(gpus_per_node=1)

    assert schedule(cluster) == 0
    assert state_of(job).reason == "None"


def test_advise_mode_records_what_acme_would_do(cluster):
    cluster.mode = "advise"
    job = make.job(gpus_per_node=1)

    assert schedule(cluster) == 0
    assert state_of(job).why == "Acme would start it now: 1 GPU was free."


def test_job_that_the_cluster_does_not_show_is_not_preempted(cluster):
    attempt = make.running(make.job(gpus_per_node=1, preemptible=True))
    assert [job.preemptible for job in snapshot.take_snapshot(cluster, clock.now()).running] == [True]

    Attempt.objects.filter(pk=attempt.pk).update(missing_since=clock.now())

    assert [job.preemptible for job in snapshot.take_snapshot(cluster, clock.now()).running] == [False]


def test_snapshot_needs_the_same_number_of_queries_for_many_jobs(cluster, django_assert_num_queries):
    make.jobs(*[{"gpus_per_node": 1, "dependencies": []} for _ in range(30)])
    now = clock.now()
    with django_assert_num_queries(13):
        snapshot.take_snapshot(cluster, now)


def test_turn_without_waiting_jobs_takes_one_query(cluster, django_assert_num_queries):
    make.attempt()
    now = clock.now()

    with django_assert_num_queries(1):
        assert schedule_once(cluster, LIVE_POLICIES["fifo"], now, lambda: None) == 0


def test_unchanged_wait_reason_is_not_written(cluster):
    make.jobs(*[{"nodes": 4, "gpus_per_node": 8} for _ in range(5)])
    schedule(cluster)
    schedule(cluster)

    with CaptureQueriesContext(connection) as quiet:
        schedule(cluster)

    assert not [query for query in quiet if query["sql"].startswith(("UPDATE", "INSERT"))]


def test_released_job_gets_its_wait_reason_again(cluster):
    _, second = make.jobs({"nodes": 4, "gpus_per_node": 8}, {"nodes": 4, "gpus_per_node": 8})
    schedule(cluster)
    schedule(cluster)
    told = Job.objects.get(pk=second.pk).why
    job_actions.hold(second, author=make.author())
    job_actions.release(second, author=make.author())

    schedule(cluster)

    assert Job.objects.get(pk=second.pk).why == told


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_submission_time_is_exact_in_every_database_time_zone(cluster, zone):
    job = make.job()

    with timezone.override(zone):
        (waiting,) = snapshot.take_snapshot(cluster, clock.now()).waiting

    assert waiting.submitted_at == Job.objects.get(pk=job.pk).submitted_at


def test_a_job_that_runs_is_flagged_until_the_cluster_confirms(cluster):
    job = make.job(gpus_per_node=1)

    schedule(cluster)

    assert state_of(job).flags == [Flag.CONFIGURING]
