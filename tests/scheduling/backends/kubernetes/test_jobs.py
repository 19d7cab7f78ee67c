"""One job for each top-level owner of pods with GPUs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from jobs.core.lifecycle import Flag, State
from scheduling.backends.kubernetes.groups import GroupCache
from scheduling.backends.kubernetes.jobs import group_job
from scheduling.backends.kubernetes.ownership import OwnerMapping
from scheduling.backends.kubernetes.pods import read_pod
from scheduling.backends.kubernetes.workloads import read_quota_wait, read_workload
from tests.scheduling.backends.kubernetes.objects import (
    condition,
    ended_pod,
    finished,
    metadata,
    pod,
    template,
    workload,
)

LATER = datetime(2026, 3, 1, 12, tzinfo=UTC)
OWNERS = OwnerMapping()


def listed(*items, gone=(), waits=None, lost=()):
    """The jobs by name. `gone` are names of objects that were deleted."""
    pods = [read_pod(item, OWNERS) for item in items if item["kind"] == "Pod"]
    parts = [
        read_workload(item, item["kind"], "/apis/group/v1/kinds", OWNERS) for item in items if item["kind"] != "Pod"
    ]
    pods = [replace(part, gone_at=LATER) if part.name in gone else part for part in pods]
    parts = [replace(part, gone_at=LATER) if part.name in gone else part for part in parts]
    workloads = {part.uid: part for part in parts}
    groups = GroupCache()
    groups.update({pod.uid: pod for pod in pods}, workloads, None)
    jobs = [group_job(group, workloads, waits or {}, frozenset(lost)) for group in groups.listed.values()]
    return {job.name: job for job in jobs}


def only(*items, **more):
    (job,) = listed(*items, **more).values()
    return job


# --- which objects are jobs


def test_bare_pod_with_gpus_is_a_job():
    job = only(pod("p1", on="n1", gpus=2))

    assert (job.name, job.state, job.nodes) == ("research/pod/p1", State.RUNNING, ("n1",))
    assert (job.gpu_counts, job.gpus_per_node, job.gpus) == ({"n1": 2}, 2, {})


def test_objects_without_gpus_are_not_jobs():
    deployment = workload("Deployment", "web", gpus=0)

    assert listed(pod("p1", on="n1", gpus=0), pod("p2", on="n1", gpus=0, controller=deployment), deployment) == {}


def test_pods_of_one_owner_are_one_job():
    job = workload("PyTorchJob", "llama")

    seen = only(job, *(pod(f"w{i}", on=f"n{i}", controller=job) for i in range(3)))

    assert (seen.name, seen.nodes, seen.backend_id) == ("research/pytorchjob/llama", ("n0", "n1", "n2"), "uid-llama")
    assert (seen.gpu_counts, seen.user, seen.account) == ({"n0": 8, "n1": 8, "n2": 8}, "research", "research")


def test_two_pods_on_one_node_hold_their_gpus_together():
    job = workload()

    seen = only(job, *(pod(f"w{i}", on="n1", gpus=4, controller=job) for i in range(2)))

    assert (seen.gpu_counts, seen.gpus_per_node) == ({"n1": 8}, 8)


@pytest.mark.parametrize(
    ("kinds", "top"),
    [
        (["Deployment", "ReplicaSet"], "deployment"),
        (["TrainJob", "JobSet", "Job"], "trainjob"),
        (["RayJob", "RayCluster"], "rayjob"),
        (["MPIJob", "Job"], "mpijob"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else value,
)
def test_job_is_the_top_level_owner(kinds, top):
    chain: list[dict] = []
    for kind in kinds:
        chain.append(workload(kind, kind.lower(), controller=chain[-1] if chain else None))

    assert list(listed(*chain, pod(on="n1", controller=chain[-1]))) == [f"research/{top}/{top}"]


def test_owner_that_is_not_listed_is_known_by_its_reference():
    wrapper = workload("AppWrapper", "wrapped")
    job = workload("PyTorchJob", "llama", controller=wrapper)

    seen = only(job, pod(on="n1", controller=job))

    assert (seen.name, seen.backend_id, seen.state) == ("research/appwrapper/wrapped", "uid-wrapped", State.RUNNING)


def test_jobs_of_a_cronjob_are_jobs_of_their_own():
    cron = workload("CronJob", "nightly")

    names = listed(*(workload("Job", f"nightly-{i}", controller=cron) for i in range(2)))

    assert set(names) == {"research/job/nightly-0", "research/job/nightly-1"}


def test_static_pod_of_a_node_is_a_job_of_its_own():
    owner = {"kind": "Node", "metadata": metadata("n1")}

    assert list(listed(pod("p1", on="n1", controller=owner))) == ["research/pod/p1"]


def test_owners_in_a_circle_end_somewhere():
    first, second = workload("Job", "a"), workload("Job", "b")
    first["metadata"] = metadata("a", controller=second)
    second["metadata"] = metadata("b", controller=first)

    assert len(listed(first, second, pod(on="n1", controller=first))) >= 1


# --- states


def test_job_without_pods_is_pending_with_what_it_requests():
    seen = only(workload(gpus=4))

    assert (seen.state, seen.gpus_per_node, seen.nodes, seen.started_at) == (State.PENDING, 4, (), None)


def test_suspended_job_is_held():
    seen = only(workload(spec={"suspend": True}))

    assert (seen.state, seen.held, seen.reason) == (State.PENDING, True, "suspended")


def test_suspended_training_job_is_held():
    assert only(workload("PyTorchJob", spec={"runPolicy": {"suspend": True}})).held


def test_kueue_explains_why_a_job_waits():
    job = workload(spec={"suspend": True})
    reference = [{"uid": "uid-train", "kind": "Job", "name": "train"}]
    item = {
        "metadata": {**metadata("w1"), "ownerReferences": reference},
        "spec": {"queueName": "nlp"},
        "status": {"conditions": [condition("QuotaReserved", "False", message="insufficient unused quota")]},
    }
    wait = read_quota_wait(item)

    seen = only(job, waits=dict.fromkeys(wait.for_uids, wait.reason))

    assert seen.reason == "waits for quota of queue nlp: insufficient unused quota"
    item["status"]["conditions"] = [condition("QuotaReserved"), condition("Admitted")]
    assert read_quota_wait(item).reason == ""


def test_job_whose_pods_only_start_is_configuring():
    job = workload()

    seen = only(job, pod(on="n1", phase="Pending", controller=job))

    assert (seen.state, seen.flags) == (State.RUNNING, {Flag.CONFIGURING})


def test_gang_runs_as_soon_as_one_of_its_pods_holds_a_node():
    job = workload()

    seen = only(job, pod("w0", on="n1", controller=job), pod("w1", controller=job))

    assert (seen.state, seen.nodes) == (State.RUNNING, ("n1",))


@pytest.mark.parametrize(
    ("kind", "status", "state"),
    [
        ("Job", finished("Complete"), State.COMPLETED),
        ("Job", finished("Failed", reason="BackoffLimitExceeded"), State.FAILED),
        ("Job", finished("Failed", reason="DeadlineExceeded"), State.TIMEOUT),
        ("JobSet", finished("Completed"), State.COMPLETED),
        ("PyTorchJob", finished("Succeeded"), State.COMPLETED),
        ("PyTorchJob", {"conditions": [condition("Failed", "False"), condition("Running")]}, State.PENDING),
        ("RayJob", {"jobStatus": "SUCCEEDED"}, State.COMPLETED),
        ("RayJob", {"jobStatus": "STOPPED"}, State.CANCELLED),
        ("Job", {"state": {"phase": "Aborted"}}, State.CANCELLED),
        ("Job", {"state": {"phase": "Running"}}, State.PENDING),
    ],
    ids=[
        *("Job complete", "Job failed", "Job deadline", "JobSet", "PyTorchJob", "PyTorchJob running", "RayJob"),
        *("RayJob stopped", "Volcano aborted", "Volcano running"),
    ],
)
def test_end_of_a_job_follows_from_the_status_of_its_owner(kind, status, state):
    assert only(workload(kind, status=status)).state == state


def test_failed_job_has_the_cause_from_its_pods():
    job = workload(status=finished("Failed", reason="BackoffLimitExceeded", message="too many"))
    oom = ended_pod("w1", exit_code=137, reason="OOMKilled", controller=job)

    seen = only(job, ended_pod("w0", exit_code=1, controller=job), oom, gone=["w1"])

    assert (seen.state, seen.exit_code) == (State.OUT_OF_MEMORY, 137)
    assert seen.reason == "BackoffLimitExceeded: too many; w1: OOMKilled"
    assert (seen.nodes, seen.gpu_counts) == (("n1",), {})


def test_ended_job_with_pods_that_still_stop_is_completing():
    job = workload(status=finished("Complete"))

    assert only(job, pod(on="n1", controller=job)).flags == {Flag.COMPLETING}


def test_failed_pod_does_not_end_a_job_that_tries_again():
    job = workload()

    assert only(job, ended_pod("w0", controller=job)).state == State.PENDING
    assert only(job, ended_pod("w0", controller=job), pod("w1", on="n1", controller=job)).state == State.RUNNING


def test_deleted_job_is_cancelled():
    job = workload()

    seen = only(job, pod(on="n1", controller=job), gone=["train", "p1"])

    assert (seen.state, seen.reason, seen.ended_at) == (State.CANCELLED, "deleted", LATER)


def test_job_deleted_after_its_end_keeps_its_end():
    seen = only(workload(status=finished("Complete")), gone=["train"])

    assert seen.state == State.COMPLETED


@pytest.mark.parametrize(("lost", "state"), [((), State.CANCELLED), (("n1",), State.NODE_FAIL)], ids=["up", "lost"])
def test_deleted_pod_failed_with_its_node_if_that_was_lost(lost, state):
    assert only(pod(on="n1"), gone=["p1"], lost=lost).state == state


def test_job_of_an_owner_that_is_not_listed_ends_with_its_pods():
    wrapper = workload("AppWrapper", "wrapped")
    failed = ended_pod("w0", exit_code=9, controller=wrapper)

    assert only(failed, pod("w1", on="n2", controller=wrapper)).state == State.RUNNING
    seen = only(failed, ended_pod("w1", exit_code=0, phase="Succeeded", controller=wrapper))
    assert (seen.state, seen.exit_code) == (State.FAILED, 9)


def test_deployment_scaled_to_zero_is_pending_not_ended():
    deployment = workload("Deployment", "serve")

    assert only(deployment, pod(on="n1", controller=deployment), gone=["p1"]).state == State.PENDING


def test_time_limit_and_requests_are_read_wherever_the_spec_has_them():
    spec = {
        "template": None,
        "runPolicy": {"activeDeadlineSeconds": 3600},
        "pytorchReplicaSpecs": {
            "Master": {"template": {"spec": template(2)}},
            "Worker": {"template": {"spec": template(8)}},
        },
    }

    seen = only(workload("PyTorchJob", spec=spec))

    assert (seen.time_limit, seen.gpus_per_node) == (timedelta(hours=1), 8)


def test_keys_of_acme_are_reported():
    labels = {"acme/attempt": "0vspk5.1", "acme/installation": "prod"}

    seen = only(workload(labels=labels))

    assert (seen.key, seen.installation) == ("0vspk5.1", "prod")


def test_absurd_numbers_are_limited_to_what_the_database_stores():
    job = workload()
    item = pod("w0", on="n1", gpus=4096, controller=job)
    item["spec"]["containers"][0]["resources"]["requests"] |= {"cpu": "1e99", "memory": "9E"}

    seen = only(job, item, pod("w1", on="n1", gpus=4096, controller=job))

    assert (seen.gpu_counts, seen.cpus, seen.memory_per_node_mb) == ({"n1": 4096}, 2**31 - 1, 9 * 10**18 // 2**20)
