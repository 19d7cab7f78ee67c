"""Cluster commands: each takes effect once, whatever happens between the call and its record."""

from dataclasses import replace
from datetime import timedelta

import pytest

from jobs.actions import jobs as job_actions
from jobs.actions import nodes as node_actions
from jobs.actions import progress, stop
from jobs.core import attempt_end
from jobs.core.lifecycle import State
from jobs.models import Allocation, Attempt, ClusterCommand, Job, Node, clock
from scheduling.backends.base import (
    ClusterUnreachable,
    EvictionRefused,
    OutcomeUnknown,
    PlacementRejected,
    RequestRejected,
)
from scheduling.loops.commands.claims import COMMAND_CLAIM_TIME, COMMANDS_PER_CLAIM
from scheduling.loops.commands.send import CANCEL_RETRY_INTERVAL, send_commands_once
from tests import make
from tests.scheduling.fake import failing, seen_job


def deliver(cluster, slurm, later=timedelta(0)):
    return send_commands_once(cluster, slurm, clock.now() + later)


def command(kind="submit"):
    return ClusterCommand.objects.get(kind=kind)


# submit


def test_attempt_is_submitted_on_exactly_its_nodes(cluster, slurm):
    attempt = make.attempt(make.job(nodes=2, gpus_per_node=4, name="llm"))

    assert deliver(cluster, slurm) == 1

    sent = slurm.sent[0]
    assert (sent.key, sent.nodes, sent.gpus_per_node) == (attempt.key, ("seren-001", "seren-002"), 4)
    assert Attempt.objects.get().backend_id == "1"


def test_cluster_is_told_the_model_of_the_chosen_nodes_not_the_alternatives(cluster, slurm):
    make.attempt(make.job(gpus_per_node=4, gpu_model="h100|a100"))

    assert deliver(cluster, slurm) == 1

    assert slurm.sent[0].gpu_model == "a100"


def test_image_mounts_and_workload_key_of_a_job_are_passed_to_the_cluster(cluster, slurm):
    attempt = make.attempt()
    Job.objects.filter(pk=attempt.job.pk).update(
        image="nvcr.io/nvidia/pytorch:24.01-py3", mounts=["data", "home"], wckey="climate"
    )

    deliver(cluster, slurm)

    assert slurm.sent[0].image == "nvcr.io/nvidia/pytorch:24.01-py3"
    assert slurm.sent[0].mounts == ("data", "home")
    assert slurm.sent[0].wckey == "climate"


@pytest.mark.parametrize(
    ("asked", "signal"),
    [
        ({}, ""),
        ({"checkpoint_interval": "30:00"}, ""),
        ({"checkpoint_dir": "/ckpt"}, "USR1@60"),
        ({"checkpoint_signal": "B:USR2@90"}, "USR2@90"),
        ({"checkpoint_signal": "USR2@0", "checkpoint_dir": "/ckpt"}, ""),
    ],
    ids=["none", "interval", "directory", "own", "no time"],
)
def test_checkpoint_signal_is_passed_for_jobs_that_save_checkpoints(cluster, slurm, asked, signal):
    make.attempt(make.job(**asked))

    deliver(cluster, slurm)

    assert slurm.sent[0].checkpoint_signal == signal


def test_job_gets_its_identity_and_progress_token_in_its_environment(cluster, slurm, settings):
    settings.ACME_URL = "https://acme.test"
    attempt = make.attempt(make.job(environment={"A": "1"}, checkpoint_dir="/ckpt"))

    deliver(cluster, slurm)

    assert slurm.sent[0].environment == {
        "A": "1",
        "ACME_JOB_ID": attempt.job.public_id,
        "ACME_ATTEMPT": "1",
        "ACME_KIND": "other",
        "ACME_CHECKPOINT_DIR": "/ckpt",
        "ACME_URL": "https://acme.test",
        "ACME_PROGRESS_TOKEN": progress.run_token(attempt.key),
    }


def test_array_task_gets_its_index(cluster, slurm):
    make.attempt(make.jobs({"array": "3,7"})[1])

    deliver(cluster, slurm)

    assert slurm.sent[0].environment["SLURM_ARRAY_TASK_ID"] == "7"


def test_commands_are_sent_in_the_order_of_creation(cluster, slurm):
    keys = [make.attempt(make.job(gpus_per_node=1), gpus=(n,)).key for n in range(3)]

    deliver(cluster, slurm)

    assert [sent.key for sent in slurm.sent] == keys


def test_submission_with_a_lost_response_is_looked_up_before_a_retry(cluster, slurm):
    make.attempt()
    slurm.after = failing(OutcomeUnknown("the line broke"), "submit")
    deliver(cluster, slurm)
    assert command().done_at is None

    slurm.after = lambda verb: None
    deliver(cluster, slurm, later=timedelta(minutes=1))

    assert len(slurm.sent) == 1
    assert Attempt.objects.get().backend_id == "1"
    assert command().outcome == "accepted as 1"


def test_worker_killed_between_call_and_record_does_not_submit_twice(cluster, slurm):
    make.attempt()
    slurm.after = failing(KeyboardInterrupt(), "submit")
    with pytest.raises(KeyboardInterrupt):
        deliver(cluster, slurm)

    slurm.after = lambda verb: None
    assert deliver(cluster, slurm) == 0  # the claim of the dead worker still counts
    assert deliver(cluster, slurm, later=COMMAND_CLAIM_TIME + timedelta(seconds=1)) == 1

    assert len(slurm.sent) == 1


def test_unreachable_cluster_is_retried_with_growing_delays(cluster, slurm):
    make.attempt()
    slurm.before = failing(ClusterUnreachable("no route"), "submit", "jobs")
    waits = []
    for _ in range(3):
        before = clock.now() + timedelta(hours=len(waits))
        with pytest.raises(ClusterUnreachable):
            send_commands_once(cluster, slurm, before)
        waits.append((command().due_at - before).total_seconds())

    assert waits == [2, 4, 8]


def test_rejection_is_final_and_its_message_reaches_the_owner(cluster, slurm):
    make.attempt()
    slurm.before = failing(RequestRejected("invalid account"), "submit")

    deliver(cluster, slurm)

    assert "invalid account" in Job.objects.get().why
    assert command().outcome == "refused: invalid account"


def refusing(slurm, cluster, times):
    """So often it is promised its GPUs and refused, because of its nodes."""
    job = make.job(gpus_per_node=1)
    slurm.before = failing(PlacementRejected("Required node not available (down, drained or reserved)"), "submit")
    for _ in range(times):
        make.attempt(job)
        deliver(cluster, slurm)
        job.refresh_from_db()
    return job


def test_job_rejected_for_a_dead_node_keeps_its_place_in_the_queue(cluster, slurm):
    job = refusing(slurm, cluster, times=1)

    assert (job.state, job.flags, job.hold, job.requeues) == (State.PENDING, ["REQUEUED"], "", 0)
    assert "Required node not available" in job.why
    assert not Allocation.objects.live().exists()


def test_job_rejected_on_all_nodes_is_held(cluster, slurm):
    job = refusing(slurm, cluster, times=job_actions.MAX_SUBMIT_REFUSALS)

    assert "REQUEUE_HOLD" in job.flags


def test_cancel_takes_precedence_over_a_dead_node(cluster, slurm):
    make.attempt()
    slurm.before = lambda verb: verb == "submit" and cancel_and_refuse()

    def cancel_and_refuse():
        job_actions.cancel(Job.objects.get(), author=make.author())
        raise PlacementRejected("Required node not available (down, drained or reserved)")

    deliver(cluster, slurm)

    assert Job.objects.get().state == State.CANCELLED


def test_more_commands_than_one_claim_are_sent_in_one_turn(cluster, slurm):
    free = [(node, gpu) for node in range(1, 5) for gpu in range(8)]
    assert len(free) >= COMMANDS_PER_CLAIM
    for node, gpu in free:
        make.attempt(make.job(gpus_per_node=1), on=[f"seren-{node:03d}"], gpus=(gpu,))
    node_actions.drain(Node.objects.first(), author=make.author(), why="loose cable", now=clock.now())

    assert deliver(cluster, slurm) == len(free) + 1
    assert Attempt.objects.exclude(backend_id="").count() == len(free)


def test_unknown_outcome_and_rejection_are_recorded_among_many_submissions(cluster, slurm):
    keys = [make.attempt(make.job(gpus_per_node=1), gpus=(n,)).key for n in range(4)]
    errors = iter([None, OutcomeUnknown("the line broke"), RequestRejected("no"), None])

    def one_each(verb):
        if verb == "submit" and (error := next(errors)):
            raise error

    slurm.before = one_each

    assert deliver(cluster, slurm) == 3
    assert [sent.key for sent in slurm.sent] == [keys[0], keys[3]]
    outcomes = ClusterCommand.objects.order_by("id").values_list("outcome", flat=True)
    assert list(outcomes) == ["accepted as 1", "in doubt: the line broke", "refused: no", "accepted as 2"]


def test_rejected_job_does_not_delay_the_next(cluster, slurm):
    make.attempt(make.job(gpus_per_node=1), gpus=(0,))
    good = make.attempt(make.job(gpus_per_node=1), gpus=(1,))
    refusals = iter([RequestRejected("no")])

    def refuse_once(verb):
        if verb == "submit" and (error := next(refusals, None)):
            raise error

    slurm.before = refuse_once

    assert deliver(cluster, slurm) == 2
    assert [sent.key for sent in slurm.sent] == [good.key]


def test_job_cancelled_before_submission_is_never_submitted(cluster, slurm):
    job = make.attempt().job
    job_actions.cancel(job, author=make.author())

    deliver(cluster, slurm)

    assert slurm.sent == []
    assert Job.objects.get().state == State.CANCELLED


def test_two_workers_do_not_send_the_same_command(cluster, slurm):
    make.attempt()
    seen = []
    slurm.before = lambda verb: verb == "submit" and seen.append(deliver(cluster, slurm))

    deliver(cluster, slurm)

    assert seen == [0]


def test_worker_suspended_past_its_claim_cannot_record_an_outcome(cluster, slurm):
    make.attempt()
    slurm.before = lambda verb: verb == "submit" and ClusterCommand.objects.update(tries=5)

    assert deliver(cluster, slurm) == 0
    assert command().done_at is None


def test_submission_without_a_response_stays_in_doubt_if_the_cluster_does_not_show_it(cluster, slurm):
    attempt = make.attempt()
    slurm.after = failing(OutcomeUnknown("the line broke"), "submit")
    deliver(cluster, slurm)
    slurm.forget(attempt.key)  # it ran, ended and was forgotten

    slurm.after = lambda verb: None
    deliver(cluster, slurm, later=timedelta(minutes=10))

    assert len(slurm.sent) == 1
    assert Attempt.objects.get().missing_since
    assert command().outcome.startswith("in doubt")


def test_attempt_of_an_earlier_turn_is_looked_up_before_its_first_submission(cluster, slurm):
    attempt = make.attempt()
    slurm.known["7"] = replace(slurm.known.get("7") or seen_job(), key=attempt.key, state=State.RUNNING)

    deliver(cluster, slurm)

    assert slurm.sent == []
    assert Attempt.objects.get().backend_id == "7"


def test_attempt_of_this_turn_needs_no_lookup(cluster, slurm):
    looked_at = clock.now()
    make.attempt()
    slurm.before = failing(ClusterUnreachable("nobody asked"), "jobs")

    assert send_commands_once(cluster, slurm, clock.now(), looked_at) == 1


def test_try_that_did_not_reach_the_cluster_needs_no_lookup(cluster, slurm):
    make.attempt()
    slurm.before = failing(ClusterUnreachable("no route"), "submit")
    with pytest.raises(ClusterUnreachable):
        deliver(cluster, slurm)

    slurm.before = lambda verb: None
    deliver(cluster, slurm, later=timedelta(minutes=1))

    assert len(slurm.sent) == 1


def test_a_job_of_another_installation_is_cancelled_by_its_id(cluster, slurm):
    ClusterCommand.objects.create(cluster=cluster, kind="cancel_id", reason="77")

    deliver(cluster, slurm)

    assert slurm.cancelled == ["77"]
    assert command("cancel_id").outcome == "done"


# cancel


def test_cancel_is_repeated_until_the_attempt_has_ended(cluster, slurm):
    attempt = make.running()
    ClusterCommand.objects.all().delete()
    job_actions.cancel(attempt.job, author=make.author())

    deliver(cluster, slurm)
    deliver(cluster, slurm)
    deliver(cluster, slurm, later=CANCEL_RETRY_INTERVAL + timedelta(seconds=1))

    assert slurm.cancelled == [attempt.backend_id] * 2
    job_actions.finish(
        Attempt.objects.get(), attempt_end.AttemptEnd(state=State.FAILED, at=clock.now()), author=make.author()
    )
    deliver(cluster, slurm, later=CANCEL_RETRY_INTERVAL * 3)
    assert command("cancel").outcome == "ended"


REFUSAL = EvictionRefused("the budget keep needs 2 healthy pods")


def test_refused_eviction_stays_open_with_its_reason_and_is_repeated(cluster, slurm):
    attempt = make.running()
    ClusterCommand.objects.all().delete()
    stop.requeue(attempt.job, author=make.author())
    slurm.before = failing(REFUSAL, "evict")

    deliver(cluster, slurm)

    assert (command("cancel").done_at, command("cancel").outcome) == (None, f"not evicted: {REFUSAL}")
    slurm.before = lambda verb: None
    deliver(cluster, slurm)
    assert slurm.cancelled == []
    deliver(cluster, slurm, later=CANCEL_RETRY_INTERVAL + timedelta(seconds=1))
    assert slurm.cancelled == [attempt.backend_id]


def test_cancelled_job_is_not_evicted(cluster, slurm):
    attempt = make.running()
    ClusterCommand.objects.all().delete()
    job_actions.cancel(attempt.job, author=make.author())
    slurm.before = failing(REFUSAL, "evict")

    deliver(cluster, slurm)

    assert slurm.cancelled == [attempt.backend_id]


# nodes


def test_a_drain_reaches_the_cluster_with_its_reason(cluster, slurm):
    node_actions.drain(Node.objects.first(), author=make.author(), why="loose cable", now=clock.now())

    deliver(cluster, slurm)

    assert slurm.drained == {"seren-001": "loose cable"}


def test_newest_command_for_a_node_wins(cluster, slurm):
    node = Node.objects.first()
    node_actions.drain(node, author=make.author(), why="loose cable", now=clock.now())
    node_actions.resume(node, author=make.author(), now=clock.now())

    deliver(cluster, slurm)

    assert slurm.drained == {}
    assert list(ClusterCommand.objects.values_list("kind", flat=True)) == ["resume"]


def test_drain_rejected_by_the_cluster_still_counts_for_acme(cluster, slurm):
    slurm.before = failing(RequestRejected("drain needs scontrol"), "drain")
    node_actions.drain(Node.objects.first(), author=make.author(), why="loose cable", now=clock.now())

    deliver(cluster, slurm)

    assert not Node.objects.first().is_schedulable
    assert command("drain").outcome == "refused: drain needs scontrol"


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_no_commands_are_sent_to_a_cluster_that_acme_does_not_drive(cluster, slurm, mode):
    cluster.mode = mode
    make.attempt()

    assert deliver(cluster, slurm) == 0
    assert slurm.sent == []
