"""Jobs: pods, completions, suspension, failures, deadlines, and deletion with their pods."""

from __future__ import annotations

import pytest

from scheduling.simulation.kubernetes.api.requests import MERGE_PATCH
from scheduling.simulation.kubernetes.controllers.jobs import format_indexes, parse_indexes
from scheduling.simulation.kubernetes.objects import annotations_of, condition_of, labels_of

from .make import client, job

JOBS, PODS = "/apis/batch/v1/namespaces/default/jobs", "/api/v1/namespaces/default/pods"
INDEX = "batch.kubernetes.io/job-completion-index"


def create(api, **more):
    api.call("POST", JOBS, job(**more))
    return api


def status(api) -> dict:
    return api.job()["status"]


def final(api) -> tuple[str, str]:
    for kind in ("Complete", "Failed"):
        if found := condition_of(api.job(), kind):
            return kind, found["reason"]
    return "", ""


def test_indexed_job_creates_a_pod_per_index():
    api = create(client(), completions=3, parallelism=3, completionMode="Indexed", gpus=1).after(2)

    pods = api.pods()
    assert [annotations_of(one)[INDEX] for one in pods] == ["0", "1", "2"]
    assert [labels_of(one)[INDEX] for one in pods] == ["0", "1", "2"]
    assert {labels_of(one)["batch.kubernetes.io/job-name"] for one in pods} == {"sweep"}
    assert [one["spec"]["hostname"] for one in pods] == ["sweep-0", "sweep-1", "sweep-2"]
    assert pods[0]["metadata"]["ownerReferences"][0]["uid"] == api.job()["metadata"]["uid"]
    assert pods[0]["spec"]["containers"][0]["env"][-1]["name"] == "JOB_COMPLETION_INDEX"
    assert (status(api)["active"], status(api)["ready"]) == (3, 3)


def test_job_completes_when_all_its_pods_have_succeeded():
    api = create(client(), completions=5, parallelism=2, completionMode="Indexed", gpus=1, seconds=10)

    assert [len(api.after(0).pods()), status(api.after(12))["completedIndexes"]] == [2, "0,1"]
    api.after(40)

    assert (final(api), status(api)["succeeded"], status(api)["completedIndexes"]) == (
        ("Complete", "CompletionsReached"),
        5,
        "0-4",
    )
    assert "active" not in status(api) and status(api)["completionTime"]
    assert all("finalizers" not in one["metadata"] for one in api.pods())


def test_suspended_job_has_no_pods_until_it_is_resumed():
    api = create(client(), suspend=True).after(5)
    assert (api.pods(), condition_of(api.job(), "Suspended")["status"]) == ([], "True")
    assert "startTime" not in status(api)

    api.call("PATCH", f"{JOBS}/sweep", {"spec": {"suspend": False}}, patch_type=MERGE_PATCH)

    assert [one["status"]["phase"] for one in api.after(2).pods()] == ["Running"]
    assert (condition_of(api.job(), "Suspended")["status"], "startTime" in status(api)) == ("False", True)


def test_suspension_deletes_the_pods_and_counts_no_failure():
    api = create(client(), backoffLimit=0).after(5)

    api.call("PATCH", f"{JOBS}/sweep", {"spec": {"suspend": True}}, patch_type=MERGE_PATCH)
    api.after(5)

    assert (api.pods(), final(api), status(api).get("failed", 0)) == ([], ("", ""), 0)


def test_failed_pods_are_replaced_with_growing_delays_until_the_limit():
    api = create(client(), backoffLimit=2, seconds=1, end="FAILED:1")

    assert len(api.after(4).pods()) == 1
    assert len(api.after(10).pods()) == 2
    assert len(api.after(23).pods()) == 3
    assert final(api.after(10)) == ("Failed", "BackoffLimitExceeded")
    assert status(api)["failed"] == 3
    assert len(api.after(1000).pods()) == 3


def test_deleted_pod_counts_as_a_failure_and_is_replaced():
    api = create(client(), backoffLimit=3).after(5)
    first = api.pods()[0]["metadata"]["name"]

    api.call("DELETE", f"{PODS}/{first}")
    api.after(15)

    assert status(api)["failed"] == 1
    assert [one["status"]["phase"] for one in api.pods()] == ["Running"]
    assert api.pods()[0]["metadata"]["name"] != first


def test_deadline_stops_a_job_and_its_pods():
    api = create(client(), activeDeadlineSeconds=30).after(35)

    assert (final(api.after(5)), api.pods()) == (("Failed", "DeadlineExceeded"), [])


def test_job_has_failed_only_when_its_last_pod_is_gone():
    """The pod of a silent node is not gone, so a client must not wait for the final condition alone."""
    api = create(client(), completions=2, parallelism=2, backoffLimit=0, activeDeadlineSeconds=30).after(5)
    node = api.pods()[0]["spec"]["nodeName"]
    api.cluster.set_kubelet(node, False, api.now)

    api.after(60)

    assert (condition_of(api.job(), "FailureTarget")["reason"], final(api)) == ("DeadlineExceeded", ("", ""))
    assert (status(api)["terminating"], len(api.pods())) == (1, 1)
    api.cluster.set_kubelet(node, True, api.now)
    assert final(api.after(5)) == ("Failed", "DeadlineExceeded")


def test_finished_job_is_deleted_after_its_time_to_live():
    api = create(client(), seconds=1, ttlSecondsAfterFinished=60)

    assert final(api.after(5)) == ("Complete", "CompletionsReached")
    assert api.after(50).job() is not None
    assert (api.after(20).job(), api.pods()) == (None, [])


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
def test_deletion_of_a_job_deletes_its_pods(propagation):
    api = create(client()).after(5)

    api.call("DELETE", f"{JOBS}/sweep", {"propagationPolicy": propagation})
    api.after(5)

    assert (api.job(), api.pods()) == (None, [])


def test_foreground_deletion_keeps_the_job_until_its_pods_are_gone():
    api = create(client()).after(5)
    api.cluster.set_kubelet(api.pods()[0]["spec"]["nodeName"], False, api.now)

    api.call("DELETE", f"{JOBS}/sweep", {"propagationPolicy": "Foreground"})

    assert "deletionTimestamp" in api.after(20).job()["metadata"]
    api.cluster.set_kubelet(api.pods()[0]["spec"]["nodeName"], True, api.now)
    assert (api.after(5).job(), api.pods()) == (None, [])


def test_parallelism_can_change():
    api = create(client(), completions=4, parallelism=1, gpus=1).after(2)

    for wanted in (3, 2):
        api.call("PATCH", f"{JOBS}/sweep", {"spec": {"parallelism": wanted}}, patch_type=MERGE_PATCH)
        assert len(api.after(5).pods()) == wanted


def test_pod_that_the_api_refuses_is_explained_by_an_event():
    api = create(client(), pod_spec={"priorityClassName": "nothing"}).after(2)

    assert api.pods() == []
    assert any(reason == "FailedCreate" and "no PriorityClass" in message for reason, message in api.events())


@pytest.mark.parametrize("indexes", [set(), {0}, {0, 1}, {0, 1, 2}, {1, 3, 4, 5, 9}, set(range(100)) - {50}])
def test_indexes_survive_a_round_trip(indexes):
    assert parse_indexes(format_indexes(indexes)) == indexes


def test_indexes_are_written_as_in_kubernetes():
    assert format_indexes({0, 1, 2, 4, 6, 7}) == "0-2,4,6,7"
