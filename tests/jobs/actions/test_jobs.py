"""The verbs that change a job: what they need, what they leave behind, and that nobody can cheat the database."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, InternalError, transaction
from django.db.utils import Error

from jobs.actions import jobs as job_actions
from jobs.actions.jobs import GpuCorrection, JobStateChanged
from jobs.core.attempt_end import AttemptEnd
from jobs.core.lifecycle import Flag, State
from jobs.core.spec import InvalidField
from jobs.models import Allocation, Attempt, Cluster, Deed, Event, HoldKind, Job, Node, clock
from tests import make

pytestmark = pytest.mark.django_db


def end(attempt, state, **fields):
    job_actions.finish(attempt, AttemptEnd(state=state, at=clock.now(), **fields), author=make.author())
    attempt.refresh_from_db()
    return Job.objects.get(pk=attempt.job_id)


# submit


def test_a_submitted_job_waits_and_says_that_nobody_looked_at_it_yet():
    job = make.job(name="llm-7b")

    assert (job.state, job.reason) == (State.PENDING, "None")
    assert job.why == job_actions.WAITING_FOR_FIRST_TURN
    assert job.user.username == "ada"


def test_submitting_leaves_an_event_with_who_and_by_which_request():
    event = make.job().events.get()

    assert (event.what, event.by, event.request_id, event.to_state) == ("job.submitted", "ada", "req-1", "PENDING")


def test_a_job_submitted_on_hold_says_who_holds_it():
    job = make.job(hold=True)

    assert (job.hold, job.reason) == (HoldKind.USER, "JobHeldUser")


def test_an_array_becomes_a_row_a_task():
    tasks = make.jobs({"array": "0-3%2"})

    assert [task.array_index for task in tasks] == [0, 1, 2, 3]
    assert {task.array_limit for task in tasks} == {2}
    assert [task.public_id for task in tasks] == [f"{tasks[0].array_id}_{i}" for i in range(4)]


def test_all_jobs_of_a_request_or_none():
    with pytest.raises(InvalidField, match="the team has no job 'nobody'"):
        make.jobs({}, {"dependencies": "afterok:nobody"})

    assert not Job.objects.exists()


def test_a_job_may_wait_for_another_of_the_same_request():
    first, second = make.jobs({"key": "a"}, {"dependencies": "afterok:@a"})

    assert second.dependencies.get().on == first


def test_waiting_for_an_array_means_waiting_for_each_task():
    tasks = make.jobs({"array": "0-2"})

    job = make.job(dependencies=f"afterany:{tasks[0].array_id}")

    assert {d.on_id for d in job.dependencies.all()} == {task.pk for task in tasks}


def test_the_jobs_of_another_team_cannot_be_waited_for():
    make.team("other", ben="researcher")
    theirs = make.job(by="ben")

    with pytest.raises(InvalidField, match="the team has no job"):
        make.job(dependencies=f"afterok:{theirs.public_id}")


def test_five_hundred_jobs_cost_no_more_statements_than_one(django_assert_max_num_queries):
    make.job()
    with django_assert_max_num_queries(14):
        make.jobs(*[{"name": f"j{n}"} for n in range(500)])


# promise, confirm, finish


def test_a_promise_takes_the_gpus_and_leaves_a_deed():
    job = make.job(nodes=2, gpus_per_node=4)

    attempt = make.attempt(job)

    assert (job.state, job.flags) == (State.RUNNING, [Flag.CONFIGURING])
    assert attempt.key == f"{job.public_id}.1"
    assert attempt.nodelist == "seren-[001-002]"
    assert attempt.allocations.filter(released_at=None).count() == 8
    assert Deed.objects.open().get().kind == "submit"


def test_the_event_of_a_promise_names_every_gpu():
    attempt = make.attempt(make.job(nodes=2, gpus_per_node=2))

    event = attempt.events.get(what="job.moved")

    assert event.detail["gpus"] == {"seren-001": [0, 1], "seren-002": [0, 1]}


def test_a_gpu_has_one_live_holder():
    make.attempt(make.job(gpus_per_node=2), gpus=(0, 1))
    late = make.job(gpus_per_node=2)

    with pytest.raises(IntegrityError, match="one_live_holder_per_gpu"), transaction.atomic():
        make.attempt(late, gpus=(1, 2))

    late.refresh_from_db()
    assert late.state == State.PENDING
    assert not late.attempts.exists()


def test_a_released_gpu_may_be_held_again():
    end(make.running(make.job(gpus_per_node=1), gpus=(0,)), State.COMPLETED)

    make.attempt(make.job(gpus_per_node=1), gpus=(0,))


def test_jobs_without_gpus_share_a_node():
    make.attempt(make.job())
    make.attempt(make.job())

    assert Allocation.objects.filter(gpu=None, released_at=None).count() == 2


def test_a_job_has_one_live_attempt():
    attempt = make.attempt()

    with pytest.raises(IntegrityError, match="one_live_attempt_per_job"), transaction.atomic():
        Attempt.objects.create(job=attempt.job, number=2, key="another")


def test_a_job_that_moved_meanwhile_is_not_promised_twice():
    stale = make.job(gpus_per_node=1)
    job_actions.cancel(Job.objects.get(pk=stale.pk), author=make.author())

    with pytest.raises(JobStateChanged, match="is CANCELLED"), transaction.atomic():
        make.attempt(stale)

    assert not Allocation.objects.exists()


def test_confirming_twice_starts_once():
    attempt = make.running()
    started = attempt.job.started_at

    job_actions.confirm_start(attempt, started_at=clock.now(), author=make.author())

    attempt.job.refresh_from_db()
    assert attempt.job.started_at == started
    assert attempt.events.filter(what="job.started").count() == 1


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
def test_how_an_attempt_ends_decides_what_the_job_becomes(ended, becomes):
    job = end(make.running(), ended, exit_code=1)

    assert job.state == becomes
    assert not Allocation.objects.filter(released_at=None).exists()


def test_a_failed_node_costs_requeue_budget_until_it_is_spent():
    job = make.job(gpus_per_node=1, requeue_limit=1)

    job = end(make.running(job), State.NODE_FAIL)
    assert (job.state, job.flags, job.requeues) == (State.PENDING, [Flag.REQUEUED], 1)

    job = end(make.running(job), State.NODE_FAIL)
    assert (job.state, job.requeues) == (State.NODE_FAIL, 1)


def test_an_attempt_ends_once():
    attempt = make.running()
    end(attempt, State.COMPLETED)

    with pytest.raises(JobStateChanged, match="has ended already"):
        end(attempt, State.FAILED)

    assert Job.objects.get(pk=attempt.job_id).state == State.COMPLETED


def test_a_requeued_job_keeps_its_place_in_the_queue():
    job = make.job(gpus_per_node=1)
    before = job.submitted_at

    job = end(make.running(job), State.NODE_FAIL)

    assert job.submitted_at == before
    assert job.started_at is None


# cancel, requeue, hold, release


def test_cancelling_a_waiting_job_ends_it_at_once():
    job = make.job()

    job_actions.cancel(job, author=make.author(), why="not needed")

    assert job.state == State.CANCELLED
    assert job.events.filter(why="not needed", to_state="CANCELLED").exists()


def test_cancelling_a_running_job_asks_the_cluster_and_waits_for_its_word():
    attempt = make.running()

    job_actions.cancel(attempt.job, author=make.author())

    assert attempt.job.state == State.RUNNING
    assert Flag.SIGNALING in attempt.job.flags
    assert Deed.objects.open().filter(attempt=attempt, kind="cancel").exists()
    assert end(Attempt.objects.get(), State.FAILED, signal=15).state == State.CANCELLED


def test_a_job_that_finished_before_the_signal_came_is_completed():
    attempt = make.running()
    job_actions.cancel(attempt.job, author=make.author())

    assert end(Attempt.objects.get(), State.COMPLETED).state == State.COMPLETED


def test_a_cancel_that_came_while_the_loop_looked_is_not_forgotten():
    seen_before = make.running()
    job_actions.cancel(Job.objects.get(), author=make.author())

    assert end(seen_before, State.NODE_FAIL).state == State.CANCELLED


def test_a_cancel_does_not_bring_back_a_flag_that_is_gone():
    attempt = make.attempt()
    stale = Job.objects.get()
    job_actions.confirm_start(attempt, started_at=clock.now(), author=make.author())

    job_actions.cancel(stale, author=make.author())

    assert Job.objects.get().flags == [Flag.SIGNALING]


@pytest.mark.parametrize("verb", [job_actions.cancel, job_actions.requeue])
def test_what_runs_on_a_cluster_we_only_watch_is_stopped_there(verb):
    job = make.running().job
    Cluster.objects.update(mode="observe")

    with pytest.raises(JobStateChanged, match="which Acme does not drive"):
        verb(Job.objects.get(pk=job.pk), author=make.author())


def test_nothing_is_submitted_to_a_cluster_we_only_watch():
    with pytest.raises(InvalidField, match="cluster: seren is only observed"):
        make.job(cluster=make.cluster(mode="observe"))


def test_a_task_may_be_meant_by_its_own_name_and_by_its_arrays():
    tasks = make.jobs({"array": "0-1"})
    array, first = tasks[0].array_id, tasks[0].public_id

    job = make.job(dependencies=f"afterok:{array},afterok:{first}")

    assert job.dependencies.count() == 2
    with pytest.raises(InvalidField, match="asks two different ends"):
        make.job(dependencies=f"afterok:{array},afterany:{first}")


def test_cancelling_twice_says_so():
    job = make.running().job
    job_actions.cancel(job, author=make.author())

    with pytest.raises(JobStateChanged, match="is being cancelled already"):
        job_actions.cancel(job, author=make.author())


def test_a_cancel_overrules_a_requeue_that_is_on_its_way():
    attempt = make.running()
    job_actions.requeue(attempt.job, author=make.author())
    job_actions.cancel(attempt.job, author=make.author())

    assert Deed.objects.open().filter(kind="cancel").count() == 1
    assert end(Attempt.objects.get(), State.FAILED).state == State.CANCELLED


def test_a_requeue_by_a_person_costs_no_budget():
    attempt = make.running()
    job_actions.requeue(attempt.job, author=make.author())

    job = end(Attempt.objects.get(), State.CANCELLED)

    assert (job.state, job.requeues) == (State.PENDING, 0)


@pytest.mark.parametrize("verb", [job_actions.cancel, job_actions.requeue, job_actions.hold, job_actions.release])
def test_a_finished_job_takes_no_verb(verb):
    job = make.job()
    job_actions.cancel(job, author=make.author())

    with pytest.raises(JobStateChanged, match="is CANCELLED"):
        verb(job, author=make.author())


def test_an_owner_cannot_release_what_an_operator_holds():
    job = make.job()
    job_actions.hold(job, author=make.author(), operator=True)

    with pytest.raises(JobStateChanged, match="only an operator can release it"):
        job_actions.release(job, author=make.author())

    job_actions.release(job, author=make.author(), operator=True)
    assert job.hold == HoldKind.NONE


def test_an_owner_cannot_weaken_an_operators_hold():
    job = make.job()
    seen_before = Job.objects.get()
    job_actions.hold(job, author=make.author(), operator=True)

    for stale in (Job.objects.get(), seen_before):
        with pytest.raises(JobStateChanged):
            job_actions.hold(stale, author=make.author())
    assert Job.objects.get().hold == HoldKind.ADMIN


def test_a_refused_launch_waits_for_a_person():
    attempt = make.attempt()

    job_actions.record_submit_refusal(attempt, "invalid account", now=clock.now(), author=make.author())

    job = Job.objects.get()
    assert (job.state, job.hold) == (State.PENDING, HoldKind.USER)
    assert "invalid account" in job.why
    job_actions.release(job, author=make.author())
    assert (job.flags, job.hold) == ([], HoldKind.NONE)


def test_what_was_never_sent_can_be_withdrawn():
    attempt = make.attempt()
    job_actions.cancel(attempt.job, author=make.author())
    attempt.refresh_from_db()

    job_actions.withdraw_attempt(attempt, now=clock.now(), author=make.author())

    assert Job.objects.get().state == State.CANCELLED
    assert not Allocation.objects.filter(released_at=None).exists()


# explaining, correcting


def test_only_reasons_that_changed_are_written():
    job = make.job()

    assert job_actions.store_wait_reasons([(job.pk, "Resources", "No room.")]) == 1
    assert job_actions.store_wait_reasons([(job.pk, "Resources", "No room.")]) == 0
    assert job_actions.store_wait_reasons([]) == 0


def test_a_job_that_started_meanwhile_keeps_no_reason_to_wait():
    job = make.attempt().job

    assert job_actions.store_wait_reasons([(job.pk, "Resources", "No room.")]) == 0


def test_attempts_may_swap_gpus_when_the_cluster_gave_others():
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
    told = Event.objects.filter(what="job.placed").order_by("attempt_id")
    assert [event.detail["gpus"] for event in told] == [{"seren-001": [1]}, {"seren-001": [0]}]


def test_a_correction_onto_a_held_gpu_is_refused():
    one = make.attempt(make.job(gpus_per_node=1), gpus=(0,))
    make.attempt(make.job(gpus_per_node=1), gpus=(1,))
    node = Node.objects.get(name="seren-001").pk

    with pytest.raises(IntegrityError), transaction.atomic():
        job_actions.correct_gpus([GpuCorrection(attempt_id=one.pk, node_id=node, promised=0, given=1)])


# the journal


@pytest.mark.parametrize("change", [lambda e: e.update(why="nothing happened"), lambda e: e.delete()])
def test_an_event_is_never_edited(change):
    make.job()

    with pytest.raises((InternalError, Error), match="append-only"), transaction.atomic():
        change(Event.objects.all())


def test_every_move_has_its_event():
    attempt = make.running()
    job = end(attempt, State.COMPLETED)

    moves = list(job.events.filter(what="job.moved").order_by("id").values_list("from_state", "to_state"))

    assert moves == [("PENDING", "RUNNING"), ("RUNNING", "COMPLETED")]


def test_elapsed_and_waited_are_measured_from_the_record():
    job = make.running().job

    assert job.elapsed(clock.now()) > timedelta(minutes=4)
    assert make.job().elapsed(clock.now()) is None
