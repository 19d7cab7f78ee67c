"""Attempts in a namespace that enforces the Pod Security Standard "restricted"."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.scheduling.backends.kubernetes.driving.test_driving import gang, has_ended, running, until_seen
from tests.scheduling.backends.kubernetes.simulated_kubernetes import open_kubernetes, prepare
from tests.scheduling.simulation.kubernetes.running import KubernetesProcess


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    state = tmp_path_factory.mktemp("kalos")
    with KubernetesProcess(state / "state", "--nodes", "2") as cluster:
        prepare(cluster, **{"pod-security.kubernetes.io/enforce": "restricted"})
        yield cluster


@pytest.mark.parametrize("nodes", [("kalos-001",), ("kalos-001", "kalos-002")], ids=["one node", "gang"])
def test_attempt_runs_in_a_restricted_namespace(cluster, nodes):
    request = gang(nodes)
    with closing(open_kubernetes(cluster.state / "acme.kubeconfig")) as backend:
        backend_id = running(backend, request)

        backend.cancel(backend_id)
        until_seen(backend, request, has_ended)
