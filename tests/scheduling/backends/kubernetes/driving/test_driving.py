"""Driving simulated clusters through what goes wrong: crashes, other clients, budgets, other people's work."""

from __future__ import annotations

import pickle
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from itertools import count

import httpx
import pytest

from acmeweb.common.env import ROOT
from jobs.core.cluster_kinds import PodLimits
from jobs.core.lifecycle import FINAL_STATES, NodeFlag, State
from scheduling.backends.base import (
    ClusterUnreachable,
    EvictionRefused,
    PlacementRejected,
    RequestRejected,
    SubmitRequest,
)
from scheduling.backends.kubernetes.pod_objects import ApiFeatures, owner_object
from scheduling.backends.kubernetes.pod_template import parse_pod_template
from tests.patience import until
from tests.scheduling.backends.kubernetes.simulated_kubernetes import NAMESPACE, TEMPLATE, open_kubernetes, prepare
from tests.scheduling.simulation.kubernetes.running import KubernetesProcess

SHAPES = {"indexed-jobs": (), "plain-pods": ("--kubernetes", "1.20")}
PODS, CONFIG_MAPS = (f"/api/v1/namespaces/{NAMESPACE}/{plural}" for plural in ("pods", "configmaps"))
numbers = count(1)
LONG = {"SIM_DURATION_S": "3600"}


@pytest.fixture(scope="module", params=SHAPES.values(), ids=SHAPES)
def cluster(request, tmp_path_factory):
    state = tmp_path_factory.mktemp("kalos")
    with KubernetesProcess(state / "state", "--nodes", "4", *request.param) as cluster:
        prepare(cluster)
        yield cluster


@pytest.fixture(scope="module")
def old_cluster(tmp_path_factory):
    state = tmp_path_factory.mktemp("kalos")
    with KubernetesProcess(state / "state", "--nodes", "4", "--kubernetes", "1.20") as cluster:
        prepare(cluster)
        yield cluster


def opened(cluster, **options):
    return closing(open_kubernetes(cluster.state / "acme.kubeconfig", **options))


@pytest.fixture
def backend(cluster):
    with opened(cluster) as backend:
        yield backend


def gang(nodes=("kalos-001", "kalos-002"), **changed) -> SubmitRequest:
    key = f"drive{next(numbers)}.1"
    request = SubmitRequest(
        key=key,
        name="gang",
        user="ada",
        account="",
        script="sleep 3600\n",
        workdir="/tmp",
        environment=LONG,
        nodes=nodes,
        gpus_per_node=1,
        gpu_model="",
        cpus_per_node=1,
        memory_per_node_mb=100,
        time_limit=timedelta(hours=2),
        stdout="",
        installation="here",
    )
    return replace(request, **changed)


def until_seen(backend, request, is_so):
    def look():
        backend.advance_jobs()
        found = backend.find(request.key)
        return found if found and is_so(found) else None

    return until(look, what=f"{request.key}: {backend.find(request.key)}")


def is_running(found) -> bool:
    return found.state == State.RUNNING and not found.flags


def has_ended(found) -> bool:
    return found.state in FINAL_STATES and not found.flags


def running(backend, request):
    backend_id = backend.submit(request)
    until_seen(backend, request, is_running)
    return backend_id


def pods_of(cluster, request):
    selector = f"acme/attempt={request.key}"
    return cluster.call("GET", PODS, labelSelector=selector)["items"]


def test_gang_is_placed_by_its_submission_already(backend):
    request = gang()

    backend.submit(request)

    assert backend.find(request.key).nodes == request.nodes
    backend.cancel(backend.find(request.key).backend_id)


def test_gang_whose_submission_was_killed_after_the_owner_is_completed_by_any_process(old_cluster):
    request = gang()
    features = ApiFeatures(indexed_jobs=False, job_set_path="", scheduling_gates=False)
    owner = owner_object(request, parse_pod_template(TEMPLATE, PodLimits()), features)
    for name in ("acme/admitted", "acme/ended"):
        owner.body["metadata"]["annotations"][name] = ""
    old_cluster.call("POST", owner.collection, owner.body)

    with opened(old_cluster) as another:
        assert another.find(request.key).state == State.PENDING
        until_seen(another, request, is_running)


def test_attempts_are_placed_while_the_next_ones_are_submitted(cluster, backend):
    first, second = gang(), gang(("kalos-003", "kalos-004"))
    ids = backend.submit_all([first])
    until(lambda: len(pods_of(cluster, first)) == 2, what="the pods of the first gang")

    ids += backend.submit_all([second])

    assert backend.find(first.key).nodes == first.nodes
    for backend_id in ids:
        backend.cancel(backend_id)


def test_advancing_waits_for_the_pods_of_attempts_that_were_just_submitted(backend):
    requests = [gang(gpus_per_node=0) for _ in range(4)]
    ids = backend.submit_all(requests)

    backend.advance_jobs()

    assert [backend.find(request.key).nodes for request in requests] == [request.nodes for request in requests]
    for backend_id in ids:
        backend.cancel(backend_id)


def test_single_pod_is_placed_by_its_creation(old_cluster):
    request = gang(("kalos-003",))
    with opened(old_cluster) as backend:
        (backend_id,) = backend.submit_all([request])

        assert backend.find(request.key).nodes == ("kalos-003",)
        backend.cancel(backend_id)


SUBMIT_ALL = """
import pickle, sys
from contextlib import closing
from pathlib import Path
from tests.scheduling.backends.kubernetes.simulated_kubernetes import open_kubernetes

with closing(open_kubernetes(Path(sys.argv[1]))) as backend:
    for batch in pickle.loads(bytes.fromhex(sys.argv[2])):
        backend.submit_all(batch)
"""


def test_submission_of_many_attempts_that_was_killed_is_continued_and_runs_none_twice(cluster):
    """Killed when some attempts are placed, some wait for their pods, and some do not exist."""
    requests = [gang(gpus_per_node=0) for _ in range(40)]
    batches = [requests[first : first + 4] for first in range(0, len(requests), 4)]
    version = cluster.call("GET", PODS)["metadata"]["resourceVersion"]
    arguments = (str(cluster.state / "acme.kubeconfig"), pickle.dumps(batches).hex())
    process = subprocess.Popen([sys.executable, "-c", SUBMIT_ALL, *arguments], cwd=ROOT)
    try:
        until(lambda: pods_of(cluster, requests[8]), what="the pods of the third batch")
    finally:
        process.kill()
        process.wait()

    with opened(cluster) as another:
        known = {job.key for job in another.jobs()}
        ids = another.submit_all(requests)
        assert {request.key for request in requests[:8]} <= known
        for request in requests:
            until_seen(another, request, is_running)
        for backend_id in ids:
            another.cancel(backend_id)
        for request in requests:
            until_seen(another, request, has_ended)
    assert placed_since(cluster, version, requests) == {request.key: 2 for request in requests}


def placed_since(cluster, version, requests):
    """By key: how many pods were ever bound to a node."""
    uids = {request.key: set() for request in requests}
    for event in cluster.watch(PODS, resourceVersion=version, timeoutSeconds="1"):
        item = event["object"]
        key = item["metadata"].get("labels", {}).get("acme/attempt")
        if key in uids and item["spec"].get("nodeName"):
            uids[key].add(item["metadata"]["uid"])
    return {key: len(found) for key, found in uids.items()}


def test_attempt_that_is_submitted_again_is_the_same_one(backend):
    request = gang()
    first = running(backend, request)

    assert backend.submit(request) == first
    assert len([found for found in backend.jobs() if found.key == request.key]) == 1
    backend.cancel(first)


def test_name_that_another_installation_uses_is_refused(backend):
    request = gang()
    first = backend.submit(request)

    with pytest.raises(RequestRejected, match="does not belong to this attempt"):
        backend.submit(replace(request, installation="elsewhere"))

    backend.cancel(first)


def test_many_attempts_are_submitted_at_once_and_one_refusal_is_its_own(backend):
    requests = [gang(nodes=("kalos-003",), gpus_per_node=0) for _ in range(6)]
    requests[2] = replace(requests[2], nodes=("no-such-node",))

    answers = backend.submit_all(requests)

    assert isinstance(answers[2], PlacementRejected)
    ids = [answer for answer in answers if isinstance(answer, str)]
    assert len(set(ids)) == 5
    for backend_id in ids:
        backend.cancel(backend_id)


def test_end_of_a_cancelled_gang_is_known_to_a_process_that_starts_later(cluster, backend):
    request = gang()
    backend.cancel(running(backend, request))
    until_seen(backend, request, has_ended)

    with opened(cluster) as later:
        assert later.find(request.key).state == State.CANCELLED


def test_gang_that_lost_a_pod_ends_and_its_replacement_is_never_placed(cluster, backend):
    request = gang()
    running(backend, request)
    victim = pods_of(cluster, request)[0]["metadata"]

    cluster.call("DELETE", f"{PODS}/{victim['name']}")

    assert until_seen(backend, request, has_ended).state in (State.CANCELLED, State.FAILED)
    placed = [item for item in pods_of(cluster, request) if item["spec"].get("nodeName")]
    assert {item["metadata"]["uid"] for item in placed if item["status"]["phase"] == "Running"} == set()


def test_eviction_respects_a_disruption_budget(cluster, backend):
    request = gang()
    backend_id = running(backend, request)
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"acme/attempt": request.key}}}
    version = cluster.call("GET", "/apis/policy")["preferredVersion"]["groupVersion"]
    budgets = f"/apis/{version}/namespaces/{NAMESPACE}/poddisruptionbudgets"
    budget = {"apiVersion": version, "kind": "PodDisruptionBudget", "metadata": {"name": "keep"}, "spec": spec}
    cluster.call("POST", budgets, budget)
    until(lambda: "status" in cluster.call("GET", f"{budgets}/keep"), what="the budget has a status")

    with pytest.raises(EvictionRefused, match="disruption budget keep"):
        backend.evict(backend_id)
    assert is_running(backend.find(request.key))

    cluster.call("DELETE", f"{budgets}/keep")
    backend.evict(backend_id)
    assert until_seen(backend, request, has_ended).state == State.PREEMPTED


def test_waiting_attempt_is_evicted_without_asking_a_budget(backend):
    holder, waiting = (gang(nodes=("kalos-004",), gpus_per_node=8) for _ in range(2))
    holder_id = running(backend, holder)
    backend_id = backend.submit(waiting)

    assert "has 0 GPUs free" in backend.find(waiting.key).reason
    backend.evict(backend_id)

    assert until_seen(backend, waiting, has_ended).nodes == ()
    backend.cancel(holder_id)


def test_work_of_others_is_never_changed(cluster, backend):
    spec = {"containers": [{"name": "main", "image": "example/train:1"}]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"other-{next(numbers)}"}, "spec": spec}
    there = cluster.call("POST", "/api/v1/namespaces/default/pods", body)["metadata"]
    here = cluster.call("POST", PODS, body)["metadata"]

    with pytest.raises(RequestRejected, match="in namespace default: its mode is observed"):
        backend.cancel(there["uid"])
    with pytest.raises(RequestRejected, match="was not submitted by this installation"):
        backend.evict(here["uid"])

    assert cluster.get_or_none(f"{PODS}/{here['name']}")["metadata"].get("deletionTimestamp") is None


def test_attempts_of_another_installation_are_left_alone(cluster):
    request = gang(installation="elsewhere")
    with opened(cluster, installation="elsewhere") as theirs, opened(cluster, installation="here") as ours:
        backend_id = running(theirs, request)

        with pytest.raises(RequestRejected, match="was not submitted by this installation"):
            ours.cancel(backend_id)
        cluster.call("DELETE", f"{PODS}/{pods_of(cluster, request)[0]['metadata']['name']}")
        until(lambda: theirs.find(request.key).state != State.RUNNING, what="the gang has lost a pod")
        ours.advance_jobs()
        assert ours.find(request.key).installation == "elsewhere"
        assert until_seen(theirs, request, has_ended)


def test_missing_namespace_is_no_fault_of_the_job(cluster):
    template = {**TEMPLATE, "namespace": "missing"}
    with opened(cluster, template=template) as backend, pytest.raises(ClusterUnreachable, match="missing"):
        backend.submit(gang())


def test_own_cordon_has_its_reason_and_a_foreign_one_says_so(cluster, backend):
    backend.drain("kalos-004", "fan is loud")
    cluster_patch(cluster, "kalos-003", {"spec": {"unschedulable": True}})

    def reasons():
        return {node.name: node.reason for node in backend.nodes() if NodeFlag.DRAIN in node.flags}

    assert reasons()["kalos-004"] == "fan is loud"
    until(lambda: reasons().get("kalos-003") == "cordoned", what="the foreign cordon")
    for name in ("kalos-003", "kalos-004"):
        backend.resume(name)
    assert reasons() == {}


def cluster_patch(cluster, node, patch):
    headers = {"Content-Type": "application/merge-patch+json"}
    cluster.client.patch(f"/api/v1/nodes/{node}", json=patch, headers=headers).raise_for_status()


def test_restarted_api_server_loses_no_gang(cluster, backend):
    request = gang()
    backend_id = running(backend, request)

    cluster.kill()
    with pytest.raises(ClusterUnreachable):
        backend.advance_jobs()
    with pytest.raises(ClusterUnreachable):
        backend.submit(gang())
    cluster.start()

    found = until_seen(backend, request, is_running)
    assert found.backend_id == backend_id
    backend.cancel(backend_id)
    assert until_seen(backend, request, has_ended).state == State.CANCELLED


def test_forgotten_history_loses_no_gang(cluster, backend):
    request = gang()
    backend_id = running(backend, request)

    httpx.post(f"{cluster.address}/compact", headers={"Authorization": f"Bearer {cluster.token}"}).raise_for_status()
    backend.cancel(backend_id)

    assert until_seen(backend, request, has_ended).state == State.CANCELLED
