"""The simulated cluster as a process: HTTP, watches, logs, permissions, and durability across kill -9."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import islice

import httpx
import pytest

from scheduling.simulation.kubernetes.objects import seconds_of
from scheduling.simulation.kubernetes.options import parse_options
from scheduling.simulation.machines.effects import EffectsFile, PendingEffects
from scheduling.simulation.machines.values import SimulatedJob, SimulatedJobRequest
from tests.chaos.effects import FILE_NAME, read_effects
from tests.patience import until

from .make import job, pod
from .running import KubernetesProcess

PODS, JOBS = "/api/v1/namespaces/default/pods", "/apis/batch/v1/namespaces/default/jobs"
MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with KubernetesProcess(tmp_path_factory.mktemp("kalos"), "--nodes", "4") as process:
        yield process


def config(name: str, **labels: str) -> dict:
    return {"metadata": {"name": name, "labels": labels}, "data": {"a": "1"}}


def phase(cluster: KubernetesProcess, name: str) -> str:
    return cluster.call("GET", f"{PODS}/{name}")["status"]["phase"]


def has_phase(cluster: KubernetesProcess, name: str, wanted: str) -> None:
    until(lambda: phase(cluster, name) == wanted, what=f"{name} is {wanted}")


def remove(cluster: KubernetesProcess, name: str) -> None:
    cluster.call("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})


# Requests


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/api", "APIVersions"),
        ("/apis", "APIGroupList"),
        ("/api/v1", "APIResourceList"),
        ("/apis/batch", "APIGroup"),
        ("/apis/batch/v1", "APIResourceList"),
        ("/apis/policy/v1", "APIResourceList"),
    ],
)
def test_discovery(cluster, path, kind):
    assert cluster.call("GET", path)["kind"] == kind


def test_every_group_of_the_discovery_lists_its_resources(cluster):
    for group in cluster.call("GET", "/apis")["groups"]:
        version = group["preferredVersion"]["groupVersion"]
        assert cluster.call("GET", f"/apis/{version}")["groupVersion"] == version
        assert cluster.call("GET", f"/openapi/v3/apis/{version}")["openapi"] == "3.0.0"


@pytest.mark.parametrize(
    ("method", "path", "content", "headers", "status"),
    [
        ("GET", "/apis/batch/v9", b"", {}, 404),
        ("GET", "/api/v1/nothing", b"", {}, 404),
        ("GET", f"{PODS}/nothing", b"", {}, 404),
        ("POST", PODS, b"{", {"Content-Type": "application/json"}, 400),
        ("POST", PODS, b"[" * 100_000, {"Content-Type": "application/json"}, 400),
        ("POST", PODS, b"{}", {"Content-Type": "text/plain"}, 415),
        ("POST", PODS, b" " * (5 << 20), {"Content-Type": "application/json"}, 413),
        ("PATCH", f"{PODS}/nothing", b"{}", {"Content-Type": "application/json"}, 415),
        ("GET", PODS, b"", {"Authorization": "Bearer wrong"}, 401),
        ("GET", PODS, b"", {"Authorization": ""}, 401),
        ("GET", PODS, b"", {"Origin": "https://evil.example"}, 403),
        ("POST", "/faults", b'{"kind":"none"}', {"Content-Type": "application/json"}, 400),
        ("POST", "/machines/none", b'{"action":"repair"}', {"Content-Type": "application/json"}, 404),
        ("POST", "/machines/kalos-001", b'{"action":"explode"}', {"Content-Type": "application/json"}, 400),
    ],
    ids=lambda value: str(value)[:24] if isinstance(value, str | int) else "",
)
def test_wrong_request_is_refused_with_a_status(cluster, method, path, content, headers, status):
    response = cluster.client.request(method, path, content=content, headers=headers)

    assert response.status_code == status
    if status != 403:
        assert response.json()["kind"] == "Status" and response.json()["code"] == status


def test_unknown_field_is_warned_about_in_a_header(cluster):
    response = cluster.client.post(MAPS, json={**config("warned"), "dta": {}})

    assert response.headers["Warning"] == "299 - \"unknown field 'dta'\""


def test_concurrent_updates_lose_nothing(cluster):
    cluster.call("POST", MAPS, config("counter"))

    def add(number: int) -> None:
        while True:
            found = cluster.call("GET", f"{MAPS}/counter")
            found["data"][f"key{number}"] = "x"
            if cluster.client.put(f"{MAPS}/counter", json=found).status_code == 200:
                return

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(12)))

    assert len(cluster.call("GET", f"{MAPS}/counter")["data"]) == 13


def test_service_account_may_do_what_its_role_says(cluster):
    role = {"metadata": {"name": "reader"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]}
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": "default"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    binding = {"metadata": {"name": "reader"}, "roleRef": reference, "subjects": [subject]}
    root = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
    cluster.call("POST", f"{root}/roles", role)
    cluster.call("POST", f"{root}/rolebindings", binding)
    account = "/api/v1/namespaces/default/serviceaccounts/default/token"
    token = cluster.call("POST", account, {"spec": {}})["status"]["token"]
    headers = {"Authorization": f"Bearer {token}"}

    answers = [
        cluster.client.get(path, params=query, headers=headers).status_code
        for path, query in (
            (PODS, {}),
            (PODS, {"watch": "1", "timeoutSeconds": "1"}),
            (f"{PODS}/x/log", {}),
            ("/faults", {}),
        )
    ]

    assert answers == [200, 403, 403, 403]


# Watches


def test_watch_shows_what_happens_after_a_list(cluster):
    version = cluster.call("GET", MAPS)["metadata"]["resourceVersion"]
    cluster.call("POST", MAPS, config("seen", a="1"))
    cluster.call("PUT", f"{MAPS}/seen", config("seen", a="2"))
    cluster.call("DELETE", f"{MAPS}/seen")

    events = list(islice(cluster.watch(MAPS, resourceVersion=version, fieldSelector="metadata.name=seen"), 3))

    assert [(one["type"], one["object"]["metadata"]["labels"]["a"]) for one in events] == [
        ("ADDED", "1"),
        ("MODIFIED", "2"),
        ("DELETED", "2"),
    ]
    versions = [int(one["object"]["metadata"]["resourceVersion"]) for one in events]
    assert versions == sorted(set(versions)) and versions[0] > int(version)


def test_watch_waits_for_changes(cluster):
    version = cluster.call("GET", MAPS)["metadata"]["resourceVersion"]
    later = threading.Timer(0.5, lambda: cluster.call("POST", MAPS, config("later")))
    later.start()

    event = next(iter(cluster.watch(MAPS, resourceVersion=version)))

    later.join()
    assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "later")
    assert event["object"]["kind"] == "ConfigMap"


def test_watch_without_a_version_begins_with_what_exists(cluster):
    cluster.call("POST", MAPS, config("present", here="yes"))

    events = list(cluster.watch(MAPS, labelSelector="here=yes", timeoutSeconds="1"))

    assert [(one["type"], one["object"]["metadata"]["name"]) for one in events] == [("ADDED", "present")]


def test_object_that_is_no_longer_selected_is_a_deletion_for_the_watch(cluster):
    cluster.call("POST", MAPS, config("moving", side="left"))
    version = cluster.call("GET", MAPS)["metadata"]["resourceVersion"]
    cluster.call("PUT", f"{MAPS}/moving", config("moving", side="right"))
    cluster.call("PUT", f"{MAPS}/moving", config("moving", side="left"))

    events = list(islice(cluster.watch(MAPS, resourceVersion=version, labelSelector="side=left"), 2))

    assert [one["type"] for one in events] == ["DELETED", "ADDED"]


def test_watch_ends_with_a_bookmark(cluster):
    events = list(cluster.watch(MAPS, resourceVersion="0", labelSelector="none=x", timeoutSeconds="1",
                                allowWatchBookmarks="true"))  # fmt: skip

    assert [one["type"] for one in events] == ["BOOKMARK"]
    assert int(events[0]["object"]["metadata"]["resourceVersion"]) > 0


def test_watch_of_a_compacted_version_ends_with_410(cluster):
    version = cluster.call("GET", MAPS)["metadata"]["resourceVersion"]
    cluster.call("POST", MAPS, config("compacted"))
    cluster.call("POST", "/compact")

    events = list(cluster.watch(MAPS, resourceVersion=version))

    assert [(one["type"], one["object"]["code"], one["object"]["reason"]) for one in events] == [
        ("ERROR", 410, "Expired")
    ]


def test_watch_of_a_future_version_is_refused(cluster):
    assert cluster.client.get(MAPS, params={"watch": "1", "resourceVersion": "999999999"}).status_code == 504


# Logs


@pytest.fixture
def training(cluster):
    cluster.call("POST", PODS, pod("training", node="kalos-001", seconds=600))
    has_phase(cluster, "training", "Running")
    until(lambda: "starting training loop" in cluster.client.get(f"{PODS}/training/log").text)
    yield "training"
    remove(cluster, "training")


def test_log_of_a_training_has_its_loss(cluster, training):
    text = until(lambda: (found := cluster.client.get(f"{PODS}/{training}/log").text).count("loss") and found)

    assert "process group formed: backend nccl, world size 8" in text
    assert "job_id" not in text and "stdout F" not in text


def test_log_options(cluster, training):
    def read(**query: str) -> str:
        return cluster.client.get(f"{PODS}/{training}/log", params=query).text

    lines = read().splitlines()
    assert read(limitBytes="10") == lines[0][:10]
    stamped = read(timestamps="true").splitlines()
    stamp, _, text = stamped[0].partition(" ")
    assert (text, datetime.fromisoformat(stamp).tzinfo) == (lines[0], UTC)
    since = stamped[-1].partition(" ")[0]
    assert 0 < len(read(sinceTime=since).splitlines()) < len(lines)
    future = (datetime.now(UTC) + timedelta(hours=1)).isoformat().replace("+00:00", "Z")
    assert read(sinceTime=future) == ""


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"container": "none"}, 400),
        ({"limitBytes": "x"}, 400),
        ({"sinceTime": "yesterday"}, 400),
    ],
    ids=str,
)
def test_wrong_log_options_are_refused(cluster, training, query, status):
    assert cluster.client.get(f"{PODS}/{training}/log", params=query).status_code == status


def test_followed_log_ends_with_the_container(cluster):
    cluster.call("POST", PODS, pod("short", node="kalos-002", seconds=3))
    has_phase(cluster, "short", "Running")

    with cluster.client.stream("GET", f"{PODS}/short/log", params={"follow": "true"}) as response:
        text = "".join(response.iter_text())

    assert text.endswith("all done\n")
    assert text == cluster.client.get(f"{PODS}/short/log").text
    remove(cluster, "short")
    assert cluster.client.get(f"{PODS}/short/log").status_code == 404


def test_log_of_a_pod_that_has_not_started_is_refused_with_the_reason(cluster):
    cluster.call("POST", PODS, pod("unplaced", gpus=9))
    cluster.call("POST", PODS, pod("unpulled", node="kalos-002", image="registry.invalid/x"))
    reason = "trying and failing to pull image"

    assert cluster.client.get(f"{PODS}/unplaced/log").status_code == 204
    until(lambda: reason in cluster.client.get(f"{PODS}/unpulled/log").json()["message"])
    for name in ("unplaced", "unpulled"):
        remove(cluster, name)


def test_unknown_group_is_not_found(cluster):
    assert cluster.client.get("/apis/none.example/v1/things").status_code == 404


def test_log_of_a_silent_kubelet_is_an_error(cluster, training):
    cluster.call("POST", "/machines/kalos-001", {"action": "stop-kubelet"})

    response = cluster.client.get(f"{PODS}/{training}/log")

    cluster.call("POST", "/machines/kalos-001", {"action": "start-kubelet"})
    assert (response.status_code, "connection refused" in response.json()["message"]) == (500, True)


def test_each_pod_of_a_gang_has_its_own_log(cluster):
    plan = {"SIM_END": "FAILED:1:cuda_error", "SIM_DURATION_S": "4"}
    cluster.call("POST", "/plans", {"plans": {"gangkey": plan}})
    body = job("gang", gpus=8, completions=2, parallelism=2, completionMode="Indexed", backoffLimit=0)
    spec = body["spec"]["template"]["spec"]
    spec["containers"][0]["env"] = [{"name": "NNODES", "value": "2"}, {"name": "ACME_KIND", "value": "pretrain"}]
    body["spec"]["template"]["metadata"] = {"annotations": {"acme/attempt": "me:gangkey.1"}}
    cluster.call("POST", JOBS, body)

    until(lambda: cluster.call("GET", f"{JOBS}/gang")["status"].get("failed"))

    names = [one["metadata"]["name"] for one in cluster.call("GET", PODS, labelSelector="job-name=gang")["items"]]
    texts = [cluster.client.get(f"{PODS}/{name}/log").text for name in names]
    assert "process group formed: backend nccl, world size 16" in texts[0]
    assert "rank 8 of 16 is ready" in texts[1] and "process group formed" not in texts[1]
    assert "ChildFailedError" in texts[0] + texts[1] and "srun:" not in texts[0] + texts[1]
    effects = (cluster.state / "job_effects.jsonl").read_text()
    assert effects.count('"key":"me:gangkey.1"') == 2
    cluster.call("DELETE", f"{JOBS}/gang", {"propagationPolicy": "Background"})


# Faults


def test_injected_fault_shows_in_the_node_the_kernel_log_and_the_list(cluster):
    fault = cluster.call("POST", "/faults", {"kind": "off_bus", "node": "kalos-003", "gpu": 5})["fault"]

    assert (fault["node"], fault["gpu"]) == ("kalos-003", 5)
    node = cluster.call("GET", "/api/v1/nodes/kalos-003")["status"]
    assert node["allocatable"]["nvidia.com/gpu"] == "7"
    assert "GPU has fallen off the bus" in cluster.client.get("/kernel/kalos-003").text
    assert [one["number"] for one in cluster.call("GET", "/faults")["faults"]] == [fault["number"]]
    cluster.call("POST", "/machines/kalos-003", {"action": "repair"})
    assert cluster.call("GET", "/api/v1/nodes/kalos-003")["status"]["allocatable"]["nvidia.com/gpu"] == "8"


def test_node_with_a_silent_kubelet_becomes_not_ready(cluster):
    cluster.call("POST", "/machines/kalos-004", {"action": "stop-kubelet"})

    def ready() -> str:
        conditions = cluster.call("GET", "/api/v1/nodes/kalos-004")["status"]["conditions"]
        return next(one["status"] for one in conditions if one["type"] == "Ready")

    until(lambda: ready() == "Unknown")
    cluster.call("POST", "/machines/kalos-004", {"action": "start-kubelet"})
    until(lambda: ready() == "True")


# Restarts


def test_killed_server_loses_nothing_that_it_confirmed(tmp_path):
    with KubernetesProcess(tmp_path / "kalos", "--nodes", "2") as cluster:
        cluster.call("POST", PODS, pod("long", node="kalos-001", seconds=600))
        cluster.call("POST", PODS, pod("short", node="kalos-002", seconds=1))
        has_phase(cluster, "long", "Running")
        version = cluster.call("GET", PODS)["metadata"]["resourceVersion"]
        before = cluster.client.get(f"{PODS}/long/log").text
        names = [f"m{number}" for number in range(20)]
        for name in names:
            cluster.call("POST", MAPS, config(name))

        cluster.kill()
        cluster.start()

        assert [one["metadata"]["name"] for one in cluster.call("GET", MAPS)["items"]] == sorted(names)
        assert phase(cluster, "long") == "Running"
        has_phase(cluster, "short", "Succeeded")
        assert int(cluster.call("GET", PODS)["metadata"]["resourceVersion"]) > int(version)
        events = list(cluster.watch(PODS, resourceVersion=version, timeoutSeconds="1"))
        assert [one["object"].get("code") for one in events] == [410]
        longer = until(lambda: (text := cluster.client.get(f"{PODS}/long/log").text) != before and text)
        assert longer.startswith(before) and len(longer.splitlines()) == len(set(longer.splitlines()))
        assert sum(effect.starts for effect in read_effects(cluster.state / FILE_NAME)) == 2


def test_effects_of_a_stored_change_are_written_again_after_a_kill(tmp_path):
    with KubernetesProcess(tmp_path / "kalos", "--nodes", "1") as cluster:
        cluster.call("POST", PODS, pod("short", node="kalos-001", seconds=0.5))
        has_phase(cluster, "short", "Succeeded")
        file = cluster.state / FILE_NAME
        until(lambda: len(read_effects(file)) == 2)
        before = read_effects(file)
        cluster.kill()
        file.write_text(file.read_text().splitlines(keepends=True)[0])  # killed before it had appended the end

        cluster.start()

        assert read_effects(file) == before


def test_effects_of_a_change_that_is_not_stored_are_not_written(tmp_path):
    recorded = PendingEffects()
    file = EffectsFile(tmp_path)
    request = SimulatedJobRequest(name="t", user="ada", account="vision", comment="acme:me:k.1")
    recorded.record_start(SimulatedJob(id=7, request=request, submitted_at=0.0), at=1.0)

    assert read_effects(tmp_path / FILE_NAME) == []
    file.append(recorded.take())
    assert [effect.job_id for effect in read_effects(tmp_path / FILE_NAME)] == [7]
    assert recorded.take() == ()


def test_second_server_on_the_same_state_does_not_start(cluster):
    second = KubernetesProcess(cluster.state)
    second.token = cluster.token

    with pytest.raises(AssertionError, match="another server uses"):
        second.start()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--speed", "0"], "--speed: 0.0 is not greater than 0"),
        (["--lease-s", "-1"], "--lease-s: -1.0 is not greater than 0"),
        (["--token-file", "/nonexistent"], "--token-file: /nonexistent cannot be read"),
        (["--clock-offset-s", "1e9"], "--clock-offset-s: 1000000000.0 is not between"),
        (["--execute"], "--execute: everyone who can reach the port could run commands here"),
    ],
    ids=str,
)
def test_invalid_option_is_explained(arguments, message):
    with pytest.raises(SystemExit, match=message):
        parse_options(["--state", "/tmp/x", "--port", "0", *arguments])


def test_port_that_is_used_is_explained(cluster, tmp_path):
    other = KubernetesProcess(tmp_path / "other")
    other.port = cluster.port

    with pytest.raises(AssertionError, match=r"--port: 127\.0\.0\.1:\d+ cannot be used"):
        other.start()


def test_health_needs_no_token(cluster):
    assert httpx.get(f"{cluster.address}/readyz").text == "ok"


def test_old_cluster_with_job_sets_shows_both_in_its_discovery(tmp_path):
    with KubernetesProcess(tmp_path / "old", "--nodes", "1", "--kubernetes", "1.20", "--job-sets") as process:
        groups = {one["preferredVersion"]["groupVersion"] for one in process.call("GET", "/apis")["groups"]}
        version = process.call("GET", "/version")
        sets = process.call("GET", "/apis/jobset.x-k8s.io/v1alpha2")["resources"]

    assert (version["minor"], version["gitVersion"]) == ("20", "v1.20.2-simulated")
    assert {"policy/v1beta1", "jobset.x-k8s.io/v1alpha2"} <= groups and "policy/v1" not in groups
    assert [one["name"] for one in sets] == ["jobsets", "jobsets/status"]


def test_cut_watch_breaks_in_the_middle_of_an_object(cluster):
    version = cluster.call("GET", PODS)["metadata"]["resourceVersion"]
    query = {"watch": "1", "resourceVersion": version}
    received = b""
    with cluster.client.stream("GET", PODS, params=query) as response, pytest.raises(httpx.RemoteProtocolError):
        until(lambda: cluster.call("DELETE", "/watches")["watches"])
        for part in response.iter_raw():
            received += part

    assert received.startswith(b'{"type":"BOOKMARK","object":{') and not received.endswith(b"}\n")
    again = list(cluster.watch(PODS, resourceVersion=version, timeoutSeconds="1", allowWatchBookmarks="true"))
    assert [one["type"] for one in again][-1] == "BOOKMARK"


def test_clock_of_the_cluster_may_differ(tmp_path):
    with KubernetesProcess(tmp_path / "ahead", "--nodes", "1", "--clock-offset-s", "3600") as process:
        process.call("POST", PODS, pod(seconds=1))
        until(lambda: process.call("GET", f"{PODS}/train")["status"]["phase"] == "Succeeded")
        made = process.call("GET", f"{PODS}/train")["metadata"]["creationTimestamp"]

    assert 3500 < seconds_of(made) - time.time() <= 3600
