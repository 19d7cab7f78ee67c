"""Sync: the database follows the cluster's report."""

from dataclasses import replace
from datetime import timedelta

import pytest

from jobs.actions import jobs as job_actions
from jobs.actions import nodes as node_actions
from jobs.actions.journal import SYNC
from jobs.core import attempt_end
from jobs.core.lifecycle import Flag, NodeFlag, NodeState, State
from jobs.models import Attempt, Cluster, ClusterCommand, ClusterMode, Event, Job, Node, clock
from scheduling.backends.attempt_record import STARTED_BEFORE
from scheduling.backends.base import BackendNode, ClusterUnreachable
from scheduling.loops.commands.send import send_commands_once
from scheduling.loops.observe.observations import MAX_START_DELAY
from scheduling.loops.observe.outcome_evidence import MISSING_GRACE
from scheduling.loops.observe.sync import sync_cluster_once
from tests import make
from tests.scheduling.fake import failing


@pytest.fixture
def sent(cluster, slurm):
    """An attempt that the cluster has accepted."""
    make.attempt(make.job(gpus_per_node=2))
    send_commands_once(cluster, slurm, clock.now())
    return Attempt.objects.get()


def sync(cluster, slurm, later=timedelta(0)):
    return sync_cluster_once(Cluster.objects.get(pk=cluster.pk), slurm, clock.now() + later)


def job():
    return Job.objects.get()


@pytest.mark.parametrize("supported", [True, False])
def test_cluster_records_whether_it_runs_images(cluster, slurm, supported):
    Cluster.objects.update(runs_images=not supported)
    slurm.traits = replace(slurm.traits, supports_images=supported)

    sync(cluster, slurm)

    assert Cluster.objects.get().runs_images is supported


# attempts


def test_job_runs_when_the_cluster_reports_it(cluster, slurm, sent):
    at = clock.now()
    assert sync(cluster, slurm) == 0
    slurm.start(sent.key, at)

    assert sync(cluster, slurm) == 1

    assert (job().state, job().flags, job().started_at) == (State.RUNNING, [], at)


def test_configuring_on_the_cluster_is_not_running_yet(cluster, slurm, sent):
    slurm.change(sent.key, state=State.RUNNING, started_at=clock.now(), flags=frozenset({Flag.CONFIGURING}))

    sync(cluster, slurm)

    assert job().is_configuring


def test_attempt_not_started_on_its_nodes_is_requeued_for_others(cluster, slurm, sent):
    slurm.change(sent.key, reason="ReqNodeNotAvail")
    submitted = job().submitted_at

    assert sync(cluster, slurm, later=MAX_START_DELAY + MISSING_GRACE) == 1
    assert sync(cluster, slurm, later=MAX_START_DELAY + MISSING_GRACE) == 0
    send_commands_once(cluster, slurm, clock.now())
    slurm.end(sent.key, State.CANCELLED, clock.now())
    sync(cluster, slurm)

    assert slurm.cancelled
    assert (job().state, job().submitted_at, job().requeues) == (State.PENDING, submitted, 0)
    assert "ReqNodeNotAvail" in Event.objects.get(type="job.take_back_requested").why


def test_attempt_on_an_observed_cluster_is_not_requeued(cluster, slurm, sent):
    Cluster.objects.update(mode=ClusterMode.OBSERVE)

    assert sync(cluster, slurm, later=MAX_START_DELAY + MISSING_GRACE) == 0
    assert not Event.objects.filter(type="job.take_back_requested").exists()


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.TIMEOUT, State.OUT_OF_MEMORY])
def test_end_between_two_syncs_is_recorded_completely(cluster, slurm, sent, state):
    at = clock.now()
    slurm.end(sent.key, state, at, started_at=at - timedelta(seconds=9), exit_code=3)

    sync(cluster, slurm)

    assert (job().state, job().exit_code, job().started_at) == (state, 3, at - timedelta(seconds=9))


def test_completing_job_keeps_its_gpus_until_it_has_ended(cluster, slurm, sent):
    slurm.end(sent.key, State.COMPLETED, clock.now(), started_at=clock.now(), flags=frozenset({Flag.COMPLETING}))

    sync(cluster, slurm)

    assert job().state == State.RUNNING
    assert sent.allocations.filter(released_at=None).count() == 2


def test_a_suspended_job_goes_on(cluster, slurm, sent):
    slurm.start(sent.key, clock.now())
    sync(cluster, slurm)
    slurm.change(sent.key, state=State.SUSPENDED)
    sync(cluster, slurm)
    assert job().state == State.SUSPENDED

    slurm.change(sent.key, state=State.RUNNING)
    sync(cluster, slurm)
    assert job().state == State.RUNNING


# listings that lag behind what other processes have seen


def test_attempt_that_ended_is_not_cancelled_because_a_listing_lags(cluster, slurm, sent):
    slurm.start(sent.key, clock.now())
    slurm.lag()
    slurm.end(sent.key, State.FAILED, clock.now(), exit_code=1)
    job_actions.finish(sent, attempt_end.AttemptEnd(state=State.FAILED, at=clock.now(), exit_code=1), author=SYNC)

    sync(cluster, slurm)

    assert slurm.cancelled == []


def test_job_that_still_runs_after_the_end_of_its_attempt_is_cancelled(cluster, slurm, sent):
    slurm.start(sent.key, clock.now())
    job_actions.finish(sent, attempt_end.AttemptEnd(state=State.FAILED, at=clock.now()), author=SYNC)

    sync(cluster, slurm)

    assert slurm.cancelled == [sent.backend_id]


def test_attempt_is_not_missing_because_a_listing_lags(cluster, slurm):
    slurm.lag()
    make.attempt(make.job(gpus_per_node=2))
    send_commands_once(cluster, slurm, clock.now())

    sync(cluster, slurm)

    assert Attempt.objects.get().missing_since is None


def test_attempt_that_runs_is_not_requeued_because_a_listing_lags(cluster, slurm, sent):
    slurm.lag()
    slurm.start(sent.key, clock.now())

    sync(cluster, slurm, later=MAX_START_DELAY + MISSING_GRACE)

    assert not Event.objects.filter(type="job.take_back_requested").exists()
    assert job().flags == []


def test_jobs_are_read_again_once_for_all_doubtful_attempts(cluster, slurm):
    verbs = []
    for gpus in ((0, 1), (2, 3), (4, 5)):
        make.attempt(make.job(gpus_per_node=2), gpus=gpus)
    send_commands_once(cluster, slurm, clock.now())
    slurm.known.clear()
    slurm.before = verbs.append

    sync(cluster, slurm)
    sync(cluster, slurm)

    assert verbs.count("current_jobs") == 1


def test_second_sync_changes_nothing(cluster, slurm, sent):
    slurm.start(sent.key, clock.now())
    sync(cluster, slurm)
    events = sent.events.count()

    assert sync(cluster, slurm) == 0
    assert sent.events.count() == events


def test_attempt_forgotten_by_the_cluster_is_missing_not_failed(cluster, slurm, sent):
    slurm.forget(sent.key)

    sync(cluster, slurm)
    sync(cluster, slurm, later=MISSING_GRACE * 10)

    assert job().is_configuring
    assert Attempt.objects.get().missing_since


def test_an_attempt_that_was_refused_because_it_had_started_before_is_missing(cluster, slurm, sent):
    Attempt.objects.update(log_path="/logs/a.log")
    slurm.end(sent.key, State.FAILED, clock.now(), exit_code=STARTED_BEFORE)

    sync(cluster, slurm)

    assert job().is_configuring
    assert Attempt.objects.get().missing_since


def test_running_job_counts_before_its_rejected_repetition(cluster, slurm, sent):
    Attempt.objects.update(log_path="/logs/a.log", backend_id="2")
    slurm.start(sent.key, clock.now())
    slurm.submit(slurm.sent[0])
    slurm.known["2"] = replace(slurm.known["2"], state=State.FAILED, exit_code=STARTED_BEFORE, ended_at=clock.now())

    sync(cluster, slurm)

    assert Attempt.objects.get().backend_id == "1"
    assert job().state == State.RUNNING
    assert slurm.cancelled == []


def test_attempt_that_reappears_in_time_is_no_longer_missing(cluster, slurm, sent):
    known = dict(slurm.known)
    slurm.forget(sent.key)
    sync(cluster, slurm)
    slurm.known = known

    sync(cluster, slurm, later=MISSING_GRACE * 2)

    assert job().is_configuring
    assert Attempt.objects.get().missing_since is None


def test_attempt_that_was_not_submitted_is_not_missing(cluster, slurm):
    make.attempt()

    sync(cluster, slurm, later=MISSING_GRACE * 10)

    assert job().is_configuring
    assert Attempt.objects.get().missing_since is None


def test_unreachable_cluster_ends_no_attempt(cluster, slurm, sent):
    slurm.before = failing(ClusterUnreachable("gone"), "jobs")

    with pytest.raises(ClusterUnreachable):
        sync(cluster, slurm, later=MISSING_GRACE * 10)

    assert job().is_configuring


def test_submission_with_a_lost_response_is_recognized_by_its_key(cluster, slurm, sent):
    Attempt.objects.update(backend_id="")

    sync(cluster, slurm)

    assert Attempt.objects.get().backend_id == "1"


def test_a_job_that_runs_twice_is_cancelled_once(cluster, slurm, sent):
    slurm.submit(slurm.sent[0])

    sync(cluster, slurm)

    assert slurm.cancelled == ["2"]


def test_job_of_an_ended_attempt_is_cancelled(cluster, slurm, sent):
    slurm.start(sent.key, clock.now())
    job_actions.finish(sent, attempt_end.AttemptEnd(state=State.NODE_FAIL, at=clock.now()), author=make.author())

    sync(cluster, slurm)

    assert slurm.cancelled == ["1"]


def test_nothing_is_cancelled_on_an_observed_cluster(cluster, slurm, sent):
    slurm.submit(slurm.sent[0])
    Cluster.objects.update(mode="observe")

    sync(cluster, slurm)

    assert slurm.cancelled == []


def test_job_with_an_unknown_key_is_not_cancelled(cluster, slurm):
    slurm.foreign(gpus={"seren-001": (0, 1)})
    slurm.known["7"] = make_seen(key="01zzzzzzzzz.1")

    sync(cluster, slurm)

    assert slurm.cancelled == []


def make_seen(key):
    from jobs.core.backend_job import BackendJob

    return BackendJob(backend_id="7", key=key, name="x", user="y", state=State.RUNNING)


def test_gpu_indices_of_the_cluster_are_recorded(cluster, slurm, sent):
    slurm.start(sent.key, clock.now())
    slurm.change(sent.key, gpus={"seren-001": (6, 7)})

    sync(cluster, slurm)

    assert list(sent.allocations.values_list("gpu", flat=True)) == [6, 7]


def test_attempt_that_has_not_started_gives_way_to_the_one_that_has_its_gpus(cluster, slurm):
    one, two = (make.attempt(make.job(gpus_per_node=1), gpus=(index,)) for index in (0, 1))
    send_commands_once(cluster, slurm, clock.now())
    slurm.change(one.key, state=State.RUNNING, started_at=clock.now(), gpus={"seren-001": (1,)})

    sync(cluster, slurm)

    assert (one.allocations.get().gpu, two.allocations.get().gpu) == (1, 0)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"4": "acme-jobs/a-0", "5": "acme-jobs/a-0"}, [4, 5]),
        ({"4": "acme-jobs/a-0", "5": "research/other"}, [0, 1]),  # telemetry is behind: only the number is known
        ({}, [0, 1]),
    ],
)
def test_gpu_indices_come_from_the_labels_of_telemetry(cluster, slurm, sent, labels, expected):
    node = sent.allocations.first().node
    Node.objects.filter(pk=node.pk).update(gpu_pods=labels)
    slurm.change(
        sent.key,
        state=State.RUNNING,
        started_at=clock.now(),
        gpu_counts={node.name: 2},
        pods={node.name: ("acme-jobs/a-0",)},
    )

    sync(cluster, slurm)

    assert sorted(sent.allocations.values_list("gpu", flat=True)) == expected


def test_one_row_that_fails_does_not_stop_the_others(cluster, slurm):
    bad = make.attempt(make.job(gpus_per_node=1), gpus=(0,))
    good = make.attempt(make.job(gpus_per_node=1), gpus=(1,))
    send_commands_once(cluster, slurm, clock.now())
    Job.objects.filter(pk=bad.job_id).update(state=State.CANCELLED)  # as no verb would leave it
    for attempt in (bad, good):
        slurm.end(attempt.key, State.COMPLETED, clock.now(), started_at=clock.now())

    sync(cluster, slurm)

    assert Job.objects.get(pk=good.job_id).state == State.COMPLETED
    assert Job.objects.get(pk=bad.job_id).state == State.CANCELLED


# nodes


def test_new_nodes_are_created_with_their_topology(cluster, slurm):
    slurm.machines["new"] = BackendNode(
        name="new", state=NodeState.IDLE, gpus=4, gpu_model="h200", features=("rack-r09", "leaf-l3", "nic-hdr200x4")
    )

    sync(cluster, slurm)

    node = Node.objects.get(name="new")
    assert (node.rack, node.leaf, node.nic_type, node.nic_count, node.gpus) == ("r09", "l3", "hdr200", 4, 4)


def test_a_node_that_moves_leaves_an_event(cluster, slurm):
    sync(cluster, slurm)
    slurm.machines["seren-001"] = BackendNode(name="seren-001", state=NodeState.DOWN, gpus=8, reason="not responding")

    sync(cluster, slurm)

    event = Node.objects.get(name="seren-001").events.get()
    assert (event.from_state, event.to_state, event.why) == ("UP", "DOWN", "not responding")


def test_allocation_states_of_a_node_write_no_event(cluster, slurm):
    sync(cluster, slurm)
    slurm.machines["seren-001"] = BackendNode(name="seren-001", state=NodeState.ALLOCATED, gpus=8)

    sync(cluster, slurm)

    node = Node.objects.get(name="seren-001")
    assert (node.state, node.events.count()) == ("ALLOCATED", 0)


def test_unreported_node_accepts_no_jobs(cluster, slurm):
    del slurm.machines["seren-004"]

    sync(cluster, slurm)

    assert not Node.objects.get(name="seren-004").is_schedulable


def test_pending_drain_is_not_undone_by_an_old_report(cluster, slurm):
    node_actions.drain(Node.objects.first(), author=make.author(), why="loose cable", now=clock.now())

    sync(cluster, slurm)

    node = Node.objects.first()
    assert (node.badge.label, node.reason, node.reason_by) == ("DRAINED", "loose cable", "ada")


def test_a_drain_by_others_is_respected(cluster, slurm):
    slurm.machines["seren-001"] = BackendNode(
        name="seren-001", state=NodeState.IDLE, gpus=8, flags=frozenset({NodeFlag.DRAIN}), reason="bad fan"
    )

    sync(cluster, slurm)

    node = Node.objects.get(name="seren-001")
    assert (node.is_schedulable, node.reason, node.reason_by) == (False, "bad fan", "cluster seren")


def test_gpus_of_foreign_jobs_are_known(cluster, slurm):
    slurm.foreign(gpus={"seren-002": (3, 1)})

    sync(cluster, slurm)

    assert Node.objects.get(name="seren-002").foreign_gpus == [1, 3]


def test_version_of_a_reachable_cluster_is_recorded(cluster, slurm):
    sync(cluster, slurm)

    row = Cluster.objects.get()
    assert (row.product, row.api) == ("slurm 23.11.4", "v0.0.40")


def test_sync_without_changes_writes_no_node(cluster, slurm, django_assert_max_num_queries):
    sync(cluster, slurm)
    with django_assert_max_num_queries(11):
        sync_cluster_once(Cluster.objects.get(), slurm, clock.now())


def test_no_command_stays_open(cluster, slurm, sent):
    sync(cluster, slurm)

    assert not ClusterCommand.objects.open().exists()
