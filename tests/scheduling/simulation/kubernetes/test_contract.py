"""The simulated API answers like a real one: the same requests to both, the same reduced answers."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.patience import until

from .contract import PODS, STEPS, Step, reduced
from .real import started_or_skipped
from .running import KubernetesProcess

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    with KubernetesProcess(tmp_path_factory.mktemp("simulated"), "--name", "node", "--nodes", "2") as process:
        yield process.client


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    with started_or_skipped(tmp_path_factory.mktemp("kubernetes")) as client:
        yield client


def send(client: httpx.Client, step: Step) -> dict[str, Any]:
    content = step.body if isinstance(step.body, bytes | None) else json.dumps(step.body).encode()
    headers = {"Accept": "application/json", **({} if content is None else {"Content-Type": step.content_type})}
    response = client.request(step.method, step.path, content=content, params=step.query, headers=headers)
    try:
        body = response.json()
    except ValueError:
        body = response.text
    return reduced(step, response.status_code, body)


def test_answers_are_those_of_a_real_api_server(real, simulated):
    """One test, because each request builds on those before it."""
    differences = {
        step.name: pair for step in STEPS if (pair := (send(real, step), send(simulated, step)))[0] != pair[1]
    }

    assert differences == {}


def node_names(client: httpx.Client) -> list[str]:
    return [one["metadata"]["name"] for one in client.get("/api/v1/nodes").json()["items"]]


def timed_pod(name: str, node: str, *, seconds: int, code: int = 0, gpus: int = 1, **spec: Any) -> dict:
    """A pod that runs for some seconds on both: one reads annotations, the other variables."""
    annotations = {"k8s-lab/seconds": str(seconds), "k8s-lab/exit-code": str(code)}
    end = f"FAILED:{code}" if code else "COMPLETED"
    variables = [{"name": "SIM_DURATION_S", "value": str(seconds)}, {"name": "SIM_END", "value": end}]
    container = {"name": "main", "image": "registry.example/x:1", "env": variables,
                 "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}  # fmt: skip
    return {
        "metadata": {"name": name, "annotations": annotations, "labels": {"behavior": "yes"}},
        "spec": {"nodeName": node, "restartPolicy": "Never", "containers": [container], **spec},
    }


def ended(client: httpx.Client, name: str) -> dict:
    def look() -> dict | None:
        found = client.get(f"{PODS}/{name}").json()
        return found if found["status"]["phase"] in ("Succeeded", "Failed") else None

    return until(look, what=f"{name} ends")


def shown_end(found: dict) -> dict:
    """What a client sees of the end of a pod."""
    status = found["status"]
    states = [one["state"].get("terminated", {}) for one in status.get("containerStatuses", [])]
    conditions = {one["type"]: (one["status"], one.get("reason")) for one in status.get("conditions", [])}
    kinds = ("Ready", "ContainersReady", "PodScheduled")
    return {
        "phase": status["phase"],
        "reason": status.get("reason"),
        "containers": [(one.get("exitCode"), one.get("reason")) for one in states],
        "conditions": {kind: conditions.get(kind, ("", ""))[0] for kind in kinds},
        "started": "startTime" in status,
    }


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("succeeds", {"seconds": 1}),
        ("fails", {"seconds": 1, "code": 3}),
        ("too-large", {"seconds": 1, "gpus": 9}),
        ("elsewhere", {"seconds": 1, "nodeSelector": {"kubernetes.io/hostname": "none"}}),
    ],
)
def test_pods_end_as_on_a_real_node(real, simulated, name, more):
    ends = []
    for client in (real, simulated):
        client.post(PODS, json=timed_pod(name, node_names(client)[0], **more)).raise_for_status()
        ends.append(shown_end(ended(client, name)))

    assert ends[0] == ends[1]


def test_deadline_of_a_pod_fails_it_as_on_a_real_node(real, simulated):
    """Whether its containers are shown as terminated differs between versions."""
    ends = []
    for client in (real, simulated):
        body = timed_pod("late", node_names(client)[0], seconds=600, activeDeadlineSeconds=2)
        client.post(PODS, json=body).raise_for_status()
        ends.append({name: shown_end(ended(client, "late"))[name] for name in ("phase", "reason", "started")})

    assert ends[0] == ends[1]


def test_deleted_pod_disappears_after_its_end(real, simulated):
    for client in (real, simulated):
        client.post(PODS, json=timed_pod("deleted", node_names(client)[0], seconds=600)).raise_for_status()
        until(lambda: client.get(f"{PODS}/deleted").json()["status"]["phase"] == "Running")  # noqa: B023

        marked = client.delete(f"{PODS}/deleted").json()

        assert (marked["metadata"]["deletionGracePeriodSeconds"], marked["status"]["phase"]) == (30, "Running")
        until(lambda: client.get(f"{PODS}/deleted").status_code == 404)  # noqa: B023


def test_watch_shows_the_same_life_of_a_pod(real, simulated):
    def story(client: httpx.Client) -> list[tuple[str, str]]:
        version = client.get(PODS).json()["metadata"]["resourceVersion"]
        client.post(PODS, json=timed_pod("watched", node_names(client)[0], seconds=1)).raise_for_status()
        ended(client, "watched")
        client.delete(f"{PODS}/watched")
        until(lambda: client.get(f"{PODS}/watched").status_code == 404)
        query = {"watch": "1", "resourceVersion": version, "fieldSelector": "metadata.name=watched"}
        lines = client.get(PODS, params={**query, "timeoutSeconds": "2"}).text.splitlines()
        events = [json.loads(line) for line in lines]
        shown = [(one["type"], one["object"]["status"]["phase"]) for one in events]
        return [pair for place, pair in enumerate(shown) if not place or pair != shown[place - 1]]

    assert story(real) == story(simulated)
