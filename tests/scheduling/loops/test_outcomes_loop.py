"""The loop `outcomes`: forgotten attempts get the end that accounting, the record or the log show, or none."""

import os
from datetime import timedelta
from pathlib import Path

import pytest

from acmeweb.common.errors import StateConflict
from jobs.actions import jobs as job_actions
from jobs.actions import outcomes as outcome_actions
from jobs.core.lifecycle import Flag, State
from jobs.models import Allocation, Attempt, Cluster, ClusterCommand, Event, Job, clock
from scheduling.backends.attempt_record import STARTED_BEFORE
from scheduling.backends.base import ClusterUnreachable, OutcomeUnknown
from scheduling.loops.commands.send import send_commands_once
from scheduling.loops.observe.outcome_evidence import MISSING_GRACE, SOURCE_TIMEOUT
from scheduling.loops.observe.outcomes import (
    clusters_with_missing_attempts,
    clusters_with_unknown_outcomes,
    find_outcomes_once,
)
from scheduling.loops.observe.sync import sync_cluster_once
from tests import make
from tests.scheduling.fake import failing, seen_job

LATER = MISSING_GRACE + timedelta(minutes=2)


@pytest.fixture
def log_root(cluster, tmp_path):
    Cluster.objects.filter(pk=cluster.pk).update(log_root=str(tmp_path))
    cluster.refresh_from_db()
    return tmp_path


@pytest.fixture
def forgotten(cluster, slurm, log_root):
    """An attempt that ran on the cluster, which has forgotten it."""
    return forget(make.running(make.job(gpus_per_node=2), log_path=str(log_root / "a-1.log")), cluster, slurm)


def forget(attempt, cluster, slurm):
    ClusterCommand.objects.filter(attempt=attempt).update(done_at=clock.now() - timedelta(minutes=5))
    sync_cluster_once(cluster, slurm, clock.now())
    attempt.refresh_from_db()
    assert attempt.missing_since
    return attempt


def look(cluster, slurm, later=LATER, **how):
    return find_outcomes_once(cluster, slurm, clock.now() + later, **how)


def write_record(attempt, exit_line="", start="7 n1 1795403401", log="step 1\n"):
    log_path = attempt.log_path
    record = Path(f"{log_path}.acme")
    record.mkdir(exist_ok=True)
    Path(log_path).write_text(log)
    (record / "start").write_text(start)
    if exit_line:
        (record / "exit").write_text(exit_line)


def now_job():
    return Job.objects.get()


def test_a_command_that_succeeded_just_before_it_was_preempted_does_not_run_again(cluster, slurm, log_root):
    attempt = make.running(make.job(gpus_per_node=1, preemptible=True), log_path=str(log_root / "a-1.log"))
    slurm.adopt(attempt)
    job_actions.requeue(attempt.job, author=make.author())
    write_record(attempt, "0 1795403402")
    slurm.end(attempt.key, State.CANCELLED, clock.now())

    sync_cluster_once(cluster, slurm, clock.now())

    assert (now_job().state, now_job().requeues) == (State.COMPLETED, 0)


def test_a_job_that_was_stopped_in_time_is_requeued(cluster, slurm, log_root):
    attempt = make.running(make.job(gpus_per_node=1), log_path=str(log_root / "a-1.log"))
    slurm.adopt(attempt)
    job_actions.requeue(attempt.job, author=make.author())
    write_record(attempt, "143 1795403402")
    slurm.end(attempt.key, State.CANCELLED, clock.now())

    sync_cluster_once(cluster, slurm, clock.now())

    assert now_job().state == State.PENDING


# which are eligible


def test_only_clusters_with_missing_attempts_are_searched(cluster, slurm):
    attempt = make.running(make.job(gpus_per_node=1))
    assert clusters_with_missing_attempts() == []

    forget(attempt, cluster, slurm)

    assert clusters_with_missing_attempts() == [cluster.pk]


def test_the_longest_missing_attempt_is_looked_up_first(cluster, slurm, log_root):
    first, second = (
        forget(make.running(make.job(gpus_per_node=1), gpus=(n,), log_path=str(log_root / f"{n}.log")), cluster, slurm)
        for n in (0, 1)
    )
    Attempt.objects.filter(pk=second.pk).update(missing_since=clock.now() - timedelta(hours=1))
    slurm.accounting, asked = [], []
    slurm.accounting_jobs = lambda backend_id: asked.append(backend_id) or []

    look(cluster, slurm)

    assert asked == [second.backend_id, first.backend_id]


# how they ended


def test_a_command_that_succeeded_and_was_forgotten_never_runs_again(cluster, slurm, forgotten):
    write_record(forgotten, "0 1795403402")

    assert look(cluster, slurm) == 1

    assert (now_job().state, now_job().requeues) == (State.COMPLETED, 0)
    assert not Allocation.objects.live().exists()


def test_accounting_is_checked_first(cluster, slurm, forgotten):
    write_record(forgotten, "0 1795403402")
    over = {"backend_id": forgotten.backend_id, "key": forgotten.key, "ended_at": clock.now()}
    slurm.accounting = [seen_job(**over, state=State.TIMEOUT, submitted_at=forgotten.promised_at)]

    look(cluster, slurm)

    assert now_job().state == State.TIMEOUT


def test_a_recorded_failure_is_a_failure(cluster, slurm, forgotten):
    write_record(forgotten, "3 1795403402")

    look(cluster, slurm)

    assert (now_job().state, now_job().exit_code) == (State.FAILED, 3)


def test_record_of_another_user_is_ignored(cluster, slurm, forgotten):
    if os.geteuid() != 0:
        pytest.skip("only root can write files of other users")
    write_record(forgotten, "0 1795403402")
    os.chown(f"{forgotten.log_path}.acme/exit", 65534, 65534)

    look(cluster, slurm)

    assert Flag.OUTCOME_UNKNOWN in now_job().flags


def test_attempt_shown_again_by_the_cluster_is_not_changed(cluster, slurm, forgotten):
    write_record(forgotten, "0 1795403402")
    seen = Attempt.objects.get()
    slurm.adopt(seen)
    sync_cluster_once(cluster, slurm, clock.now())

    assert look(cluster, slurm) == 0
    assert now_job().state == State.RUNNING


def test_an_attempt_that_reappears_meanwhile_is_not_closed(forgotten):
    Attempt.objects.update(missing_since=None)

    with pytest.raises(StateConflict):
        outcome_actions.mark_outcome_unknown(forgotten, "why", missing_since=forgotten.missing_since, author=make.LOOP)


def test_no_outcome_is_recorded_while_accounting_is_unreachable(cluster, slurm, forgotten):
    write_record(forgotten)
    slurm.accounting, slurm.before = [], failing(ClusterUnreachable("gone"), "accounting")

    assert look(cluster, slurm, SOURCE_TIMEOUT * 0.9) == 0
    assert look(cluster, slurm, SOURCE_TIMEOUT * 1.1) == 1
    assert Flag.OUTCOME_UNKNOWN in now_job().flags


def test_one_attempt_that_cannot_be_looked_up_does_not_stop_the_others(cluster, slurm, log_root):
    bad, good = (
        forget(make.running(make.job(gpus_per_node=1), gpus=(n,), log_path=str(log_root / f"{n}.log")), cluster, slurm)
        for n in (0, 1)
    )
    write_record(good, "0 1795403402")
    slurm.accounting_jobs = lambda backend_id: [][1] if backend_id == bad.backend_id else []

    assert look(cluster, slurm) == 1
    good.job.refresh_from_db()
    assert good.job.state == State.COMPLETED


# unknown outcomes


@pytest.fixture
def unknown(cluster, slurm, forgotten):
    write_record(forgotten)
    look(cluster, slurm)
    return now_job()


def test_an_unknown_outcome_holds_the_job_and_frees_its_gpus(unknown):
    assert (unknown.state, unknown.hold, unknown.reason) == (State.PENDING, "user", "OutcomeUnknown")
    assert unknown.badge.label == "OUTCOME_UNKNOWN"
    assert "It may have succeeded" in unknown.why
    assert Attempt.objects.get().state == State.UNKNOWN
    assert not Allocation.objects.live().exists()


def test_an_unknown_outcome_is_not_released_like_a_hold(unknown):
    with pytest.raises(StateConflict, match="may have succeeded"):
        job_actions.release(unknown, author=make.author())


@pytest.mark.parametrize(
    ("verb", "state"),
    [(outcome_actions.mark_succeeded, State.COMPLETED), (outcome_actions.mark_failed, State.FAILED)],
)
def test_user_records_an_unknown_outcome(unknown, verb, state):
    verb(unknown, author=make.author(), why="looked at its output")

    assert (now_job().state, now_job().hold, now_job().flags) == (state, "", [])
    assert Attempt.objects.get().state == state
    assert Event.objects.get(type="job.outcome_recorded").why == "looked at its output"


def test_user_restarts_a_job_with_unknown_outcome(unknown):
    outcome_actions.run_again(unknown, author=make.author())

    assert (now_job().state, now_job().hold, now_job().flags, now_job().requeues) == (
        State.PENDING,
        "",
        ["REQUEUED"],
        0,
    )
    assert Attempt.objects.get().state == State.UNKNOWN


def test_an_outcome_is_recorded_once(unknown):
    outcome_actions.mark_succeeded(unknown, author=make.author())

    with pytest.raises(StateConflict):
        outcome_actions.run_again(unknown, author=make.author())


def test_a_job_that_was_being_cancelled_is_cancelled(cluster, slurm, forgotten):
    job_actions.cancel(forgotten.job, author=make.author())
    write_record(forgotten)

    look(cluster, slurm)

    assert now_job().state == State.CANCELLED


def test_reachable_source_settles_an_unknown_outcome(cluster, slurm, unknown):
    write_record(Attempt.objects.get(), "0 1795403402")
    assert clusters_with_unknown_outcomes() == [cluster.pk]

    assert look(cluster, slurm, again=True) == 1

    assert (now_job().state, now_job().hold) == (State.COMPLETED, "")
    assert Attempt.objects.get().state == State.COMPLETED


def test_a_platform_failure_that_becomes_known_requeues_the_job(cluster, slurm, unknown):
    attempt = Attempt.objects.get()
    over = {"backend_id": attempt.backend_id, "key": attempt.key, "ended_at": clock.now()}
    slurm.accounting = [seen_job(**over, state=State.NODE_FAIL, submitted_at=attempt.promised_at)]

    look(cluster, slurm, again=True)

    assert (now_job().state, now_job().hold, now_job().requeues) == (State.PENDING, "", 1)


def test_a_job_whose_outcome_is_unknown_and_that_shows_up_again_is_not_cancelled(cluster, slurm, unknown):
    slurm.adopt(Attempt.objects.select_related("job__user").get())

    sync_cluster_once(cluster, slurm, clock.now())

    assert slurm.cancelled == []


def test_a_job_that_shows_up_again_and_ends_settles_its_outcome(cluster, slurm, unknown):
    attempt = Attempt.objects.select_related("job__user").get()
    slurm.adopt(attempt)
    slurm.end(attempt.key, State.COMPLETED, clock.now(), exit_code=0)

    sync_cluster_once(cluster, slurm, clock.now())

    assert (now_job().state, now_job().hold) == (State.COMPLETED, "")


def test_a_job_that_shows_up_again_after_it_was_run_again_is_cancelled(cluster, slurm, unknown):
    outcome_actions.run_again(unknown, author=make.author())
    slurm.adopt(Attempt.objects.select_related("job__user").get())

    sync_cluster_once(cluster, slurm, clock.now())

    assert len(slurm.cancelled) == 1


# submissions without an answer


@pytest.fixture
def doubted(cluster, slurm, log_root):
    """The cluster took it, ran it and forgot it; the answer to the submission was lost."""
    proof = make.running(make.job(gpus_per_node=1), gpus=(7,), log_path=str(log_root / "proof.log"))
    Path(proof.log_path).write_text("logs of this cluster are found here\n")
    slurm.adopt(proof)
    ClusterCommand.objects.update(done_at=clock.now())
    attempt = make.attempt(make.job(gpus_per_node=1), log_path=str(log_root / "b-1.log"))
    slurm.after = failing(OutcomeUnknown("the line broke"), "submit")
    send_commands_once(cluster, slurm, clock.now())
    slurm.after = lambda verb: None
    slurm.forget(attempt.key)
    send_commands_once(cluster, slurm, clock.now() + timedelta(minutes=1))
    attempt.refresh_from_db()
    assert attempt.missing_since
    return attempt


def test_submission_without_a_response_is_ended_by_its_record(cluster, slurm, doubted):
    write_record(doubted, "0 1795403402")

    look(cluster, slurm)
    send_commands_once(cluster, slurm, clock.now() + timedelta(hours=1))

    doubted.job.refresh_from_db()
    assert doubted.job.state == State.COMPLETED
    assert len(slurm.sent) == 1


def test_a_submission_that_left_no_trace_is_sent_again(cluster, slurm, doubted):
    assert look(cluster, slurm) == 1
    send_commands_once(cluster, slurm, clock.now() + timedelta(hours=1))

    doubted.refresh_from_db()
    assert len(slurm.sent) == 2
    assert (doubted.backend_id, doubted.missing_since) == ("2", None)


def test_a_submission_of_which_only_the_start_is_known_is_not_sent_again(cluster, slurm, doubted):
    write_record(doubted)

    look(cluster, slurm)
    send_commands_once(cluster, slurm, clock.now() + timedelta(hours=1))

    doubted.job.refresh_from_db()
    assert Flag.OUTCOME_UNKNOWN in doubted.job.flags
    assert len(slurm.sent) == 1


def test_a_refused_repetition_ends_as_the_first_run_did(cluster, slurm, doubted):
    look(cluster, slurm)
    send_commands_once(cluster, slurm, clock.now() + timedelta(hours=1))
    write_record(doubted, "0 1795403402")  # it had started after all
    slurm.end(doubted.key, State.FAILED, clock.now(), exit_code=STARTED_BEFORE)
    sync_cluster_once(cluster, slurm, clock.now())

    look(cluster, slurm)

    doubted.job.refresh_from_db()
    assert doubted.job.state == State.COMPLETED
