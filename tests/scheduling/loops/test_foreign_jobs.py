"""Foreign jobs are imported, followed and counted, and never changed."""

from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from acmeweb.common.errors import StateConflict
from jobs.actions import jobs as job_actions
from jobs.actions import stop
from jobs.core.lifecycle import State
from jobs.models import Allocation, Attempt, Event, Job, Node, Team, TeamRole, clock
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.loops.observe.foreign_jobs import MAX_REPORT_AGE, sync_foreign_jobs_once
from scheduling.loops.observe.sync import sync_cluster_once
from scheduling.loops.schedule import schedule_once
from scheduling.queries import snapshot
from tests import make

HOUR = timedelta(hours=1)
LATER = MAX_REPORT_AGE + timedelta(seconds=1)


def sync(cluster, slurm, later=timedelta(0)):
    return sync_cluster_once(cluster, slurm, clock.now() + later)


def runs(slurm, **fields):
    now = clock.now()
    plain = {"submitted_at": now - HOUR, "started_at": now - HOUR / 2, "nodes": ("seren-001",), "cpus": 64}
    return slurm.foreign(**{**plain, **fields})


def change(slurm, backend_id, **fields):
    slurm.known[backend_id] = replace(slurm.known[backend_id], **fields)


def only_job():
    return Job.objects.get()


def test_running_foreign_job_is_imported_with_its_state(cluster, slurm):
    runs(slurm, name="theirs", gpus={"seren-001": (0, 1)}, account="vision", time_limit=HOUR, stdout="/logs/9.out")

    assert sync(cluster, slurm) == 1

    job = only_job()
    assert (job.state, job.name, job.owner_name, job.is_foreign) == (State.RUNNING, "theirs", "mallory", True)
    assert (job.gpus_per_node, job.cpus_per_node, job.time_limit) == (2, 64, HOUR)
    attempt = job.attempts.get()
    assert (attempt.nodelist, attempt.log_path, attempt.confirmed_at) == ("seren-001", "/logs/9.out", job.started_at)
    assert Event.objects.get(job=job).type == "job.discovered"


def test_foreign_job_is_matched_to_known_teams_and_users_only(cluster, slurm):
    make.team("vision", ada=TeamRole.RESEARCHER)
    runs(slurm, user="ada", account="vision")
    runs(slurm, user="mallory", account="secret")

    sync(cluster, slurm)

    known, unknown = Job.objects.order_by("id")
    assert (known.user.username, known.team.name) == ("ada", "vision")
    assert (unknown.user.username, unknown.team.name, unknown.owner_name) == ("outside-acme", "outside-acme", "mallory")
    assert not unknown.user.is_active and not unknown.user.has_usable_password()
    assert not Team.objects.filter(name="secret").exists()


def test_twice_is_once(cluster, slurm):
    runs(slurm)
    sync(cluster, slurm)

    assert sync(cluster, slurm) == 0
    assert Job.objects.count() == Attempt.objects.count() == Event.objects.count() == 1


def test_foreign_job_is_followed_from_the_queue_to_its_end(cluster, slurm):
    job = slurm.foreign(state=State.PENDING, submitted_at=clock.now(), gpus_per_node=8)
    sync(cluster, slurm)
    assert (only_job().state, only_job().why) == (State.PENDING, "Waiting in the cluster's own queue.")

    change(slurm, job, state=State.RUNNING, started_at=clock.now(), nodes=("seren-002", "seren-003"))
    sync(cluster, slurm)
    assert (only_job().state, only_job().nodes, only_job().gpus) == (State.RUNNING, 2, 16)
    assert Allocation.objects.live().count() == 2

    change(slurm, job, state=State.FAILED, ended_at=clock.now(), exit_code=3)
    sync(cluster, slurm)
    assert (only_job().state, only_job().exit_code) == (State.FAILED, 3)
    assert not Allocation.objects.live().exists()


def test_foreign_job_that_ran_between_two_syncs_has_an_attempt(cluster, slurm):
    job = slurm.foreign(state=State.PENDING, submitted_at=clock.now())
    sync(cluster, slurm)

    now = clock.now()
    change(slurm, job, state=State.COMPLETED, started_at=now, ended_at=now, nodes=("seren-001",), exit_code=0)
    sync(cluster, slurm)

    assert (only_job().state, only_job().attempts.count()) == (State.COMPLETED, 1)


@pytest.mark.parametrize("fate", ["cancelled", "forgotten"])
def test_foreign_job_that_never_ran_is_withdrawn(cluster, slurm, fate):
    job = slurm.foreign(state=State.PENDING, submitted_at=clock.now())
    sync(cluster, slurm)

    if fate == "cancelled":
        change(slurm, job, state=State.CANCELLED, ended_at=clock.now())
    else:
        del slurm.known[job]
    sync(cluster, slurm, LATER)

    assert (only_job().state, only_job().attempts.count()) == (State.CANCELLED, 0)


def test_foreign_job_that_an_older_report_lacks_is_not_withdrawn(cluster, slurm):
    job = slurm.foreign(state=State.PENDING, submitted_at=clock.now())
    sync(cluster, slurm)
    known = slurm.known.pop(job)

    sync(cluster, slurm)

    assert only_job().state == State.PENDING
    slurm.known[job] = replace(known, state=State.RUNNING, started_at=clock.now(), nodes=("seren-001",))
    sync(cluster, slurm)
    assert only_job().state == State.RUNNING


def test_foreign_job_that_an_older_report_shows_as_waiting_keeps_running(cluster, slurm):
    job = runs(slurm)
    sync(cluster, slurm)

    change(slurm, job, state=State.PENDING, started_at=None, nodes=())
    sync(cluster, slurm)

    assert (only_job().state, only_job().attempts.count()) == (State.RUNNING, 1)


def test_foreign_job_is_not_requeued_after_a_platform_failure(cluster, slurm):
    job = runs(slurm)
    sync(cluster, slurm)

    change(slurm, job, state=State.NODE_FAIL, ended_at=clock.now())
    sync(cluster, slurm)

    assert only_job().state == State.NODE_FAIL  # and not PENDING, as one of ours would be


def test_foreign_job_requeued_by_its_cluster_waits_and_runs_again(cluster, slurm):
    job = runs(slurm)
    sync(cluster, slurm)

    change(slurm, job, state=State.PENDING, started_at=None, nodes=())
    sync(cluster, slurm, LATER)
    assert only_job().state == State.PENDING

    change(slurm, job, state=State.RUNNING, started_at=clock.now(), nodes=("seren-004",))
    sync(cluster, slurm)
    assert (only_job().state, only_job().attempts.count()) == (State.RUNNING, 2)


def test_reused_job_id_is_another_foreign_job(cluster, slurm):
    job = runs(slurm)
    sync(cluster, slurm)

    change(slurm, job, submitted_at=clock.now(), started_at=clock.now())
    sync(cluster, slurm)

    assert [bool(one.missing_since) for one in Attempt.objects.order_by("id")] == [True, False]


def test_foreign_jobs_are_imported_in_batches_oldest_first(cluster, slurm):
    now = clock.now()
    for _ in range(100):
        runs(slurm, state=State.COMPLETED, ended_at=now, exit_code=0)

    imported = [sync_foreign_jobs_once(cluster, slurm.jobs(), now, most_new=60) for _ in range(3)]

    assert imported == [60, 40, 0]
    assert Attempt.objects.filter(state=State.COMPLETED, ended_at=now).count() == 100
    assert not Allocation.objects.live().exists()


def test_gpus_of_a_foreign_job_are_not_allocated(cluster, slurm):
    for number in range(1, 5):
        runs(slurm, nodes=(f"seren-00{number}",), gpus={f"seren-00{number}": (0, 1, 2, 3)}, cpus=100)
    sync(cluster, slurm)
    small, wide, greedy = make.jobs(
        {"gpus_per_node": 4, "cpus_per_node": 8}, {"gpus_per_node": 5}, {"gpus_per_node": 1, "cpus_per_node": 32}
    )

    schedule_once(cluster, LIVE_POLICIES["fifo-skip"], clock.now(), lambda: None)

    assert [Job.objects.get(pk=one.pk).state for one in (small, wide, greedy)] == ["RUNNING", "PENDING", "PENDING"]
    assert set(Allocation.objects.filter(attempt__job=small).values_list("gpu", flat=True)) == {4, 5, 6, 7}


def test_waiting_foreign_job_is_not_started_by_acme(cluster, slurm):
    slurm.foreign(state=State.PENDING, submitted_at=clock.now(), gpus_per_node=1)
    sync(cluster, slurm)

    assert snapshot.take_snapshot(cluster, clock.now()).waiting == ()
    assert schedule_once(cluster, LIVE_POLICIES["fifo-skip"], clock.now(), lambda: None) == 0


@pytest.mark.parametrize("mode", ["observe", "advise", "drive"])
def test_foreign_job_is_followed_in_every_control_mode(cluster, slurm, mode):
    cluster = make.cluster(mode=mode)
    job = runs(slurm)
    sync(cluster, slurm)
    change(slurm, job, state=State.COMPLETED, ended_at=clock.now(), exit_code=0)

    sync(cluster, slurm)

    assert only_job().state == State.COMPLETED
    assert (slurm.cancelled, slurm.sent, slurm.drained) == ([], [], {})


@pytest.mark.parametrize("verb", [job_actions.cancel, job_actions.hold, stop.requeue])
@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING])
def test_foreign_job_cannot_be_changed_by_users(cluster, slurm, verb, state):
    runs(slurm, state=state)
    sync(cluster, slurm)

    with pytest.raises(StateConflict):
        verb(only_job(), author=make.author())

    assert only_job().state == state and only_job().hold == ""


def test_error_in_one_foreign_job_does_not_stop_the_others(cluster, slurm):
    odd, plain = runs(slurm), runs(slurm)
    sync(cluster, slurm)
    Job.objects.filter(foreign_id__startswith=odd).update(state=State.SUSPENDED)

    for job in (odd, plain):  # a suspended job cannot have run out of memory: that move is not in the table
        change(slurm, job, state=State.OUT_OF_MEMORY, ended_at=clock.now())
    sync(cluster, slurm)

    assert Job.objects.get(foreign_id__startswith=plain).state == State.OUT_OF_MEMORY


def test_unchanged_foreign_jobs_need_no_extra_queries(cluster, slurm):
    def queries_of_a_quiet_look():
        sync(cluster, slurm)
        with CaptureQueriesContext(connection) as asked:
            assert sync(cluster, slurm) == 0
        return len(asked)

    runs(slurm)
    one = queries_of_a_quiet_look()
    for number in range(40):
        if number % 2:
            runs(slurm)
        else:
            slurm.foreign(state=State.PENDING, submitted_at=clock.now())

    assert queries_of_a_quiet_look() == one


def test_counted_gpus_of_foreign_jobs_are_others_than_those_of_our_jobs(cluster, slurm):
    make.attempt(make.job(gpus_per_node=1), gpus=(6,), on=("seren-001",))
    runs(slurm, gpu_counts={"seren-001": 3})

    sync(cluster, slurm)

    assert Node.objects.get(name="seren-001").foreign_gpus == [4, 5, 7]


def test_counted_gpus_of_foreign_jobs_are_all_held_while_a_job_of_ours_that_has_ended_still_holds_some(cluster, slurm):
    make.attempt(make.job(gpus_per_node=6), gpus=(0, 1, 2, 3, 4, 5), on=("seren-001",))
    runs(slurm, gpu_counts={"seren-001": 4})

    sync(cluster, slurm)

    assert Node.objects.get(name="seren-001").foreign_gpus == [4, 5, 6, 7]
