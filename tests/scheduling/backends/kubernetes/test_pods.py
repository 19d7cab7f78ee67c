"""How pods ended, and why they wait."""

from datetime import UTC, datetime

import pytest

from acmeweb.common.errors import MalformedResponse
from jobs.core.lifecycle import State
from scheduling.backends.kubernetes.ownership import OwnerMapping
from scheduling.backends.kubernetes.pods import read_pod
from tests.scheduling.backends.kubernetes.objects import FINISHED, condition, ended_pod, pod

DELETED = {"deletionTimestamp": "2026-03-01T11:00:00Z", "deletionGracePeriodSeconds": 30}


def read(item):
    return read_pod(item, OwnerMapping())


def disrupted(reason):
    return {"conditions": [condition("DisruptionTarget", reason=reason, message="why")]}


@pytest.mark.parametrize(
    ("item", "state", "exit_code", "reason"),
    [
        (ended_pod(exit_code=0, phase="Succeeded"), State.COMPLETED, 0, ""),
        (ended_pod(exit_code=3), State.FAILED, 3, ""),
        (ended_pod(exit_code=137, reason="OOMKilled"), State.OUT_OF_MEMORY, 137, "OOMKilled"),
        (
            ended_pod(exit_code=127, reason="ContainerCannotRun"),
            State.FAILED,
            127,
            "ContainerCannotRun",
        ),
        (
            ended_pod(status={"reason": "Evicted", "message": "low on resource: memory"}),
            State.NODE_FAIL,
            1,
            "Evicted: low on resource: memory",
        ),
        (ended_pod(status={"reason": "DeadlineExceeded"}), State.TIMEOUT, 1, "DeadlineExceeded"),
        (
            pod(on="n1", phase="Failed", status={"reason": "OutOfnvidia.com/gpu"}),
            State.BOOT_FAIL,
            None,
            "OutOfnvidia.com/gpu",
        ),
        (ended_pod(status=disrupted("PreemptionByScheduler")), State.PREEMPTED, 1, "PreemptionByScheduler: why"),
        (ended_pod(status=disrupted("DeletionByTaintManager")), State.NODE_FAIL, 1, "DeletionByTaintManager: why"),
        (ended_pod(exit_code=143, **DELETED), State.CANCELLED, 143, "deleted"),
        (
            ended_pod(exit_code=1, **{**DELETED, "deletionTimestamp": "2026-03-02T00:00:00Z"}),
            State.FAILED,
            1,
            "",
        ),
    ],
    ids=[
        *("completed", "failed", "out of memory", "cannot run", "evicted", "deadline", "rejected", "preempted"),
        *("node lost", "deleted", "deleted after its end"),
    ],
)
def test_end_of_a_pod_follows_from_its_status(item, state, exit_code, reason):
    end = read(item).end

    assert (end.state, end.exit_code, end.reason) == (state, exit_code, reason)


def overdue_pod(started):
    """A kubelet of 1.20 reports that the pod has failed, and its main container as running."""
    status = {"phase": "Failed", "reason": "DeadlineExceeded", "startTime": started}
    item = pod(on="n1", status=status)
    item["spec"]["activeDeadlineSeconds"] = 60
    return item


@pytest.mark.parametrize(
    "init", [[], [{"state": {"terminated": {"exitCode": 0, "finishedAt": "2026-03-01T10:00:04Z"}}}]]
)
def test_pod_over_its_time_limit_ended_when_it_reached_it(init):
    item = overdue_pod("2026-03-01T10:00:00Z")
    item["status"]["initContainerStatuses"] = init

    end = read(item).end

    assert (end.state, end.at) == (State.TIMEOUT, datetime(2026, 3, 1, 10, 1, tzinfo=UTC))


def test_time_limit_after_the_last_date_can_be_read():
    assert read(overdue_pod("9999-12-31T23:59:59Z")).end.at == datetime.max.replace(tzinfo=UTC)


def test_exit_code_is_that_of_the_container_that_failed_first():
    item = ended_pod(exit_code=1)
    sidecar = {"exitCode": 143, "finishedAt": "2026-03-01T11:00:09Z"}
    item["status"]["containerStatuses"].insert(0, {"name": "proxy", "state": {"terminated": sidecar}})

    assert read(item).end.exit_code == 1


@pytest.mark.parametrize(
    ("item", "waits"),
    [
        (
            pod(
                status={
                    "conditions": [
                        condition(
                            "PodScheduled", "False", reason="Unschedulable", message="0/4 nodes: 4 Insufficient gpu"
                        )
                    ]
                }
            ),
            "Unschedulable: 0/4 nodes: 4 Insufficient gpu",
        ),
        (
            pod(on="n1", phase="Pending", waiting={"reason": "ImagePullBackOff", "message": "no image"}),
            "ImagePullBackOff: no image",
        ),
        (pod(on="n1", phase="Pending", waiting={"reason": "ContainerCreating"}), ""),
        (pod(), ""),
    ],
    ids=["unschedulable", "image", "starting", "new"],
)
def test_pod_says_why_it_waits(item, waits):
    assert read(item).waits == waits


@pytest.mark.parametrize("field", ["uid", "name", "namespace"])
def test_pod_without_an_identity_cannot_be_read(field):
    item = pod()
    del item["metadata"][field]

    with pytest.raises(MalformedResponse, match=f"metadata.{field} is missing"):
        read(item)


@pytest.mark.parametrize("junk", [None, 5, "text", [], [None, 5], {"containers": 3}])
def test_malformed_parts_of_a_pod_are_ignored(junk):
    metadata = {"uid": "u", "name": "p", "namespace": "n", "ownerReferences": junk, "labels": junk}

    seen = read({"metadata": metadata, "spec": junk, "status": junk})

    assert (seen.gpus, seen.end, seen.controller) == (0, None, None)


def test_end_has_the_time_of_the_last_container():
    assert read(ended_pod()).end.at.isoformat().startswith(FINISHED[:19])
