"""The observe loops over a Kubernetes cluster: nodes and workloads become rows."""

from __future__ import annotations

from contextlib import closing

import pytest
import yaml

from jobs.core.lifecycle import NodeState, State
from jobs.models import Cluster, ClusterMode, Job, Node, clock
from scheduling.backends.opening import open_backend
from scheduling.loops.observe.sync import sync_cluster_once
from tests import make
from tests.patience import until
from tests.scheduling.backends.kubernetes.objects import ended_pod, node, pod, workload
from tests.scheduling.backends.kubernetes.scripted_api import serving

pytestmark = pytest.mark.django_db
PODS, JOBS = "/api/v1/pods", "/apis/batch/v1/jobs"


@pytest.fixture
def api():
    with serving() as (api, server):
        api.server = server
        api.groups = {"batch/v1": {"kinds": ["Job"]}}
        api.objects[JOBS] = []
        api.objects["/api/v1/nodes"] = [node("n1"), node("n2", spec={"unschedulable": True})]
        yield api


@pytest.fixture
def backend(api):
    config = {
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
        "clusters": [{"name": "c", "cluster": {"server": api.server}}],
    }
    address, text = "kubernetes:///k", yaml.safe_dump(config)
    with closing(open_backend(address, read_file=lambda path: text, timeout_s=60)) as backend:
        yield backend


@pytest.fixture
def kalos():
    return Cluster.objects.create(name="kalos", address="kubernetes:///k", mode=ClusterMode.OBSERVE)


def sync(cluster, backend):
    return sync_cluster_once(cluster, backend, clock.now())


def test_nodes_and_workloads_become_rows(api, backend, kalos):
    make.team(name="research")
    train = workload("Job", "train")
    api.objects[JOBS] = [train, workload("Job", "waiting", spec={"suspend": True})]
    api.objects[PODS] = [pod("w0", on="n1", gpus=6, controller=train), pod("plain", on="n1", gpus=0)]

    sync(kalos, backend)

    nodes = {row.name: row for row in Node.objects.all()}
    assert (nodes["n1"].state, nodes["n1"].gpus, nodes["n1"].foreign_gpus) == (NodeState.MIXED, 8, [2, 3, 4, 5, 6, 7])
    assert (nodes["n2"].is_drained, nodes["n2"].reason, nodes["n2"].foreign_gpus) == (True, "cordoned", [])
    jobs = {row.name: row for row in Job.objects.all()}
    assert (jobs["research/job/train"].state, jobs["research/job/train"].gpus_per_node) == (State.RUNNING, 6)
    assert jobs["research/job/train"].team.name == "research"
    assert (jobs["research/job/waiting"].state, jobs["research/job/waiting"].reason) == (State.PENDING, "suspended")
    kalos.refresh_from_db()
    assert kalos.product == "kubernetes v1.99.0"


def test_end_of_a_pod_is_the_end_of_its_row(api, backend, kalos):
    api.objects[PODS] = [pod("p1", on="n1")]
    sync(kalos, backend)

    api.change(PODS, "MODIFIED", ended_pod("p1", exit_code=137, reason="OOMKilled"))

    until(lambda: sync(kalos, backend), what="the row has ended")
    row = Job.objects.get()
    assert (row.state, row.exit_code) == (State.OUT_OF_MEMORY, 137)
    assert "OOMKilled" in row.attempts.get().reason
    assert Node.objects.get(name="n1").foreign_gpus == []


def test_second_turn_changes_nothing(api, backend, kalos):
    api.objects[PODS] = [pod("p1", on="n1"), ended_pod("p2")]
    sync(kalos, backend)
    before = list(Job.objects.order_by("pk").values()), list(Node.objects.order_by("pk").values("state", "flags"))

    assert sync(kalos, backend) == 0

    assert before == (
        list(Job.objects.order_by("pk").values()),
        list(Node.objects.order_by("pk").values("state", "flags")),
    )
