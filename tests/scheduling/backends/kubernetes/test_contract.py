"""The backend contract on simulated Kubernetes clusters, with each shape of an attempt, and on a real control plane."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from jobs.core.lifecycle import State
from tests.scheduling.backends.contract import BackendContract, Site
from tests.scheduling.backends.kubernetes.objects import template as pod_spec
from tests.scheduling.backends.kubernetes.real_kubernetes import RealKubernetes, pod, started_or_skipped
from tests.scheduling.backends.kubernetes.simulated_kubernetes import NAMESPACE, TEMPLATE, open_kubernetes, prepare
from tests.scheduling.simulation.kubernetes.running import KubernetesProcess

SILENT_S = 2  # until the pods of a silent node are evicted
LEAVE_SILENT_NODES = {
    "tolerations": [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": SILENT_S}
        for key in ("unreachable", "not-ready")
    ]
}


class SimulatedHazards:
    def __init__(self, cluster: KubernetesProcess) -> None:
        self.cluster = cluster

    def kill_node(self, name: str) -> None:
        self._act(name, "power-off")

    def revive_node(self, name: str) -> None:
        self._act(name, "repair")

    def restart_controller(self) -> None:
        self.cut()
        self.mend()

    def cut(self) -> None:
        self.cluster.kill()

    def mend(self) -> None:
        self.cluster.start()

    def _act(self, name: str, action: str) -> None:
        self.cluster.call("POST", f"/machines/{name}", {"action": action})


class RealHazards:
    def __init__(self, cluster: RealKubernetes) -> None:
        self.cluster = cluster

    def kill_node(self, name: str) -> None:
        os.kill(self.cluster.node_pid(name), signal.SIGKILL)

    def revive_node(self, name: str) -> None:
        self.cluster.restart_node(name)

    def restart_controller(self) -> None:
        self.cut()
        self.mend()

    def cut(self) -> None:
        self.cluster.kill_api_server()

    def mend(self) -> None:
        self.cluster.start_api_server()


def with_a_limited_job(site: Site, kubeconfig: Path, template: dict) -> Site:
    """Add a job whose pods tolerate a silent node for the usual five minutes: a busy machine delays the reports of all
    nodes."""
    limited = site.work(seconds=600, nodes=(site.nodes[2],), time_limit=timedelta(minutes=1))
    with closing(open_kubernetes(kubeconfig, template=template)) as backend:
        backend.submit(limited)
    return replace(site, limited=limited)


LAST_NODE = "kalos-004"  # of four; some tests need the whole first one


def foreign_pod(cluster: KubernetesProcess) -> str:
    name = f"someone-elses-{time.monotonic_ns()}"
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": _with_image_and_node(pod_spec(1))}
    return cluster.call("POST", "/api/v1/namespaces/default/pods", body)["metadata"]["uid"]


def _with_image_and_node(spec: dict) -> dict:
    return {
        **spec,
        "nodeName": LAST_NODE,
        "containers": [{**container, "image": "example/train:1"} for container in spec["containers"]],
    }


MIG_SLICES = {"1g.10gb": 7, "3g.40gb": 2}
MIG_OPTIONS = ("--mig-slices", ",".join(f"{profile}={count}" for profile, count in MIG_SLICES.items()))
SHAPES = {"indexed-jobs": (), "job-sets": ("--job-sets",), "plain-pods": ("--kubernetes", "1.20")}


@pytest.fixture(scope="module", params=SHAPES.values(), ids=SHAPES)
def simulated(request, tmp_path_factory):
    state = tmp_path_factory.mktemp("kalos")
    with (
        KubernetesProcess(state / "state", "--nodes", "4", *MIG_OPTIONS, *request.param) as cluster,
        closing(open_kubernetes(prepare(cluster), template={**TEMPLATE, **LEAVE_SILENT_NODES})) as backend,
    ):
        site = Site(
            backend=backend,
            nodes=tuple(f"kalos-00{number}" for number in range(1, 5)),
            output=state,
            gpus_per_node=8,
            mig_slices=MIG_SLICES,
            gpu_model=backend.nodes()[0].gpu_model,
            submit_elsewhere=lambda: foreign_pod(cluster),
            hazards=SimulatedHazards(cluster),
        )
        yield with_a_limited_job(site, cluster.state / "acme.kubeconfig", TEMPLATE)


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    with started_or_skipped() as cluster:
        cluster.kubectl("create", "namespace", NAMESPACE)
        cluster.offer_slices(cluster.nodes[-1], MIG_SLICES)
        template = {**TEMPLATE, "annotations": {"k8s-lab/run": "true"}}
        with closing(open_kubernetes(cluster.kubeconfig, template=template | LEAVE_SILENT_NODES)) as backend:
            site = Site(
                backend=backend,
                nodes=cluster.nodes,
                mig_slices=MIG_SLICES,
                output=tmp_path_factory.mktemp("real"),
                gpus_per_node=8,
                gpu_model=backend.nodes()[0].gpu_model,
                submit_elsewhere=lambda: submit_pod(cluster),
                hazards=RealHazards(cluster),
            )
            yield with_a_limited_job(site, cluster.kubeconfig, template)


def submit_pod(cluster: RealKubernetes) -> str:
    name = f"someone-elses-{time.monotonic_ns()}"
    cluster.create(pod(name, gpus=1, node=cluster.nodes[-1]))
    return cluster.get("pod", name)["metadata"]["uid"]


class KubernetesContract(BackendContract):
    test_attempt_writes_its_record = None  # the status of the pods is the record


class TestSimulatedKubernetes(KubernetesContract):
    @pytest.fixture
    def site(self, simulated):
        return simulated


@pytest.mark.timeout(600)
def test_real_control_plane_runs_a_job_and_reports_its_exit_code(real):
    """The one test of a real control plane that runs without `make test-system`."""
    request = real.work(exit_code=3)
    real.backend.submit(request)

    ended = real.until_final(request)

    assert (ended.state, ended.exit_code) == (State.FAILED, 3)


@pytest.mark.system
@pytest.mark.timeout(600)
class TestRealKubernetes(KubernetesContract):
    @pytest.fixture
    def site(self, real):
        return real
