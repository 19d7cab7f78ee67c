"""JobSets, where their CRD is installed: one gang as an Indexed Job with a headless Service."""

from __future__ import annotations

import pytest

from scheduling.simulation.kubernetes.api.requests import MERGE_PATCH
from scheduling.simulation.kubernetes.api.served import ServedApi
from scheduling.simulation.kubernetes.objects import condition_of, labels_of

from .make import client, job

SETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
PODS = "/api/v1/namespaces/default/pods"
JOB = "gang-nodes-0"


def job_set(*, suspend: bool = False, max_restarts: int = 0, **more) -> dict:
    gang = {"completions": 2, "parallelism": 2, "backoffLimit": 0, **more.pop("job", {})}
    template = {"spec": job(env={"NNODES": "2"}, pod_spec={"schedulerName": "acme"}, **gang, **more)["spec"]}
    return {
        "metadata": {"name": "gang"},
        "spec": {
            "suspend": suspend,
            "failurePolicy": {"maxRestarts": max_restarts},
            "ttlSecondsAfterFinished": 600,
            "replicatedJobs": [{"name": "nodes", "replicas": 1, "template": template}],
        },
    }


@pytest.fixture
def api():
    return client(api=ServedApi(job_sets=True))


def placed(api, seconds: float = 3.0):
    """Bind the pods as a client does that schedules them itself."""
    for place, pod in enumerate(api.after(1).pods()):
        if "nodeName" not in pod["spec"]:
            target = {"target": {"kind": "Node", "name": f"kalos-00{place + 1}"}}
            api.call("POST", f"{PODS}/{pod['metadata']['name']}/binding", target)
    return api.after(seconds)


def status(api) -> dict:
    return api.call("GET", f"{SETS}/gang")["status"]


def test_job_set_creates_an_indexed_job_and_a_headless_service(api):
    api.call("POST", SETS, job_set())
    placed(api)

    made = api.job(JOB)
    assert (made["spec"]["completionMode"], made["metadata"]["ownerReferences"][0]["kind"]) == ("Indexed", "JobSet")
    service = api.call("GET", "/api/v1/namespaces/default/services/gang")
    assert service["spec"]["clusterIP"] == "None"
    assert [(one["spec"]["hostname"], one["spec"]["subdomain"]) for one in api.pods()] == [
        (f"{JOB}-0", "gang"),
        (f"{JOB}-1", "gang"),
    ]
    assert {labels_of(one)["jobset.sigs.k8s.io/jobset-name"] for one in api.pods()} == {"gang"}
    row = status(api)["replicatedJobsStatus"][0]
    assert (row["name"], row["ready"], row["active"]) == ("nodes", 1, 1)


@pytest.mark.parametrize(("end", "kind"), [("COMPLETED", "Completed"), ("FAILED:1", "Failed")])
def test_job_set_ends_with_its_job(api, end, kind):
    api.call("POST", SETS, job_set(seconds=10, end=end))

    placed(api, 60)

    found = status(api)
    assert (found["terminalState"], condition_of({"status": found}, kind)["status"]) == (kind, "True")
    api.after(600)
    assert (api.refusal("GET", f"{SETS}/gang").code, api.job(JOB), api.pods()) == (404, None, [])
    assert api.refusal("GET", "/api/v1/namespaces/default/services/gang").code == 404


def test_job_set_that_may_restart_creates_all_its_pods_again(api):
    api.call("POST", SETS, job_set(seconds=10, end="FAILED:1", max_restarts=1))
    first = placed(api, 5).job(JOB)["metadata"]["uid"]

    again = placed(api.after(30), 5)

    made = api.job(JOB)["metadata"]
    assert (status(again)["restarts"], status(again).get("terminalState")) == (1, None)
    assert (made["uid"] != first, made["labels"]["jobset.sigs.k8s.io/restart-attempt"]) == (True, "1")
    placed(api, 60)
    assert status(api)["terminalState"] == "Failed"


def test_suspended_job_set_has_no_pods_until_it_is_resumed(api):
    api.call("POST", SETS, job_set(suspend=True))
    assert (api.after(3).pods(), status(api)["replicatedJobsStatus"][0]["suspended"]) == ([], 1)

    api.call("PATCH", f"{SETS}/gang", {"spec": {"suspend": False}}, patch_type=MERGE_PATCH)

    assert len(api.after(3).pods()) == 2
    assert condition_of({"status": status(api)}, "Suspended")["status"] == "False"


def test_deletion_of_a_job_set_deletes_everything_it_made(api):
    api.call("POST", SETS, job_set())
    placed(api)

    api.call("DELETE", f"{SETS}/gang")

    assert (api.after(60).pods(), api.job(JOB)) == ([], None)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"replicatedJobs": []}, "spec.replicatedJobs"),
        ({"replicatedJobs": [{"name": "a"}]}, "spec.replicatedJobs[0].template.spec"),
        (
            {"replicatedJobs": [{"name": "a", "replicas": -1, "template": {"spec": {}}}]},
            "spec.replicatedJobs[0].replicas",
        ),
        ({"replicatedJobs": ["a"]}, "spec.replicatedJobs[0].name"),
        ({"replicatedJobs": [{"name": "a", "template": {"spec": {"parallelism": "x"}}}]}, "parallelism"),
    ],
)
def test_invalid_job_set_is_refused_with_its_field(api, spec, field):
    assert field in api.refusal("POST", SETS, {"metadata": {"name": "gang"}, "spec": spec}).message


def test_job_set_is_not_served_without_its_crd():
    assert client().refusal("GET", SETS, None).code == 404
