"""A cluster that looks like Kubernetes 1.20: later fields disappear without a word."""

from __future__ import annotations

import pytest

from scheduling.simulation.kubernetes.api.served import OLD, ServedApi

from .make import client, job, pod

JOBS, PODS = "/apis/batch/v1/namespaces/default/jobs", "/api/v1/namespaces/default/pods"
BUDGETS = "/apis/policy/{}/namespaces/default/poddisruptionbudgets"


@pytest.fixture
def api():
    return client(api=ServedApi(OLD))


def test_fields_of_later_jobs_are_dropped_silently(api):
    asked = job(completions=2, parallelism=2, completionMode="Indexed", suspend=True, podReplacementPolicy="Failed")

    made = api.call("POST", JOBS, asked, dryRun="All", fieldValidation="Strict")

    assert {"completionMode", "suspend", "podReplacementPolicy"} & set(made["spec"]) == set()
    assert "batch.kubernetes.io/job-name" not in made["spec"]["template"]["metadata"]["labels"]
    assert made["spec"]["selector"] == {"matchLabels": {"controller-uid": made["metadata"]["uid"]}}
    assert api.job() is None


def test_job_that_asked_for_suspension_and_indexes_runs_at_once_without_them(api):
    api.call("POST", JOBS, job(completions=2, parallelism=2, completionMode="Indexed", suspend=True, seconds=5))

    pods = api.after(3).pods()

    assert [one["status"]["phase"] for one in pods] == ["Running", "Running"]
    assert all("annotations" not in one["metadata"] and "hostname" not in one["spec"] for one in pods)
    assert [one["type"] for one in api.after(30).job()["status"]["conditions"]] == ["Complete"]


def test_gates_of_a_pod_are_dropped_and_it_is_placed(api):
    made = api.call("POST", PODS, pod(schedulingGates=[{"name": "acme/gang"}]))

    assert ("schedulingGates" in made["spec"], "conditions" in made["status"]) == (False, False)
    assert api.after(2).pod()["status"]["phase"] == "Running"


def test_budgets_have_their_beta_version_only(api):
    budget = {"metadata": {"name": "web"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}}

    assert api.refusal("POST", BUDGETS.format("v1"), budget).code == 404
    api.call("POST", BUDGETS.format("v1beta1"), budget)

    api.create_pod(node="kalos-001", metadata={"labels": {"app": "web"}})
    api.after(3)
    eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": "train"}}
    assert api.refusal("POST", f"{PODS}/train/eviction", eviction).code == 429
    current = {**eviction, "apiVersion": "policy/v1"}
    assert api.refusal("POST", f"{PODS}/train/eviction", current).code == 400


def test_failed_job_gets_its_final_condition_at_once(api):
    api.call("POST", JOBS, job(completions=1, backoffLimit=0, activeDeadlineSeconds=10))
    node = api.after(5).pods()[0]["spec"]["nodeName"]
    api.cluster.set_kubelet(node, False, api.now)

    conditions = api.after(10).job()["status"]["conditions"]

    assert [(one["type"], one["reason"]) for one in conditions] == [("Failed", "DeadlineExceeded")]
