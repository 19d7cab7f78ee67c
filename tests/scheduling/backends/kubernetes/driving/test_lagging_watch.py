"""Two processes with caches of their own, of which the watches of one lag far behind."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from jobs.core.lifecycle import FINAL_STATES, State
from tests.chaos.proxy import Proxy
from tests.scheduling.backends.kubernetes.driving.test_driving import PODS, SHAPES, gang, has_ended, running, until_seen
from tests.scheduling.backends.kubernetes.simulated_kubernetes import open_kubernetes, prepare, write_kubeconfig
from tests.scheduling.simulation.kubernetes.running import KubernetesProcess

LAG_S = 3600.0


@pytest.fixture(scope="module", params=SHAPES.values(), ids=SHAPES)
def cluster(request, tmp_path_factory):
    state = tmp_path_factory.mktemp("kalos")
    with KubernetesProcess(state / "state", "--nodes", "4", *request.param) as cluster:
        prepare(cluster)
        yield cluster


@pytest.fixture
def current(cluster):
    with closing(open_kubernetes(cluster.state / "acme.kubeconfig")) as backend:
        yield backend


@pytest.fixture
def late(cluster):
    """Its watches send nothing during the test; its other requests are answered at once."""
    with closing(Proxy(cluster.address)) as proxy, proxy.lagging_watches(LAG_S):
        config = write_kubeconfig(cluster.state / "late.kubeconfig", proxy.address, {"token": cluster.token})
        with closing(open_kubernetes(config)) as backend:
            yield backend


def job_of(backend, request):
    """The attempt in the listing of a process."""
    return next(job for job in backend.jobs() if job.key == request.key)


def owner_of(cluster, request):
    """The annotations of its owner that record its end."""
    collections = ("/apis/batch/v1/namespaces/acme-jobs/jobs", "/api/v1/namespaces/acme-jobs/configmaps", PODS)
    for path in collections:
        for item in cluster.call("GET", path, labelSelector=f"acme/attempt={request.key}")["items"]:
            if "acme/nodes" in item["metadata"]["annotations"]:
                return item["metadata"]["annotations"]
    raise AssertionError("the attempt has no owner")


def fail(cluster, request):
    """Let the program of each pod end with an exit code."""
    for item in cluster.call("GET", PODS, labelSelector=f"acme/attempt={request.key}")["items"]:
        cluster.call("POST", "/faults", {"kind": "nan", "pod": f"acme-jobs/{item['metadata']['name']}"})


def failed_unseen(cluster, current, late, request):
    """An attempt that failed, and still runs in the cache that lags."""
    backend_id = running(current, request)
    assert job_of(late, request).state == State.RUNNING
    fail(cluster, request)
    assert until_seen(current, request, has_ended).state == State.FAILED
    current.advance_jobs()  # records the end
    assert job_of(late, request).state == State.RUNNING
    return backend_id


SHAPES_OF_ATTEMPTS = {"gang": gang(), "single": gang(("kalos-003",))}


@pytest.fixture(params=SHAPES_OF_ATTEMPTS.values(), ids=SHAPES_OF_ATTEMPTS)
def request_(request):
    return replace(gang(), nodes=request.param.nodes)


@pytest.mark.parametrize("stop", ["cancel", "evict"])
def test_stop_of_an_attempt_that_has_ended_changes_nothing(cluster, current, late, request_, stop):
    backend_id = failed_unseen(cluster, current, late, request_)
    before, ended = owner_of(cluster, request_), current.find(request_.key)

    getattr(late, stop)(backend_id)

    assert owner_of(cluster, request_) == before
    assert current.find(request_.key) == ended


def test_attempt_that_is_read_again_has_ended_in_the_next_listing_too(cluster, current, late, request_):
    failed_unseen(cluster, current, late, request_)

    assert [job.state for job in late.current_jobs([request_.key])] == [State.FAILED]
    assert job_of(late, request_).state == State.FAILED


def test_attempt_that_no_event_has_shown_is_found(cluster, current, late, request_):
    late.jobs()
    backend_id = running(current, request_)
    assert request_.key not in {job.key for job in late.jobs()}

    assert late.find(request_.key).state == State.RUNNING

    current.cancel(backend_id)


def test_attempt_that_runs_is_cancelled_by_a_process_that_has_not_seen_its_pods(cluster, current, late, request_):
    backend_id = current.submit_all([request_])[0]
    late.jobs()
    until_seen(current, request_, lambda job: job.state == State.RUNNING)

    late.cancel(backend_id)

    assert until_seen(current, request_, has_ended).state == State.CANCELLED


def test_cancelled_gang_gets_no_pods_from_a_process_that_has_not_seen_its_end(cluster, current, late):
    holder, request = gang(("kalos-001",), gpus_per_node=8), gang(gpus_per_node=8)
    holder_id = running(current, holder)
    backend_id = current.submit_all([request])[0]
    until_seen(late, request, lambda job: job.state == State.PENDING)
    current.cancel(backend_id)
    until_seen(current, request, lambda job: job.state in FINAL_STATES)
    current.cancel(holder_id)
    until_seen(current, holder, has_ended)

    late.current_jobs([holder.key])
    late.advance_jobs()

    until_seen(current, request, has_ended)
    pods = cluster.call("GET", PODS, labelSelector=f"acme/attempt={request.key}")["items"]
    assert [item for item in pods if item["spec"].get("nodeName")] == []


def test_node_that_recovered_unseen_is_not_lost(cluster, current, late):
    request = gang(("kalos-004",))
    backend_id = running(current, request)
    cluster.call("POST", "/machines/kalos-004", {"action": "stop-kubelet"})
    until_seen(current, request, lambda _: is_lost(current))
    late.jobs()
    cluster.call("POST", "/machines/kalos-004", {"action": "repair"})
    until_seen(current, request, lambda _: not is_lost(current))

    until_seen(late, request, lambda _: not is_lost(late))
    current.cancel(backend_id)


def is_lost(backend) -> bool:
    return any("NOT_RESPONDING" in node.flags for node in backend.nodes() if node.name == "kalos-004")
