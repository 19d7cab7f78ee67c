"""Pods on nodes: placement, phases, ends, GPUs, gangs, restarts and graceful deletion."""

from __future__ import annotations

import pytest

from scheduling.simulation.kubernetes.api.requests import MERGE_PATCH
from scheduling.simulation.kubernetes.objects import condition_of

from .make import client, container, job, pod

PODS = "/api/v1/namespaces/default/pods"
A, B = "kalos-001", "kalos-002"


def phases(api) -> list[str]:
    return [one["status"]["phase"] for one in api.pods()]


def container_state(found) -> dict:
    return found["status"]["containerStatuses"][0]["state"]


def test_pod_goes_through_all_its_phases():
    api = client()
    api.create_pod(node=A)

    assert container_state(api.after(0).pod()) == {"waiting": {"reason": "ContainerCreating"}}
    running = api.after(1).pod()
    assert (running["status"]["phase"], condition_of(running, "Ready")["status"]) == ("Running", "True")
    assert running["status"]["podIP"] and running["status"]["hostIP"]
    ended = api.after(100).pod()
    assert (ended["status"]["phase"], condition_of(ended, "Ready")["reason"]) == ("Succeeded", "PodCompleted")
    assert container_state(ended)["terminated"] == {
        "exitCode": 0,
        "reason": "Completed",
        "startedAt": "2027-01-15T08:00:01Z",
        "finishedAt": "2027-01-15T08:01:41Z",
        "containerID": container_state(ended)["terminated"]["containerID"],
    }


@pytest.mark.parametrize(
    ("end", "code", "reason"),
    [
        ("FAILED:3", 3, "Error"),
        ("FAILED:134", 134, "Error"),
        ("OUT_OF_MEMORY", 137, "OOMKilled"),
    ],
)
def test_failed_container_shows_its_exit_code_and_reason(end, code, reason):
    api = client()
    api.create_pod(node=A, seconds=5, end=end)

    ended = api.after(200).pod()

    assert ended["status"]["phase"] == "Failed"
    state = container_state(ended)["terminated"]
    assert (state["exitCode"], state["reason"]) == (code, reason)


@pytest.mark.parametrize(
    ("wanted", "reason", "message"),
    [
        ({"gpus": 3}, "UnexpectedAdmissionError", "Requested: 3, Available: 2, which is unexpected"),
        ({"gpus": 9}, "OutOfnvidia.com/gpu", "requested: 9, used: 6, capacity: 8"),
        ({"gpus": 1, "cpu": "1000"}, "OutOfcpu", "requested: 1000000"),
    ],
    ids=["devices held", "too few devices", "too few cores"],
)
def test_pod_that_does_not_fit_on_its_node_is_rejected(wanted, reason, message):
    api = client()
    api.create_pod("first", node=A, gpus=6)
    body = pod("second", node=A, gpus=wanted["gpus"])
    if cpu := wanted.get("cpu"):
        body["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu}
    api.call("POST", PODS, body)

    rejected = api.after(1).pod("second")["status"]

    assert (rejected["phase"], rejected["reason"], "containerStatuses" in rejected) == ("Failed", reason, False)
    assert message in rejected["message"]
    assert api.pod("first")["status"]["phase"] == "Running"


def test_pod_that_names_a_node_with_another_label_is_rejected():
    api = client()
    api.create_pod(node=A, nodeSelector={"kubernetes.io/hostname": B})

    assert api.after(1).pod()["status"]["reason"] == "NodeAffinity"


def test_pod_that_names_a_node_ignores_a_cordon():
    api = client()
    api.call("PATCH", f"/api/v1/nodes/{A}", {"spec": {"unschedulable": True}}, patch_type=MERGE_PATCH)
    api.create_pod(node=A)

    assert api.after(2).pod()["status"]["phase"] == "Running"


def test_scheduler_spreads_pods_and_explains_what_does_not_fit():
    api = client()
    for number in range(4):
        api.create_pod(f"p{number}", gpus=8)
    api.create_pod("waiting", gpus=8)

    api.after(2)

    assert {api.pod(f"p{number}")["spec"]["nodeName"] for number in range(4)} == {f"kalos-00{i}" for i in range(1, 5)}
    scheduled = condition_of(api.pod("waiting"), "PodScheduled")
    assert (scheduled["status"], scheduled["reason"]) == ("False", "Unschedulable")
    assert scheduled["message"] == "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
    assert ("FailedScheduling", scheduled["message"]) in api.events()
    assert api.after(100).pod("waiting")["spec"]["nodeName"]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"nodeSelector": {"zone": "x"}}, "4 node(s) didn't match Pod's node affinity/selector"),
        ({"containers": [container(gpus=9)]}, "4 Insufficient nvidia.com/gpu"),
        ({"containers": [{**container(), "resources": {"limits": {"cpu": "129"}}}]}, "4 Insufficient cpu"),
    ],
)
def test_scheduler_names_the_obstacle(spec, reason):
    api = client()
    api.create_pod(**spec)

    assert reason in condition_of(api.after(1).pod(), "PodScheduled")["message"]


def test_scheduler_respects_taints_and_cordons():
    api = client()
    taint = {"spec": {"taints": [{"key": "team", "value": "nlp", "effect": "NoSchedule"}]}}
    for name in ("kalos-001", "kalos-002", "kalos-003"):
        api.call("PATCH", f"/api/v1/nodes/{name}", taint, patch_type=MERGE_PATCH)
    api.call("PATCH", "/api/v1/nodes/kalos-004", {"spec": {"unschedulable": True}}, patch_type=MERGE_PATCH)
    api.create_pod("plain", gpus=1)
    api.create_pod("tolerant", gpus=1, tolerations=[{"key": "team", "operator": "Exists"}])

    api.after(1)

    assert "nodeName" not in api.pod("plain")["spec"]
    assert api.pod("tolerant")["spec"]["nodeName"] in ("kalos-001", "kalos-002", "kalos-003")
    cordoned = api.call("GET", "/api/v1/nodes/kalos-004")
    assert cordoned["spec"]["taints"][0]["key"] == "node.kubernetes.io/unschedulable"


def test_gated_pod_is_scheduled_when_its_gates_are_removed():
    api = client()
    api.create_pod(schedulingGates=[{"name": "acme/gang"}])
    gated = condition_of(api.after(5).pod(), "PodScheduled")
    assert (gated["reason"], "nodeName" in api.pod()["spec"]) == ("SchedulingGated", False)
    refused = api.refusal("POST", f"{PODS}/train/binding", {"target": {"kind": "Node", "name": A}})
    assert (refused.code, "non-empty .spec.schedulingGates" in refused.message) == (409, True)

    api.call("PATCH", f"{PODS}/train", {"spec": {"schedulingGates": []}}, patch_type=MERGE_PATCH)

    assert api.after(2).pod()["status"]["phase"] == "Running"


def test_pod_of_another_scheduler_waits_for_its_binding():
    api = client()
    api.create_pod(schedulerName="acme")
    assert "nodeName" not in api.after(5).pod()["spec"]

    api.call("POST", f"{PODS}/train/binding", {"target": {"kind": "Node", "name": B}})

    placed = condition_of(api.pod(), "PodScheduled")
    assert placed["status"] == "True" and api.after(2).pod()["status"]["phase"] == "Running"
    assert api.refusal("POST", f"{PODS}/train/binding", {"target": {"name": A}}).code == 409


def test_gated_pod_of_another_scheduler_says_so_and_keeps_its_gates_apart():
    api = client()
    gates = [{"name": "acme/gang"}, {"name": "acme/staging"}]
    created = api.create_pod(schedulerName="acme", schedulingGates=gates)
    assert condition_of(created, "PodScheduled")["reason"] == "SchedulingGated"

    api.call("PATCH", f"{PODS}/train", {"spec": {"schedulingGates": gates[:1]}}, patch_type=MERGE_PATCH)
    refused = api.refusal("PATCH", f"{PODS}/train", {"spec": {"schedulingGates": gates}}, patch_type=MERGE_PATCH)

    assert "found new scheduling gate 'acme/staging'" in refused.message
    assert api.refusal("POST", f"{PODS}/train/binding", {"target": {"name": A}}).code == 409
    api.call("PATCH", f"{PODS}/train", {"spec": {"schedulingGates": None}}, patch_type=MERGE_PATCH)
    assert "nodeName" not in api.after(60).pod()["spec"]
    api.call("POST", f"{PODS}/train/binding", {"target": {"name": A}})
    assert api.after(2).pod()["status"]["phase"] == "Running"


def test_pod_cannot_name_a_node_while_it_has_gates():
    refused = client().refusal("POST", PODS, pod(node=A, schedulingGates=[{"name": "acme/gang"}]))

    assert "cannot be set until all schedulingGates have been cleared" in refused.message


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({"nodeSelector": {"rack": "r1", "leaf": "l1"}}, True),
        ({"nodeSelector": {"rack": "r2"}}, False),
        ({"nodeSelector": {"rack": None}}, False),
    ],
    ids=["added", "changed", "removed"],
)
def test_placement_of_a_gated_pod_may_become_tighter_only(change, allowed):
    api = client()
    gated = {"schedulingGates": [{"name": "acme/gang"}], "nodeSelector": {"rack": "r1"}}
    api.create_pod(schedulerName="acme", **gated)

    if allowed:
        api.call("PATCH", f"{PODS}/train", {"spec": change}, patch_type=MERGE_PATCH)
    else:
        assert api.refusal("PATCH", f"{PODS}/train", {"spec": change}, patch_type=MERGE_PATCH).code == 422


@pytest.mark.parametrize(
    ("binding", "code"),
    [
        ({"target": {"kind": "Pod", "name": A}}, 422),
        ({"target": {}}, 400),
        ({"metadata": {"uid": "another"}, "target": {"name": A}}, 409),
    ],
    ids=["to a pod", "to nothing", "of another pod"],
)
def test_wrong_binding_is_refused(binding, code):
    api = client()
    api.create_pod(schedulerName="acme")

    assert api.refusal("POST", f"{PODS}/train/binding", binding).code == code
    assert "nodeName" not in api.pod()["spec"]


def test_binding_adds_its_annotations_and_as_a_dry_run_changes_nothing():
    api = client()
    api.create_pod(schedulerName="acme")
    binding = {"metadata": {"annotations": {"acme/rank": "3"}}, "target": {"kind": "Node", "name": A}}

    api.call("POST", f"{PODS}/train/binding", binding, dryRun="All")
    assert "nodeName" not in api.pod()["spec"]
    api.call("POST", f"{PODS}/train/binding", binding)

    assert (api.pod()["spec"]["nodeName"], api.pod()["metadata"]["annotations"]) == (A, {"acme/rank": "3"})


def test_pod_that_is_being_deleted_cannot_be_placed():
    api = client()
    api.create_pod(schedulerName="acme", metadata={"finalizers": ["example/wait"]})
    api.call("DELETE", f"{PODS}/train")

    refused = api.refusal("POST", f"{PODS}/train/binding", {"target": {"name": A}})

    assert (refused.code, "is being deleted" in refused.message) == (409, True)


def test_image_that_cannot_be_pulled_is_tried_again():
    api = client()
    api.create_pod(node=A, image="registry.invalid/train:1")

    assert container_state(api.after(2).pod())["waiting"]["reason"] == "ErrImagePull"
    assert container_state(api.after(10).pod())["waiting"]["reason"] == "ImagePullBackOff"
    assert phases(api) == ["Pending"]


def test_container_that_fails_is_restarted_with_growing_delays():
    api = client()
    api.create_pod(node=A, seconds=1, end="FAILED:1", restartPolicy="OnFailure")

    restarts = []
    for _ in range(40):
        api.after(2)
        status = api.pod()["status"]["containerStatuses"][0]
        restarts.append(status["restartCount"])

    assert restarts[-1] >= 3 and restarts == sorted(restarts)
    assert any("Back-off restarting failed container" in message for _, message in api.events())
    assert api.pod()["status"]["phase"] == "Running"


def test_pod_that_is_always_restarted_is_a_service_that_does_not_end():
    api = client()
    body = pod(node=A, restartPolicy="Always", containers=[{"name": "web", "image": "web:1"}])
    api.call("POST", PODS, body)

    assert api.after(86_400).pod()["status"]["phase"] == "Running"


def test_deadline_of_a_pod_fails_it():
    api = client()
    api.create_pod(node=A, activeDeadlineSeconds=30)

    failed = api.after(35).pod()

    assert (failed["status"]["phase"], failed["status"]["reason"]) == ("Failed", "DeadlineExceeded")


# Deleting


def test_deleted_pod_ends_gracefully_and_releases_its_gpus():
    api = client()
    api.create_pod(node=A)
    api.after(5)

    marked = api.call("DELETE", f"{PODS}/train")

    assert marked["metadata"]["deletionGracePeriodSeconds"] == 30
    assert marked["metadata"]["deletionTimestamp"] == "2027-01-15T08:00:35Z"
    assert api.pod()["status"]["phase"] == "Running"
    assert api.after(1).pod() is None
    api.create_pod("next", node=A)
    assert api.after(2).pod("next")["status"]["phase"] == "Running"


@pytest.mark.parametrize(
    ("hook", "gone_after"),
    [
        ({"sleep": {"seconds": 20}}, 21),
        ({"exec": {"command": ["sh", "-c", "sleep 5"]}}, 6),
        ({"sleep": {"seconds": 90}}, 31),
    ],
    ids=["sleep", "command", "longer than the grace period"],
)
def test_hook_before_the_stop_delays_it_within_the_grace_period(hook, gone_after):
    api = client()
    body = pod(node=A, seconds=1000)
    body["spec"]["containers"][0]["lifecycle"] = {"preStop": hook}
    api.call("POST", PODS, body)
    api.after(5).call("DELETE", f"{PODS}/train")

    assert container_state(api.after(gone_after - 2).pod()).keys() == {"running"}
    assert api.after(2).pod() is None


def test_pod_without_a_node_is_deleted_at_once():
    api = client()
    api.create_pod(gpus=9)

    api.call("DELETE", f"{PODS}/train")

    assert api.pod() is None


def test_deletion_by_force_kills_the_program():
    api = client()
    api.create_pod(node=A)
    api.after(5).call("DELETE", f"{PODS}/train", {"gracePeriodSeconds": 0})

    assert (api.pod(), list(api.after(1).cluster.executions)) == (None, [])
    api.create_pod("next", node=A)
    assert api.after(2).pod("next")["status"]["phase"] == "Running"


def test_second_pod_with_the_same_name_does_not_inherit_the_state_of_the_first():
    api = client()
    api.create_pod(node=A, seconds=1)
    api.after(5).call("DELETE", f"{PODS}/train")
    api.create_pod(node=A)

    assert api.after(0).pod()["status"]["phase"] == "Pending"
    assert api.after(2).pod()["status"]["phase"] == "Running"


# Gangs


def gang(nodes=(A, B), **more) -> dict:
    spec = {"completions": len(nodes), "parallelism": len(nodes), "completionMode": "Indexed", "backoffLimit": 0}
    return job("gang", env={"NNODES": str(len(nodes))}, **{**spec, **more})


def create_gang(api, **more):
    api.call("POST", "/apis/batch/v1/namespaces/default/jobs", gang(**more))
    return api.after(3)


def test_gang_runs_one_program_that_ends_for_all_its_pods():
    api = client()
    create_gang(api, seconds=50, end="FAILED:1")

    executions = list(api.cluster.executions)
    api.after(60)

    assert [len(one.pods) for one in executions] == [2]
    assert phases(api) == ["Failed", "Failed"]


def test_program_of_a_gang_begins_when_all_its_pods_run():
    api = client()
    create_gang(api, nodes=(A, B, "kalos-003", "kalos-004", "kalos-005"))

    assert phases(api).count("Running") == 4
    assert list(api.cluster.executions) == []
    assert phases(api.after(200)).count("Running") == 4


def test_loss_of_one_pod_fails_the_rest_of_its_gang():
    api = client()
    create_gang(api, seconds=500, backoffLimit=6)
    lost, other = api.pods()
    api.call("DELETE", f"{PODS}/{lost['metadata']['name']}")

    api.after(1)
    assert api.pod(other["metadata"]["name"])["status"]["phase"] == "Running"
    api.after(5)

    state = container_state(api.pod(other["metadata"]["name"]))["terminated"]
    assert (state["exitCode"], state["reason"]) == (1, "Error")
