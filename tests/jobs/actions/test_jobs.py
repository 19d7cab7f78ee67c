"""Job actions: their preconditions, the rows they write, and the constraints of the database."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, InternalError, transaction
from django.db.utils import Error

from acmeweb.common.errors import InvalidField, StateConflict
from jobs.actions import jobs as job_actions
from jobs.actions.jobs import WaitReason
from jobs.actions.promise import GpuCorrection
from jobs.actions.submit import WAITING_FOR_FIRST_TURN
from jobs.core.attempt_end import AttemptEnd
from jobs.core.lifecycle import Flag, State
from jobs.models import Allocation, Attempt, Cluster, ClusterCommand, Event, HoldKind, Job, Node, clock
from tests import make

pytestmark = pytest.mark.django_db


def end(attempt, state, **fields):
    job_actions.finish(attempt, AttemptEnd(state=state, at=clock.now(), **fields), author=make.author())
    attempt.refresh_from_db()
    return Job.objects.get(pk=attempt.job_id)


# submit


def test_submitted_job_waits_for_the_next_turn():
    job = make.job(name="llm-7b")

    assert (job.state, job.reason) == (State.PENDING, "None")
    assert job.why == WAITING_FOR_FIRST_TURN
    assert job.user.username == "ada"


def test_submission_event_names_user_and_request():
    event = make.job().events.get()

    assert (event.type, event.by, event.request_id, event.to_state) == ("job.submitted", "ada", "req-1", "PENDING")


def test_job_submitted_on_hold_is_held_by_its_owner():
    job = make.job(hold=True)

    assert (job.hold, job.reason) == (HoldKind.USER, "JobHeldUser")


def test_array_becomes_one_row_per_task():
    tasks = make.jobs({"array": "0-3%2"})

    assert [task.array_index for task in tasks] == [0, 1, 2, 3]
    assert {task.array_limit for task in tasks} == {2}
    assert [task.public_id for task in tasks] == [f"{tasks[0].array_id}_{i}" for i in range(4)]


def test_request_creates_all_of_its_jobs_or_none():
    with pytest.raises(InvalidField, match="the team has no job 'nobody'"):
        make.jobs({}, {"dependencies": "afterok:nobody"})

    assert not Job.objects.exists()


def test_job_may_depend_on_another_job_of_the_same_request():
    first, second = make.jobs({"key": "a"}, {"dependencies": "afterok:@a"})

    assert second.dependencies.get().on == first


def test_dependency_on_an_array_includes_each_task():
    tasks = make.jobs({"array": "0-2"})

    job = make.job(dependencies=f"afterany:{tasks[0].array_id}")

    assert {d.on_id for d in job.dependencies.all()} == {task.pk for task in tasks}


def test_dependency_on_a_job_of_another_team_is_rejected():
    make.team("other", ben="researcher")
    theirs = make.job(by="ben")

    with pytest.raises(InvalidField, match="the team has no job"):
        make.job(dependencies=f"afterok:{theirs.public_id}")


def test_five_hundred_jobs_need_no_more_statements_than_one(django_assert_max_num_queries):
    make.job()
    with django_assert_max_num_queries(14):
        make.jobs(*[{"name": f"j{n}"} for n in range(500)])


# promise, confirm, finish


def test_allocation_holds_the_gpus_and_queues_a_submit_command():
    job = make.job(nodes=2, gpus_per_node=4)

    attempt = make.attempt(job)

    assert (job.state, job.flags) == (State.RUNNING, [Flag.CONFIGURING])
    assert attempt.key == f"{job.public_id}.1"
    assert attempt.nodelist == "seren-[001-002]"
    assert attempt.allocations.filter(released_at=None).count() == 8
    assert ClusterCommand.objects.open().get().kind == "submit"


def test_allocation_event_names_every_gpu():
    attempt = make.attempt(make.job(nodes=2, gpus_per_node=2))

    event = attempt.events.get(type="job.state_changed")

    assert event.detail["gpus"] == {"seren-001": [0, 1], "seren-002": [0, 1]}


def test_gpu_has_at_most_one_live_holder():
    make.attempt(make.job(gpus_per_node=2), gpus=(0, 1))
    late = make.job(gpus_per_node=2)

    with pytest.raises(IntegrityError, match="one_live_holder_per_gpu"), transaction.atomic():
        make.attempt(late, gpus=(1, 2))

    late.refresh_from_db()
    assert late.state == State.PENDING
    assert not late.attempts.exists()


def test_released_gpu_can_be_allocated_again():
    end(make.running(make.job(gpus_per_node=1), gpus=(0,)), State.COMPLETED)

    make.attempt(make.job(gpus_per_node=1), gpus=(0,))


def test_jobs_without_gpus_share_a_node():
    make.attempt(make.job())
    make.attempt(make.job())

    assert Allocation.objects.filter(gpu=None, released_at=None).count() == 2


def test_job_has_at_most_one_live_attempt():
    attempt = make.attempt()

    with pytest.raises(IntegrityError, match="one_live_attempt_per_job"), transaction.atomic():
        Attempt.objects.create(job=attempt.job, number=2, key="another")


def test_job_that_changed_meanwhile_is_not_allocated_twice():
    stale = make.job(gpus_per_node=1)
    job_actions.cancel(Job.objects.get(pk=stale.pk), author=make.author())

    with pytest.raises(StateConflict, match="is CANCELLED"), transaction.atomic():
        make.attempt(stale)

    assert not Allocation.objects.exists()


def test_second_confirmation_changes_nothing():
    attempt = make.running()
    started = attempt.job.started_at

    job_actions.confirm_start(attempt, started_at=clock.now(), author=make.author())

    attempt.job.refresh_from_db()
    assert attempt.job.started_at == started
    assert attempt.events.filter(type="job.started").count() == 1


@pytest.mark.parametrize(
    ("ended", "becomes"),
    [
        (State.COMPLETED, State.COMPLETED),
        (State.FAILED, State.FAILED),
        (State.TIMEOUT, State.TIMEOUT),
        (State.OUT_OF_MEMORY, State.OUT_OF_MEMORY),
        (State.NODE_FAIL, State.PENDING),
    ],
)
def test_end_of_an_attempt_decides_the_state_of_the_job(ended, becomes):
    job = end(make.running(), ended, exit_code=1)

    assert job.state == becomes
    assert not Allocation.objects.filter(released_at=None).exists()


def test_node_failures_consume_requeues_until_none_remain():
    job = make.job(gpus_per_node=1, requeue_limit=1)

    job = end(make.running(job), State.NODE_FAIL)
    assert (job.state, job.flags, job.requeues) == (State.PENDING, [Flag.REQUEUED], 1)

    job = end(make.running(job), State.NODE_FAIL)
    assert (job.state, job.requeues) == (State.NODE_FAIL, 1)


def test_attempt_ends_only_once():
    attempt = make.running()
    end(attempt, State.COMPLETED)

    with pytest.raises(StateConflict, match="has already ended"):
        end(attempt, State.FAILED)

    assert Job.objects.get(pk=attempt.job_id).state == State.COMPLETED


def test_requeued_job_keeps_its_place_in_the_queue():
    job = make.job(gpus_per_node=1)
    before = job.submitted_at

    job = end(make.running(job), State.NODE_FAIL)

    assert job.submitted_at == before
    assert job.started_at is None


# cancel, requeue, hold, release


def test_cancelled_waiting_job_ends_at_once():
    job = make.job()

    job_actions.cancel(job, author=make.author(), why="not needed")

    assert job.state == State.CANCELLED
    assert job.events.filter(why="not needed", to_state="CANCELLED").exists()


def test_cancelled_running_job_ends_when_the_cluster_reports_it():
    attempt = make.running()

    job_actions.cancel(attempt.job, author=make.author())

    assert attempt.job.state == State.RUNNING
    assert Flag.SIGNALING in attempt.job.flags
    assert ClusterCommand.objects.open().filter(attempt=attempt, kind="cancel").exists()
    assert end(Attempt.objects.get(), State.FAILED, signal=15).state == State.CANCELLED


def test_job_that_finished_before_the_cancel_is_completed():
    attempt = make.running()
    job_actions.cancel(attempt.job, author=make.author())

    assert end(Attempt.objects.get(), State.COMPLETED).state == State.COMPLETED


def test_concurrent_cancel_is_not_lost():
    seen_before = make.running()
    job_actions.cancel(Job.objects.get(), author=make.author())

    assert end(seen_before, State.NODE_FAIL).state == State.CANCELLED


def test_cancel_does_not_restore_a_removed_flag():
    attempt = make.attempt()
    stale = Job.objects.get()
    job_actions.confirm_start(attempt, started_at=clock.now(), author=make.author())

    job_actions.cancel(stale, author=make.author())

    assert Job.objects.get().flags == [Flag.SIGNALING]


@pytest.mark.parametrize("verb", [job_actions.cancel, job_actions.requeue])
def test_job_on_a_cluster_that_is_not_driven_cannot_be_stopped(verb):
    job = make.running().job
    Cluster.objects.update(mode="observe")

    with pytest.raises(StateConflict, match="which Acme does not drive"):
        verb(Job.objects.get(pk=job.pk), author=make.author())


def test_submission_to_a_cluster_in_mode_observe_is_rejected():
    with pytest.raises(InvalidField, match="cluster: seren is in mode observe"):
        make.job(cluster=make.cluster(mode="observe"))


def test_dependency_can_name_a_task_and_its_array():
    tasks = make.jobs({"array": "0-1"})
    array, first = tasks[0].array_id, tasks[0].public_id

    job = make.job(dependencies=f"afterok:{array},afterok:{first}")

    assert job.dependencies.count() == 2
    with pytest.raises(InvalidField, match="requires two different outcomes"):
        make.job(dependencies=f"afterok:{array},afterany:{first}")


def test_second_cancel_is_rejected():
    job = make.running().job
    job_actions.cancel(job, author=make.author())

    with pytest.raises(StateConflict, match="is already being cancelled"):
        job_actions.cancel(job, author=make.author())


def test_cancel_overrides_a_pending_requeue():
    attempt = make.running()
    job_actions.requeue(attempt.job, author=make.author())
    job_actions.cancel(attempt.job, author=make.author())

    assert ClusterCommand.objects.open().filter(kind="cancel").count() == 1
    assert end(Attempt.objects.get(), State.FAILED).state == State.CANCELLED


def test_requeue_by_a_user_consumes_no_requeue_limit():
    attempt = make.running()
    job_actions.requeue(attempt.job, author=make.author())

    job = end(Attempt.objects.get(), State.CANCELLED)

    assert (job.state, job.requeues) == (State.PENDING, 0)


@pytest.mark.parametrize("verb", [job_actions.cancel, job_actions.requeue, job_actions.hold, job_actions.release])
def test_finished_job_accepts_no_action(verb):
    job = make.job()
    job_actions.cancel(job, author=make.author())

    with pytest.raises(StateConflict, match="is CANCELLED"):
        verb(job, author=make.author())


def test_owner_cannot_release_an_operators_hold():
    job = make.job()
    job_actions.hold(job, author=make.author(), operator=True)

    with pytest.raises(StateConflict, match="only an operator can release it"):
        job_actions.release(job, author=make.author())

    job_actions.release(job, author=make.author(), operator=True)
    assert job.hold == HoldKind.NONE


def test_owner_cannot_replace_an_operators_hold():
    job = make.job()
    seen_before = Job.objects.get()
    job_actions.hold(job, author=make.author(), operator=True)

    for stale in (Job.objects.get(), seen_before):
        with pytest.raises(StateConflict):
            job_actions.hold(stale, author=make.author())
    assert Job.objects.get().hold == HoldKind.ADMIN


def test_rejected_job_is_held():
    attempt = make.attempt()

    job_actions.record_submit_refusal(attempt, "invalid account", now=clock.now(), author=make.author())

    job = Job.objects.get()
    assert (job.state, job.hold) == (State.PENDING, HoldKind.USER)
    assert "invalid account" in job.why
    job_actions.release(job, author=make.author())
    assert (job.flags, job.hold) == ([], HoldKind.NONE)


def test_attempt_that_was_never_submitted_can_be_withdrawn():
    attempt = make.attempt()
    job_actions.cancel(attempt.job, author=make.author())
    attempt.refresh_from_db()

    job_actions.withdraw_attempt(attempt, now=clock.now(), author=make.author())

    assert Job.objects.get().state == State.CANCELLED
    assert not Allocation.objects.filter(released_at=None).exists()


# explaining, correcting


def test_only_changed_wait_reasons_are_written():
    job = make.job()

    assert job_actions.store_wait_reasons([WaitReason(job.pk, "Resources", "No room.")]) == 1
    assert job_actions.store_wait_reasons([WaitReason(job.pk, "Resources", "No room.")]) == 0
    assert job_actions.store_wait_reasons([]) == 0


def test_power_budgets_are_stored_with_the_reason_and_removed_with_it():
    one, two = make.job(), make.job()
    names = ["rack 'a', \"{b}\"", "seren"]
    rows = [WaitReason(one.pk, "Power", "Too little.", names), WaitReason(two.pk, "Power", "Too little.", names[:1])]

    assert [job_actions.store_wait_reasons(rows) for _ in range(2)] == [2, 0]
    assert dict(Job.objects.values_list("pk", "power_budgets")) == {one.pk: names, two.pk: names[:1]}
    job_actions.store_wait_reasons([WaitReason(one.pk, "Resources", "No room.")])
    one.refresh_from_db()
    assert one.power_budgets == []


def test_started_job_gets_no_wait_reason():
    job = make.attempt().job

    assert job_actions.store_wait_reasons([WaitReason(job.pk, "Resources", "No room.")]) == 0


def test_attempts_may_swap_gpus_when_the_cluster_chose_others():
    one = make.attempt(make.job(gpus_per_node=1), gpus=(0,))
    two = make.attempt(make.job(gpus_per_node=1), gpus=(1,))
    node = Node.objects.get(name="seren-001").pk

    job_actions.correct_gpus(
        [
            GpuCorrection(attempt_id=one.pk, node_id=node, promised=0, given=1),
            GpuCorrection(attempt_id=two.pk, node_id=node, promised=1, given=0),
        ]
    )

    assert (one.allocations.get().gpu, two.allocations.get().gpu) == (1, 0)
    events = Event.objects.filter(type="job.placed").order_by("attempt_id")
    assert [event.detail["gpus"] for event in events] == [{"seren-001": [1]}, {"seren-001": [0]}]


def test_correction_to_a_held_gpu_is_rejected():
    one = make.attempt(make.job(gpus_per_node=1), gpus=(0,))
    make.attempt(make.job(gpus_per_node=1), gpus=(1,))
    node = Node.objects.get(name="seren-001").pk

    with pytest.raises(IntegrityError), transaction.atomic():
        job_actions.correct_gpus([GpuCorrection(attempt_id=one.pk, node_id=node, promised=0, given=1)])


# the journal


@pytest.mark.parametrize("change", [lambda e: e.update(why="nothing happened"), lambda e: e.delete()])
def test_events_cannot_be_edited(change):
    make.job()

    with pytest.raises((InternalError, Error), match="append-only"), transaction.atomic():
        change(Event.objects.all())


def test_every_state_change_has_an_event():
    attempt = make.running()
    job = end(attempt, State.COMPLETED)

    moves = list(job.events.filter(type="job.state_changed").order_by("id").values_list("from_state", "to_state"))

    assert moves == [("PENDING", "RUNNING"), ("RUNNING", "COMPLETED")]


def test_elapsed_and_waited_times_come_from_the_row():
    job = make.running().job

    assert job.elapsed(clock.now()) > timedelta(minutes=4)
    assert make.job().elapsed(clock.now()) is None
