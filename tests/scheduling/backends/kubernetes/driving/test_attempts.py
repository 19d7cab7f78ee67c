"""Attempts of Acme: how they end, and what their next steps are."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from jobs.core.lifecycle import FINAL_STATES, Flag, State
from scheduling.backends.kubernetes.driving.admission import (
    Admit,
    CreatePods,
    DeleteOwner,
    DeletePods,
    Place,
    RecordEnd,
    next_steps,
    obstacles,
)
from scheduling.backends.kubernetes.driving.capacity import FreeCapacity, PodRequests, requests_of_live
from scheduling.backends.kubernetes.driving.driver import AttemptIndex
from scheduling.backends.kubernetes.ends import PodEnd
from scheduling.backends.kubernetes.groups import GroupCache
from scheduling.backends.kubernetes.jobs import JobCache, group_job
from scheduling.backends.kubernetes.nodes import read_node
from scheduling.backends.kubernetes.ownership import INSTALLATION_LABEL, KEY_LABEL, OwnerMapping
from scheduling.backends.kubernetes.plans import end_annotation
from scheduling.backends.kubernetes.pod_objects import FAILS_IF_STOPPED_ANNOTATION
from scheduling.backends.kubernetes.pods import read_pod
from scheduling.backends.kubernetes.workloads import read_workload
from tests.scheduling.backends.kubernetes.objects import condition, ended_pod, finished, metadata, node, pod, workload

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
OWNERS = OwnerMapping()
LABELS = {KEY_LABEL: "k1.1", INSTALLATION_LABEL: "i1"}
CONFIG_MAPS = "/api/v1/namespaces/research/configmaps"
NODES = {name: read_node(node(name)) for name in ("n1", "n2", "n3")}
DELETING = {"deletionTimestamp": "2026-03-01T11:00:00Z", "deletionGracePeriodSeconds": 30}


def owner(nodes=("n1", "n2"), admitted=(), ended="", kind="ConfigMap", **more):
    annotations = {
        "acme/nodes": json.dumps(nodes),
        "acme/admitted": json.dumps(admitted) if admitted else "",
        "acme/ended": ended,
    }
    if kind == "ConfigMap":
        return {"kind": kind, "metadata": metadata("acme-k1-1", labels=LABELS, annotations=annotations, **more)}
    return workload(kind, "acme-k1-1", labels=LABELS, annotations=annotations, **more)


def rank(number, top, make=pod, **more):
    return make(f"acme-k1-1-{number}", controller=top, labels=LABELS, **more)


def succeeded(number, top):
    more = {"annotations": {FAILS_IF_STOPPED_ANNOTATION: "true"}, "exit_code": 0, "phase": "Succeeded"}
    return rank(number, top, ended_pod, on=f"n{number + 1}", **more)


class Seen:
    """What the caches contain. `gone` are names of deleted objects."""

    def __init__(self, *items, gone=()):
        pods = [read_pod(item, OWNERS) for item in items if item["kind"] == "Pod"]
        parts = [read_workload(item, item["kind"], CONFIG_MAPS, OWNERS) for item in items if item["kind"] != "Pod"]
        self.pods = [replace(one, gone_at=NOW) if one.name in gone else one for one in pods]
        self.parts = {part.uid: replace(part, gone_at=NOW) if part.name in gone else part for part in parts}
        self.cache = GroupCache()
        self.cache.update({pod.uid: pod for pod in self.pods}, self.parts, None)
        self.groups = self.cache.listed

    def job(self, lost=(), late=()):
        (group,) = self.groups.values()
        return group_job(group, self.parts, {}, frozenset(lost), frozenset(late))

    @property
    def attempts(self):
        return [group.attempt for group in self.groups.values() if group.attempt]

    def steps(self, nodes=NODES, lost=(), now=NOW):
        return next_steps(self.attempts, self.free(nodes), lost, (), now)

    def free(self, nodes=NODES):
        return FreeCapacity(
            nodes, {name: requests_of_live(pod for pod in self.pods if pod.node == name) for name in nodes}
        )

    def step(self, **more):
        (step,) = self.steps(**more)
        return step


ADMITTED = owner(admitted=("uid-acme-k1-1-0", "uid-acme-k1-1-1"))


# --- state


def test_gang_that_is_not_admitted_is_pending():
    top = owner()

    job = Seen(top, rank(0, top), rank(1, top)).job()

    assert (job.state, job.nodes, job.key, job.installation) == (State.PENDING, (), "k1.1", "i1")
    assert (job.backend_id, job.started_at) == (top["metadata"]["uid"], None)


def test_gang_has_started_when_all_its_pods_have():
    starting = Seen(ADMITTED, rank(0, ADMITTED, on="n1"), rank(1, ADMITTED, on="n2", phase="Pending")).job()
    running = Seen(ADMITTED, rank(0, ADMITTED, on="n1"), rank(1, ADMITTED, on="n2")).job()

    assert (starting.state, starting.flags) == (State.RUNNING, {Flag.CONFIGURING})
    assert (running.state, running.flags, running.nodes) == (State.RUNNING, frozenset(), ("n1", "n2"))


def test_gang_without_gpus_is_a_job_too():
    job = Seen(ADMITTED, rank(0, ADMITTED, on="n1", gpus=0), rank(1, ADMITTED, on="n2", gpus=0)).job()

    assert (job.state, job.gpu_counts) == (State.RUNNING, {})


def test_gang_keeps_its_nodes_while_some_of_its_pods_have_succeeded():
    job = Seen(ADMITTED, rank(0, ADMITTED, ended_pod, exit_code=0, phase="Succeeded"), rank(1, ADMITTED, on="n2")).job()

    assert (job.state, job.flags, job.nodes) == (State.RUNNING, frozenset(), ("n1", "n2"))


def test_gang_whose_pods_all_succeeded_is_completed():
    pods = [rank(i, ADMITTED, ended_pod, on=f"n{i + 1}", exit_code=0, phase="Succeeded") for i in (0, 1)]

    job = Seen(ADMITTED, *pods).job()

    assert (job.state, job.exit_code, job.flags) == (State.COMPLETED, 0, frozenset())


def test_first_failed_pod_ends_the_gang_while_the_others_still_run():
    job = Seen(ADMITTED, rank(0, ADMITTED, ended_pod, exit_code=3), rank(1, ADMITTED, on="n2")).job()

    assert (job.state, job.exit_code, job.flags) == (State.FAILED, 3, {Flag.COMPLETING})


def test_deleted_pod_ends_the_gang():
    seen = Seen(ADMITTED, rank(0, ADMITTED, on="n1"), rank(1, ADMITTED, on="n2"), gone=["acme-k1-1-1"])

    assert (seen.job().state, seen.job().flags) == (State.CANCELLED, {Flag.COMPLETING})


def test_pod_that_nobody_has_seen_ends_the_gang_unless_it_exists():
    seen = Seen(ADMITTED, rank(0, ADMITTED, on="n1"))

    assert (seen.job().state, seen.job(late=["uid-acme-k1-1-1"]).state) == (State.CANCELLED, State.RUNNING)
    assert seen.job(lost=["n2"]).state == State.NODE_FAIL


def test_pod_to_be_deleted_on_a_silent_node_is_lost_with_it():
    leaving = rank(1, ADMITTED, on="n2", **DELETING)
    seen = Seen(ADMITTED, rank(0, ADMITTED, on="n1"), leaving)

    assert seen.job().state == State.RUNNING
    assert (seen.job(lost=["n2"]).state, seen.job(lost=["n2"]).flags) == (State.NODE_FAIL, {Flag.COMPLETING})
    alone = Seen(ADMITTED, rank(0, ADMITTED, ended_pod, on="n1", exit_code=143), leaving)
    assert alone.job(lost=["n2"]).flags == frozenset()


def test_silent_node_alone_does_not_end_a_gang():
    assert (
        Seen(ADMITTED, rank(0, ADMITTED, on="n1"), rank(1, ADMITTED, on="n2")).job(lost=["n2"]).state == State.RUNNING
    )


def test_recorded_end_counts_whatever_the_pods_say():
    end = end_annotation(PodEnd(state=State.NODE_FAIL, at=NOW, exit_code=9, reason="node n2 does not respond"), NOW)
    top = owner(admitted=("uid-acme-k1-1-0", "uid-acme-k1-1-1"), ended=end)

    job = Seen(top, rank(0, top, ended_pod, on="n1", exit_code=143)).job()

    assert (job.state, job.exit_code, job.ended_at, job.flags) == (State.NODE_FAIL, 9, NOW, frozenset())
    assert job.reason == "node n2 does not respond"


def test_attempt_that_succeeded_before_a_stop_reached_its_pods_is_completed():
    stop = end_annotation(PodEnd(state=State.PREEMPTED, at=NOW), NOW)
    top = owner(admitted=("uid-acme-k1-1-0", "uid-acme-k1-1-1"), ended=stop)
    done = [succeeded(i, top) for i in (0, 1)]
    stopped = rank(1, top, ended_pod, on="n2", exit_code=143)
    of_older_version = [rank(i, top, ended_pod, on=f"n{i + 1}", exit_code=0, phase="Succeeded") for i in (0, 1)]

    completed, preempted = Seen(top, *done).job(), Seen(top, done[0], stopped).job()

    assert (completed.state, completed.exit_code) == (State.COMPLETED, 0)
    assert (preempted.state, preempted.exit_code) == (State.PREEMPTED, None)
    assert Seen(top, *of_older_version).job().state == State.PREEMPTED  # they may have saved and ended with 0


def test_record_of_a_stop_that_came_too_late_is_corrected_before_the_pods_are_gone():
    top = owner(
        admitted=("uid-acme-k1-1-0",), nodes=("n1",), ended=end_annotation(PodEnd(state=State.PREEMPTED, at=NOW), NOW)
    )
    corrected = owner(
        admitted=("uid-acme-k1-1-0",), nodes=("n1",), ended=end_annotation(PodEnd(state=State.COMPLETED, at=NOW), NOW)
    )

    step = Seen(top, succeeded(0, top)).step()

    assert isinstance(step, RecordEnd) and step.end.state == State.COMPLETED
    assert Seen(corrected, succeeded(0, corrected)).steps() == []
    assert Seen(corrected).job().state == State.COMPLETED


def test_success_without_times_has_the_time_of_its_record():
    top = owner(
        admitted=("uid-acme-k1-1-0",), nodes=("n1",), ended=end_annotation(PodEnd(state=State.PREEMPTED, at=NOW), NOW)
    )
    silent = succeeded(0, top)
    del silent["status"]["containerStatuses"]

    assert Seen(top, silent).job().ended_at == NOW


def test_job_that_failed_because_others_deleted_its_pods_is_completed_if_they_had_succeeded():
    failed = finished("Failed", reason="BackoffLimitExceeded")
    top = owner(kind="Job", admitted=("uid-acme-k1-1-0",), nodes=("n1",), status=failed)

    job = Seen(top, succeeded(0, top)).job()

    assert (job.state, job.exit_code) == (State.COMPLETED, 0)


def test_deleted_owner_is_a_cancellation_unless_its_pods_had_ended():
    cancelled = Seen(ADMITTED, rank(0, ADMITTED, on="n1"), rank(1, ADMITTED, on="n2"), gone=["acme-k1-1"])
    pods = [rank(i, ADMITTED, ended_pod, exit_code=0, phase="Succeeded") for i in (0, 1)]
    completed = Seen(ADMITTED, *pods, gone=["acme-k1-1"])

    assert (cancelled.job().state, completed.job().state) == (State.CANCELLED, State.COMPLETED)


def test_pods_whose_owner_is_not_known_yet_do_not_end():
    top = owner()
    seen = Seen(rank(0, top, ended_pod, exit_code=0, phase="Succeeded"))

    assert seen.job().state == State.RUNNING and not seen.attempts


def test_job_set_has_the_cause_of_its_job():
    top = owner(kind="JobSet", status=finished("Failed", reason="FailedJobs"))
    inner = workload(
        "Job", "acme-k1-1-g-0", controller=top, labels=LABELS, status=finished("Failed", reason="DeadlineExceeded")
    )

    assert Seen(top, inner).job().state == State.TIMEOUT


def test_job_whose_pod_reached_its_time_limit_timed_out():
    top = owner(kind="Job", status=finished("Failed", reason="BackoffLimitExceeded"))
    pod = rank(0, top, ended_pod, phase="Failed", reason="DeadlineExceeded")

    assert Seen(top, pod).job().state == State.TIMEOUT


def test_failed_job_has_the_reason_of_its_pod():
    top = owner(kind="Job", status=finished("Failed", reason="BackoffLimitExceeded"))

    assert Seen(top).job().reason == "BackoffLimitExceeded"
    assert Seen(top, rank(0, top, ended_pod, exit_code=3, phase="Failed")).job().reason == ""


def test_job_set_has_not_ended_before_its_job_says_why():
    top = owner(kind="JobSet", status=finished("Failed", reason="FailedJobs"))
    inner = workload("Job", "acme-k1-1-g-0", controller=top, labels=LABELS)

    assert Seen(top, inner).job().state not in FINAL_STATES
    assert Seen(top).job().state == State.FAILED


def test_annotations_of_others_are_no_plan():
    for nodes in ("{", "[1]", "[]", '"n1"', "[" * 100_000):
        item = {
            "kind": "ConfigMap",
            "metadata": metadata("acme-k1-1", labels=LABELS, annotations={"acme/nodes": nodes}),
        }
        assert Seen(item).attempts == []


# --- next steps


def test_missing_pods_are_created_only_before_the_gang_is_admitted():
    top = owner()

    assert isinstance(Seen(top, rank(0, top)).step(), CreatePods)
    assert isinstance(Seen(ADMITTED, rank(0, ADMITTED, on="n1")).step(), RecordEnd)


def test_controllers_create_the_pods_of_jobs():
    assert Seen(owner(kind="Job")).steps() == []


def test_complete_gang_is_admitted_with_its_pods_in_rank_order():
    top = owner()

    step = Seen(top, rank(1, top), rank(0, top)).step()

    assert isinstance(step, Admit)
    assert [(placed.name, name) for placed, name in step.placements] == [("acme-k1-1-0", "n1"), ("acme-k1-1-1", "n2")]


def test_pods_of_a_job_are_ordered_by_their_index():
    top = owner(kind="Job")
    index = "batch.kubernetes.io/job-completion-index"
    pods = [
        pod(f"acme-k1-1-{i}-{name}", controller=top, labels=LABELS, annotations={index: str(i)})
        for i, name in ((1, "abc"), (0, "xyz"))
    ]

    step = Seen(top, *pods).step()

    assert [placed.name for placed, _ in step.placements] == ["acme-k1-1-0-xyz", "acme-k1-1-1-abc"]


def test_admitted_pods_without_a_node_are_placed():
    step = Seen(ADMITTED, rank(0, ADMITTED, on="n1"), rank(1, ADMITTED)).step()

    assert type(step) is Place and [(one.name, name) for one, name in step.placements] == [("acme-k1-1-1", "n2")]


def test_pod_that_replaces_an_admitted_one_is_never_placed():
    replacement = rank(1, ADMITTED)
    replacement["metadata"]["uid"] = "uid-of-another"

    step = Seen(ADMITTED, rank(0, ADMITTED, on="n1"), replacement).step()

    assert isinstance(step, RecordEnd) and step.end.state == State.CANCELLED


def test_end_is_recorded_before_the_other_pods_are_deleted():
    failed = rank(0, ADMITTED, ended_pod, exit_code=3)

    step = Seen(ADMITTED, failed, rank(1, ADMITTED, on="n2")).step()

    assert isinstance(step, RecordEnd) and (step.end.state, step.end.exit_code) == (State.FAILED, 3)


def test_pods_that_a_recorded_end_left_are_deleted_once():
    top = owner(
        admitted=("uid-acme-k1-1-0", "uid-acme-k1-1-1"), ended='{"state": "CANCELLED", "at": "2026-03-01T11:59:00Z"}'
    )

    step = Seen(top, rank(0, top, on="n1"), rank(1, top, on="n2", **DELETING)).step()

    assert isinstance(step, DeletePods) and [one.name for one in step.pods] == ["acme-k1-1-0"]


def test_owner_is_deleted_a_day_after_the_end():
    top = owner(ended='{"state": "COMPLETED", "at": "2026-03-01T11:59:00Z"}')

    assert Seen(top).steps(now=NOW + timedelta(hours=23)) == []
    assert isinstance(Seen(top).step(now=NOW + timedelta(hours=25)), DeleteOwner)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (node("n2", spec={"unschedulable": True}), "node n2 is not available: cordoned"),
        (node("n2", conditions=[condition("Ready", "Unknown")]), "node n2 is not available: Ready"),
        (node("n2", gpus=4), "node n2 has 4 GPUs free, and the pod requests 8"),
        (None, "node n2 does not exist"),
    ],
    ids=["cordoned", "silent", "small", "gone"],
)
def test_gang_waits_while_one_of_its_nodes_cannot_take_its_pod(changed, why):
    top = owner()
    seen = Seen(top, rank(0, top), rank(1, top))
    nodes = {name: report for name, report in NODES.items() if name != "n2"} | (
        {"n2": read_node(changed)} if changed else {}
    )

    assert seen.steps(nodes=nodes) == []
    assert dict(obstacles(seen.attempts, seen.free(nodes))) == {top["metadata"]["uid"]: why}


def test_pods_of_others_hold_what_they_request():
    top = owner()
    others = pod("other", on="n2", gpus=1)

    assert Seen(top, rank(0, top), rank(1, top), others).steps() == []
    assert Seen(top, rank(0, top), rank(1, top), ended_pod("other", on="n2", gpus=1)).steps() != []


def test_older_attempt_takes_a_node_before_a_younger_one():
    single = {"acme/nodes": '["n1"]', "acme/ended": ""}
    older, younger = (
        pod(name, labels=LABELS, annotations=single, creationTimestamp=at)
        for name, at in (("acme-b", "2026-03-01T10:00:00Z"), ("acme-a", "2026-03-01T10:00:01Z"))
    )

    step = Seen(older, younger).step()

    assert isinstance(step, Admit) and step.attempt.owner.name == "acme-b"


def test_deleting_a_waiting_pod_cancels_its_attempt():
    single = pod("acme-a", labels=LABELS, annotations={"acme/nodes": '["n1"]', "acme/ended": ""})
    seen = Seen(single, gone=["acme-a"])

    assert (seen.job().state, seen.steps()) == (State.CANCELLED, [])


# --- what is kept from one look to the next


def steps_of(index, seen, lost=(), now=NOW):
    """The attempts that a look considers, and their steps."""
    index.update()
    attempts = index.may_need_step(lost, (), now)
    steps = next_steps(attempts, seen.free(), lost, (), now)
    index.note_idle(attempts, steps, lost, ())
    return attempts, steps


def index_of(seen):
    return AttemptIndex(seen.cache, lambda attempt: True)


def test_idle_attempt_is_looked_at_again_when_its_node_is_lost():
    top = owner(nodes=("n1",), admitted=("uid-acme-k1-1-0",))
    seen = Seen(top, rank(0, top, on="n1", **DELETING))
    index = index_of(seen)

    assert steps_of(index, seen) == (list(index.all.values()), [])
    assert steps_of(index, seen) == ([], [])
    _, (end,) = steps_of(index, seen, lost=("n1",))
    assert end.end.state == State.NODE_FAIL


def test_idle_attempt_is_looked_at_again_when_one_of_its_pods_changes():
    top = owner(nodes=("n1",), admitted=("uid-acme-k1-1-0",))
    seen = Seen(top, rank(0, top, on="n1"))
    index = index_of(seen)
    steps_of(index, seen)

    failed = read_pod(rank(0, top, ended_pod, on="n1", exit_code=1), OWNERS)
    seen.cache.update({failed.uid: failed}, seen.parts, {failed.uid})

    _, (step,) = steps_of(index, seen)
    assert (step.end.state, step.end.exit_code) == (State.FAILED, 1)


def test_attempt_that_has_ended_is_looked_at_again_when_it_may_be_deleted():
    end = end_annotation(PodEnd(state=State.CANCELLED, at=NOW), NOW)
    top = owner(ended=end)
    seen = Seen(top)
    index = index_of(seen)

    assert steps_of(index, seen)[1] == []
    assert steps_of(index, seen, now=NOW + timedelta(hours=23)) == ([], [])
    _, (step,) = steps_of(index, seen, now=NOW + timedelta(hours=25))
    assert isinstance(step, DeleteOwner)


def test_attempt_that_waits_for_others_is_looked_at_each_time():
    top = owner(nodes=("n1",))
    seen = Seen(top, rank(0, top), pod("other", on="n1", gpus=8))
    index = index_of(seen)

    assert steps_of(index, seen) == steps_of(index, seen) == (list(index.all.values()), [])
    assert list(index.not_admitted) == list(index.all)


def test_attempt_that_vanished_from_the_cluster_is_forgotten():
    top = owner(nodes=("n1",))
    seen = Seen(top, rank(0, top))
    index = index_of(seen)
    steps_of(index, seen)

    seen.cache.update({}, {}, {"uid-acme-k1-1-0", top["metadata"]["uid"]})

    assert steps_of(index, seen) == ([], [])
    assert (index.all, index.not_admitted) == ({}, {})


def test_pods_that_are_about_to_be_created_take_capacity_only_from_their_own_look():
    seen = Seen(pod("other", on="n1", gpus=5))
    need = PodRequests(gpus=2, cpus=1, memory_mb=1)
    free = seen.free()

    assert free.reserve("n1", need) == ""
    assert "1 GPUs free" in free.reserve("n1", need)
    assert seen.free().reserve("n1", need) == ""


def test_job_is_read_again_when_its_group_or_the_lost_nodes_change():
    running = Seen(ADMITTED, rank(0, ADMITTED, on="n1"), rank(1, ADMITTED, on="n2"))
    failed = Seen(ADMITTED, rank(0, ADMITTED, on="n1", phase="Failed"), rank(1, ADMITTED, on="n2"))
    cache = JobCache()

    def job(seen, lost=frozenset()):
        (found,) = cache.jobs(seen.cache, seen.parts, {}, lost, frozenset())
        return found

    first = job(running)
    assert job(running) is first
    assert job(running, frozenset({"n1"})) is not first
    running.cache.update({one.uid: one for one in failed.pods}, running.parts, {failed.pods[0].uid})
    assert job(running).state == State.FAILED
