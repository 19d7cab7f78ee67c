"""Faults on request on a simulated Kubernetes cluster, and what the demo adds to this cluster."""

from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import Permission

from acmeweb.services.kubeconfig import kubeconfig_text
from jobs.models import Event, clock
from scheduling.simulation.client import SimulatorError, inject_job_fault, plan_job
from scheduling.simulation.demo import kalos
from tests import make
from tests.patience import until
from tests.scheduling.simulation.kubernetes.running import KubernetesProcess

pytestmark = pytest.mark.django_db


@pytest.fixture
def process(tmp_path):
    with KubernetesProcess(tmp_path / "state", "--nodes", "4") as running:
        yield running


@pytest.fixture
def cluster(process, tmp_path):
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(kubeconfig_text("kalos", process.address, process.token))
    return make.cluster(
        name="kalos", address=f"kubernetes://{kubeconfig}", is_bundled=True, product="kubernetes v1.33.4-simulated"
    )


@pytest.fixture
def operator(client):
    user = make.user("olga")
    user.user_permissions.add(Permission.objects.get(codename="operate_cluster"))
    client.force_login(user)
    return client


def running_pods(process, namespace="speech"):
    pods = process.call("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
    return [pod for pod in pods if pod["status"].get("phase") == "Running"]


def test_node_fault_reaches_the_cluster(operator, cluster, process):
    answer = operator.post("/simulator/nodes/kalos/kalos-002/faults/", {"kind": "off_bus"}, follow=True)

    assert "Drop a GPU off the bus: done." in answer.text
    assert [(one["kind"], one["node"]) for one in process.call("GET", "/faults")["faults"]] == [
        ("off_bus", "kalos-002")
    ]
    assert Event.objects.get(type="node.fault_injected").by == "olga"


def test_workloads_of_other_teams_are_created_once(cluster, process):
    now = clock.now()
    kalos.create_other_workloads(cluster, now)
    kalos.create_other_workloads(cluster, now)
    kalos.create_other_workloads(cluster, now + timedelta(minutes=1))

    pods = until(lambda: len(running_pods(process)) == 3 and running_pods(process), what="three pods")

    assert {pod["metadata"]["labels"]["user"] for pod in pods} == {"maryam", "tomas"}


def test_fault_of_a_job_hits_one_of_its_pods(operator, cluster, process):
    kalos.create_other_workloads(cluster, clock.now())
    until(lambda: len(running_pods(process)) == 3, what="three pods")
    (training,) = process.call("GET", "/apis/batch/v1/namespaces/speech/jobs")["items"]
    job = make.job(cluster=cluster, kind="pretrain", nodes=2, gpus_per_node=8)
    make.running(job, on=["kalos-001", "kalos-002"])
    attempt = job.attempts.get()
    attempt.backend_id = training["metadata"]["uid"]
    attempt.save()
    job.team.memberships.create(user=make.user("olga"), role="researcher")

    answer = operator.post(f"/simulator/jobs/{job.public_id}/faults/", {"kind": "out_of_memory"}, follow=True)

    assert "Run out of GPU memory: done." in answer.text
    until(lambda: len(running_pods(process)) == 1, what="the training to fail")


def test_attempt_without_pods_is_reported(cluster):
    job = make.job(cluster=cluster, nodes=1, gpus_per_node=8)
    make.running(job, on=["kalos-001"])

    with pytest.raises(SimulatorError, match=r"No pod of .+ runs\."):
        inject_job_fault(cluster, "hang", job.attempts.get())


def test_cluster_that_is_away_is_named(cluster):
    Path(cluster.address.removeprefix("kubernetes://")).write_text(kubeconfig_text("kalos", "http://127.0.0.1:9", "x"))

    with pytest.raises(SimulatorError, match="The cluster kalos refused or does not answer"):
        plan_job(cluster, "abc", {"SIM_END": "COMPLETED"})
