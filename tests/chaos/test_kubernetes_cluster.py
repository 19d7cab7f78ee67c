"""What a storm sees and does on a simulated Kubernetes cluster."""

from __future__ import annotations

import pytest

from scheduling.backends.kubernetes.connection.manifests import observe_manifest
from tests.chaos.clusters.kubernetes import KubernetesCluster, left_pods, stopped_workloads
from tests.chaos.effects import Effect
from tests.patience import until

KEY = "0vqrm34vg06.1"


def ended(name, *, code=0, signal=None, namespace="tenants"):
    return Effect(event="end", job_id=1, key=f"{namespace}/{name}:0", exit_code=code, signal=signal)


def our_pod(phase):
    return {"metadata": {"name": "acme-x-0", "labels": {"acme/attempt": KEY}}, "status": {"phase": phase}}


def test_workload_of_somebody_else_that_was_stopped_is_a_violation():
    effects = [ended("service-1", signal=15), ended("service-2"), ended("train-0", signal=15, namespace="acme-jobs")]

    assert list(stopped_workloads(effects, ())) == ["the workload service-1 of somebody else was stopped (15)"]
    assert list(stopped_workloads(effects, ["service-1"])) == []


@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_pod_of_an_attempt_that_is_left_on_the_cluster_is_a_violation(phase):
    foreign = {"metadata": {"name": "service-1"}, "status": {"phase": "Running"}}

    assert list(left_pods([our_pod(phase), foreign])) == [f"pod acme-x-0 of attempt {KEY} is still {phase}"]
    assert list(left_pods([our_pod("Succeeded"), our_pod("Failed")])) == []


@pytest.fixture
def cluster(tmp_path):
    access = tmp_path / "access"
    access.mkdir()
    cluster = KubernetesCluster(access, 1, observe_manifest("acme"))
    yield cluster
    cluster.close()


def test_token_that_was_revoked_is_refused_and_the_new_one_works(cluster):
    def status():
        return cluster.asked_as_acme("/api/v1/nodes").status_code

    assert status() == 200
    assert cluster.revoke_tokens()
    assert status() == 401
    assert cluster.write_new_token()
    assert status() == 200


def test_pods_that_others_stop_are_remembered_by_attempt(cluster):
    node = until(cluster.nodes)[0]
    assert cluster.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "acme-x-0", "namespace": "acme-jobs", "labels": {"acme/attempt": KEY}},
            "spec": {"restartPolicy": "Never", "nodeName": node, "containers": [{"name": "main", "image": "i"}]},
        }
    )

    (pod,) = cluster.our_pods()
    assert cluster.delete_pod(pod, grace_s=0)

    assert cluster.stopped_by_others == {KEY}
    assert cluster.our_pods() == []


def test_killed_server_comes_back_with_its_pods_and_tokens(cluster):
    assert cluster.kill(None)

    assert cluster.asked_as_acme("/api/v1/nodes").status_code == 200
    assert len(cluster.nodes()) == 32
