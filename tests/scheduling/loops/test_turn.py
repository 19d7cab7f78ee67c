"""The turn: one holder at a time, merged requests, and an unreachable cluster."""

from dataclasses import replace
from datetime import timedelta

import pytest

from jobs.core.lifecycle import State
from jobs.models import Attempt, Cluster, Event, Job, Loop, clock
from scheduling.backends.base import ClusterUnreachable
from scheduling.loops.sweep import COMMAND_OVERDUE_AFTER, request_overdue_turns
from scheduling.loops.turn import TURN_LEASE, LeaseLost, TurnLease, run_turn, run_turn_once
from scheduling.models import Lease
from tests import make
from tests.scheduling.fake import failing


def free() -> TurnLease:
    class Free(TurnLease):
        def check_held(self):
            pass

        def renew(self):
            pass

    return Free(name="cluster", term=1)


def test_job_runs_from_submission_to_its_end(cluster, slurm):
    make.job(gpus_per_node=8, name="llm")

    assert run_turn(cluster.pk, "me", lambda _: slurm) == 1
    assert Job.objects.get().is_configuring and len(slurm.sent) == 1

    key = Attempt.objects.get().key
    slurm.start(key, clock.now())
    run_turn(cluster.pk, "me", lambda _: slurm)
    assert Job.objects.get().badge.label == "RUNNING"

    slurm.end(key, State.COMPLETED, clock.now(), exit_code=0)
    run_turn(cluster.pk, "me", lambda _: slurm)
    assert Job.objects.get().state == State.COMPLETED


def test_cluster_that_may_not_get_jobs_starts_none_and_says_why(cluster, slurm):
    make.job(gpus_per_node=8)
    slurm.traits = replace(slurm.traits, no_jobs_reason="The pod template is not allowed.")

    run_turn(cluster.pk, "me", lambda _: slurm)

    assert (Job.objects.get().state, slurm.sent) == (State.PENDING, [])
    assert Cluster.objects.get().last_error == "No job starts. The pod template is not allowed."
    slurm.traits = replace(slurm.traits, no_jobs_reason="")
    run_turn(cluster.pk, "me", lambda _: slurm)
    assert (Job.objects.get().is_configuring, Cluster.objects.get().last_error) == (True, "")


@pytest.mark.parametrize(("mode", "advances"), [("drive", 2), ("advise", 0), ("observe", 0)])
def test_jobs_advance_after_the_sync_and_after_the_submissions_of_a_driven_cluster(cluster, slurm, mode, advances):
    make.job(gpus_per_node=8)
    Cluster.objects.update(mode=mode)
    calls: list[str] = []
    slurm.before = calls.append

    run_turn(cluster.pk, "me", lambda _: slurm)

    assert calls.count("advance_jobs") == advances
    if advances:
        assert calls.index("jobs") < calls.index("advance_jobs") < calls.index("submit") and calls[-1] == "advance_jobs"


def test_worker_without_the_lease_does_nothing(cluster, slurm):
    make.job()
    Lease.take(f"cluster:{cluster.pk}", "another", TURN_LEASE)

    assert run_turn(cluster.pk, "me", lambda _: slurm) == 0
    assert slurm.sent == []


def test_expired_lease_is_taken_with_a_higher_term(db):
    first = Lease.take("x", "a", timedelta(seconds=-1))

    second = Lease.take("x", "b", TURN_LEASE)

    assert (first.term, second.term) == (1, 2)
    assert Lease.take("x", "c", TURN_LEASE) is None


def test_the_old_holder_can_neither_decide_nor_renew(db):
    taken = Lease.take("x", "a", timedelta(seconds=-1))
    Lease.take("x", "b", TURN_LEASE)
    old = TurnLease(name="x", term=taken.term)

    for verb in (old.check_held, old.renew):
        with pytest.raises(LeaseLost, match="term 1 has ended"):
            verb()


def test_release_frees_only_its_own_term(db):
    term = Lease.take("x", "a", TURN_LEASE).term
    Lease.release("x", term - 1)
    assert Lease.take("x", "b", TURN_LEASE) is None

    Lease.release("x", term)
    assert Lease.take("x", "b", TURN_LEASE).term == 2


def test_unreachable_cluster_is_shown_and_nothing_is_decided(cluster, slurm):
    job = make.job()
    slurm.before = failing(ClusterUnreachable("no route to seren"), "nodes")

    run_turn_once(cluster, lambda _: slurm, free(), clock.now())

    assert Cluster.objects.get().last_error == "no route to seren"
    assert Job.objects.get(pk=job.pk).state == State.PENDING


def test_unknown_policy_is_shown_on_the_clusters_page(cluster, slurm):
    Cluster.objects.update(policy="lifo")

    run_turn(cluster.pk, "me", lambda _: slurm)

    assert Cluster.objects.get().last_error.startswith("policy: 'lifo' is not one of fifo, ")


def test_the_lease_is_free_again_after_a_turn_that_failed(cluster, slurm):
    slurm.before = failing(RuntimeError("a bug"), "nodes")

    with pytest.raises(RuntimeError):
        run_turn(cluster.pk, "me", lambda _: slurm)

    assert Lease.take(f"cluster:{cluster.pk}", "me", TURN_LEASE) is not None


def test_internal_error_is_shown_on_the_clusters_page(cluster, slurm):
    def broken():
        raise RuntimeError("a bug")

    lease = free()
    object.__setattr__(lease, "renew", broken)

    with pytest.raises(RuntimeError):
        run_turn_once(cluster, lambda _: slurm, lease, clock.now())

    row = Cluster.objects.get()
    assert row.last_error == "The scheduling turn failed: RuntimeError: a bug"
    assert row.error_since is not None


def test_repeated_failures_keep_the_time_of_the_first(cluster, slurm):
    slurm.before = failing(RuntimeError("a bug"), "nodes")
    for _ in range(2):
        with pytest.raises(RuntimeError):
            run_turn(cluster.pk, "me", lambda _: slurm)
        Cluster.objects.update(error_since=clock.now() - timedelta(minutes=1), last_contact_at=clock.now())

    row = Cluster.objects.get()
    assert row.is_failing(clock.now()) and not row.is_silent(clock.now())


def test_a_turn_that_succeeds_clears_the_trouble(cluster, slurm):
    Cluster.objects.update(last_error="The scheduling turn failed", error_since=clock.now() - timedelta(minutes=1))

    run_turn(cluster.pk, "me", lambda _: slurm)

    row = Cluster.objects.get()
    assert (row.last_error, row.error_since) == ("", None)
    assert not row.is_failing(clock.now())


def test_a_new_cluster_is_driven_by_acme(cluster):
    assert Cluster.objects.get().policy == "acme"


@pytest.mark.parametrize(
    ("fields", "last_error"),
    [
        ({"policy": "lottery"}, "policy: 'lottery' is not one of fifo, "),
        ({"policy_settings": {"order": "lottery"}}, "policy_settings: order: 'lottery' is not one of fifo, "),
        (
            {"policy": "fifo", "policy_settings": {"order": "sjf"}},
            "policy_settings: order: this policy has no settings",
        ),
    ],
)
def test_invalid_cluster_settings_are_shown_and_nothing_is_decided(cluster, slurm, fields, last_error):
    Cluster.objects.update(**fields)
    make.job()

    run_turn(cluster.pk, "me", lambda _: slurm)

    assert Cluster.objects.get().last_error.startswith(last_error)
    assert slurm.sent == []


def test_policy_settings_of_the_cluster_are_used(cluster, slurm):
    """Two want the whole cluster; the longer came first."""
    Cluster.objects.update(policy_settings={"order": "sjf"})
    for hours in (90, 1):
        make.job(nodes=4, gpus_per_node=8, time_limit=hours * 3600, name=f"h{hours}")

    run_turn(cluster.pk, "me", lambda _: slurm)

    assert [sent.name for sent in slurm.sent] == ["h1"]


# two workers, two beats, or none


def test_repeated_and_late_messages_give_the_same_result(cluster, slurm):
    make.job(gpus_per_node=8)

    for worker in ("a", "b", "a", "a"):
        run_turn(cluster.pk, worker, lambda _: slurm)

    assert (len(slurm.sent), Attempt.objects.count()) == (1, 1)
    assert Event.objects.filter(type="job.state_changed").count() == 1


def test_worker_suspended_past_its_lease_changes_nothing(cluster, slurm):
    """Its lease runs out while it looks at the cluster; the other makes a whole turn in the meantime."""
    make.job(gpus_per_node=8)

    def sleeping(verb):
        if verb == "nodes":
            slurm.before = lambda verb: None
            Lease.objects.update(expires_at=clock.now() - timedelta(seconds=1))
            assert run_turn(cluster.pk, "other", lambda _: slurm) == 1

    slurm.before = sleeping

    assert run_turn(cluster.pk, "sleeper", lambda _: slurm) == 0
    assert (len(slurm.sent), Attempt.objects.count()) == (1, 1)


def test_a_second_turn_changes_nothing(cluster, slurm):
    """Level-triggered: what a turn did is no reason for the next one to do anything."""
    make.jobs({"gpus_per_node": 8, "nodes": 3}, {"gpus_per_node": 8, "nodes": 3}, {"hold": True})
    run_turn(cluster.pk, "me", lambda _: slurm)
    for key in Attempt.objects.values_list("key", flat=True):
        slurm.start(key, clock.now())
    run_turn(cluster.pk, "me", lambda _: slurm)

    before = list(Event.objects.values_list("pk", "type")), list(Job.objects.order_by("pk").values("state", "why"))
    run_turn(cluster.pk, "me", lambda _: slurm)

    after = list(Event.objects.values_list("pk", "type")), list(Job.objects.order_by("pk").values("state", "why"))
    assert after == before


def test_sweep_requests_turns_for_overdue_commands(cluster, slurm, django_capture_on_commit_callbacks):
    make.attempt(make.job(gpus_per_node=1))
    assert request_overdue_turns(clock.now()) == 0

    with django_capture_on_commit_callbacks(execute=True):
        assert request_overdue_turns(clock.now() + COMMAND_OVERDUE_AFTER + timedelta(seconds=1)) == 1

    assert Loop.objects.get().key == f"turn:{cluster.pk}"


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_sweep_ignores_commands_of_undriven_clusters(cluster, mode):
    make.attempt(make.job(gpus_per_node=1))
    make.cluster(mode=mode)

    assert request_overdue_turns(clock.now() + 2 * COMMAND_OVERDUE_AFTER) == 0
