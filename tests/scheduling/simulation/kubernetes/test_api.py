"""Requests and answers: metadata, defaults, checks, updates, deletion, lists, permissions."""

from __future__ import annotations

import pytest

from scheduling.simulation.kubernetes.api.authorization import ADMIN
from scheduling.simulation.kubernetes.api.errors import ApiError
from scheduling.simulation.kubernetes.api.requests import JSON_PATCH, MERGE_PATCH, parse_request

from .make import NOW, client, container, job, pod

PODS, JOBS = "/api/v1/namespaces/default/pods", "/apis/batch/v1/namespaces/default/jobs"
MAPS = "/api/v1/namespaces/default/configmaps"


def config(name: str = "settings", **more) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **more}, "data": {"a": "1"}}


# Paths


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/api/v1/pods", ("list", "pods", "", "", "")),
        ("GET", "/api/v1/namespaces/x/pods/a", ("get", "pods", "x", "a", "")),
        ("GET", "/api/v1/namespaces/x/pods/a/log", ("get", "pods", "x", "a", "log")),
        ("GET", "/api/v1/namespaces/x", ("get", "namespaces", "", "x", "")),
        ("GET", "/api/v1/namespaces", ("list", "namespaces", "", "", "")),
        ("PUT", "/api/v1/namespaces/x/status", ("update", "namespaces", "", "x", "status")),
        ("PATCH", "/api/v1/nodes/n/status", ("patch", "nodes", "", "n", "status")),
        ("POST", "/apis/batch/v1/namespaces/x/jobs", ("create", "jobs.batch", "x", "", "")),
        ("DELETE", "/apis/batch/v1/namespaces/x/jobs", ("deletecollection", "jobs.batch", "x", "", "")),
        ("POST", "/api/v1/namespaces/x/pods/a/eviction", ("create", "pods", "x", "a", "eviction")),
    ],
)
def test_path_names_a_request(method, path, expected):
    request = parse_request(method, path, {})

    found = (request.verb, request.resource.id, request.namespace, request.name, request.subresource)
    assert found == expected


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/api/v1/nothing", 404),
        ("GET", "/api/v2/pods", 404),
        ("GET", "/apis/batch/v1beta1/jobs", 404),
        ("GET", "/api/v1/namespaces/x/nodes", 404),
        ("GET", "/api/v1/namespaces/x/pods/a/nothing", 404),
        ("GET", "/api/v1/pods/a", 404),
        ("POST", "/api/v1/namespaces/x/pods/a/log", 405),
        ("PUT", "/api/v1/namespaces/x/pods", 405),
        ("DELETE", "/api/v1/namespaces", 405),
    ],
)
def test_path_without_a_resource_is_refused(method, path, code):
    with pytest.raises(ApiError) as refused:
        parse_request(method, path, {})

    assert refused.value.code == code


# Creating


def test_new_object_gets_its_metadata():
    api = client()

    created = api.call("POST", MAPS, config())

    metadata = created["metadata"]
    assert (created["kind"], created["apiVersion"]) == ("ConfigMap", "v1")
    assert metadata["creationTimestamp"] == "2027-01-15T08:00:00Z"
    assert metadata["namespace"] == "default" and len(metadata["uid"]) == 36 and int(metadata["resourceVersion"]) > 1


def test_generated_names_differ_and_keep_their_beginning():
    api = client()
    body = {**config(), "metadata": {"generateName": "run-"}}

    names = {api.call("POST", MAPS, body)["metadata"]["name"] for _ in range(20)}

    assert len(names) == 20 and all(name.startswith("run-") and len(name) == 9 for name in names)


def test_same_seed_gives_the_same_objects():
    def story(seed: int) -> list:
        api = client(seed=seed)
        api.call("POST", JOBS, job(completions=2, parallelism=2))
        return api.after(5).pods()

    assert story(1) == story(1) != story(2)


def test_dry_run_stores_nothing():
    api = client()

    created = api.call("POST", MAPS, config(), dryRun="All")

    assert created["metadata"]["name"] == "settings"
    assert api.refusal("GET", f"{MAPS}/settings").code == 404


def test_pod_gets_the_defaults_of_kubernetes():
    created = client().create_pod()

    spec = created["spec"]
    assert (spec["terminationGracePeriodSeconds"], spec["schedulerName"], spec["dnsPolicy"]) == (
        30,
        "default-scheduler",
        "ClusterFirst",
    )
    assert spec["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "8"}
    assert spec["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    assert {one["key"]: one["tolerationSeconds"] for one in spec["tolerations"]} == {
        "node.kubernetes.io/not-ready": 300,
        "node.kubernetes.io/unreachable": 300,
    }
    assert created["status"] == {"phase": "Pending", "qosClass": "BestEffort"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (pod("Train"), 'Pod "Train" is invalid: metadata.name: Invalid value: "Train": a lowercase RFC 1123 subdomain'),
        ({**pod(), "spec": {"containers": []}}, 'Pod "train" is invalid: spec.containers: Required value'),
        (
            pod(node="kalos-001", schedulingGates=[{"name": "acme/gang"}]),
            "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared",
        ),
        (pod(restartPolicy="Sometimes"), 'spec.restartPolicy: Unsupported value: "Sometimes"'),
        (
            pod(containers=[{**container(), "resources": {"requests": {"nvidia.com/gpu": 1}}}]),
            "Limit must be set for non overcommitable resources",
        ),
        (
            pod(containers=[{**container(), "resources": {"limits": {"nvidia.com/gpu": "0.5"}}}]),
            'spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: "0.5": must be an integer',
        ),
        (pod(containers=[container(), container()]), 'spec.containers[1].name: Duplicate value: "main"'),
        (pod(metadata={"labels": {"a": "not a value"}}), "a valid label must be an empty string"),
        (pod(activeDeadlineSeconds=0), "spec.activeDeadlineSeconds: Invalid value: 0"),
    ],
    ids=lambda value: value[:40].replace(" ", "-") if isinstance(value, str) else "",
)
def test_invalid_pod_is_refused_with_its_field(body, message):
    refused = client().refusal("POST", PODS, body)

    assert (refused.code, refused.reason) == (422, "Invalid")
    assert message in refused.message
    assert refused.body()["details"]["causes"][0]["field"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (pod(containers=[{**container(), "resources": {"limits": {"cpu": "many"}}}]), "limits[cpu]"),
        (pod(tolerations="all"), "spec.tolerations"),
        (pod(nodeSelector={"a": 1}), "spec.nodeSelector"),
        (pod(affinity=[1]), "spec.affinity"),
        (pod(activeDeadlineSeconds="soon"), "spec.activeDeadlineSeconds"),
        (pod(metadata={"labels": {"a": 1}}), "metadata.labels"),
        (pod(containers=[{**container(), "command": [1]}]), "spec.containers[0].command"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_value_of_a_wrong_type_cannot_be_decoded(body, field):
    refused = client().refusal("POST", PODS, body)

    assert (refused.code, field in refused.message) == (400, True), refused.message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (job(completionMode="Indexed"), ""),
        (job(completionMode="Indexed", parallelism=2), "spec.completions: Required value: when completion mode"),
        (job(pod_spec={"restartPolicy": "Always"}), "spec.template.spec.restartPolicy: Required value: valid values"),
        (job(completions=-1), "spec.completions: Invalid value: -1: must be greater than or equal to 0"),
        (job(suspend="yes"), "spec.suspend: Invalid value"),
    ],
    ids=["valid", "no-completions", "restart-policy", "negative", "suspend"],
)
def test_invalid_job_is_refused_with_its_field(body, message):
    api = client()
    if not message:
        assert api.call("POST", JOBS, body)["spec"]["completions"] == 1
    else:
        assert message in api.refusal("POST", JOBS, body).message


@pytest.mark.parametrize(
    ("path", "body", "code", "message"),
    [
        (MAPS, [], 400, "must be a JSON object"),
        (MAPS, {**config(), "kind": "Secret"}, 400, "Secret in version v1 cannot be handled as a ConfigMap"),
        (MAPS, {**config(), "apiVersion": "v2"}, 400, "does not match the expected API version (v1)"),
        (MAPS, {**config(), "metadata": []}, 422, "metadata.name: Required value"),
        (MAPS, {**config(), "metadata": "x"}, 400, "metadata"),
        (MAPS, config(namespace="other"), 400, "the namespace of the provided object does not match"),
        (MAPS, config(resourceVersion="3"), 500, "resourceVersion should not be set"),
        ("/api/v1/namespaces/none/configmaps", config(), 404, 'namespaces "none" not found'),
        (PODS, {"metadata": {"name": "a"}, "spec": []}, 422, "spec.containers: Required value"),
        (PODS, {"metadata": {"name": "a"}, "spec": "x"}, 400, "spec"),
    ],
    ids=lambda value: "" if isinstance(value, list | dict) else str(value)[:30],
)
def test_malformed_body_is_refused(path, body, code, message):
    refused = client().refusal("POST", path, body)

    assert (refused.code, message in refused.message) == (code, True), refused.message


def test_second_object_with_the_same_name_is_refused():
    api = client()
    api.call("POST", MAPS, config())

    refused = api.refusal("POST", MAPS, config())

    assert (refused.code, refused.reason) == (409, "AlreadyExists")
    assert refused.message == 'configmaps "settings" already exists'


def test_unknown_fields_are_dropped_with_a_warning_or_refused():
    api, body = client(), pod(nodName="kalos-001")

    refused = api.refusal("POST", PODS, body, fieldValidation="Strict")
    created = api.call("POST", PODS, body)

    assert (refused.code, 'unknown field "spec.nodName"' in refused.message) == (400, True)
    assert "nodName" not in created["spec"]


# Updating


def test_update_of_an_older_version_is_a_conflict():
    api = client()
    old = api.call("POST", MAPS, config())
    api.call("PUT", f"{MAPS}/settings", {**old, "data": {"a": "2"}})

    refused = api.refusal("PUT", f"{MAPS}/settings", {**old, "data": {"a": "3"}})

    assert (refused.code, refused.reason) == (409, "Conflict")
    assert 'configmaps "settings": the object has been modified' in refused.message


def test_update_cannot_change_the_identity():
    api = client()
    old = api.call("POST", MAPS, config())
    changed = {**old["metadata"], "creationTimestamp": None, "resourceVersion": ""}

    new = api.call("PUT", f"{MAPS}/settings", {**old, "metadata": changed})

    assert new["metadata"]["creationTimestamp"] == old["metadata"]["creationTimestamp"]
    other = {**old, "metadata": {**old["metadata"], "uid": "x"}}
    assert api.refusal("PUT", f"{MAPS}/settings", other).code == 409


@pytest.mark.parametrize(
    ("patch_type", "patch"),
    [
        (MERGE_PATCH, {"metadata": {"labels": {"a": "1"}}}),
        (JSON_PATCH, [{"op": "add", "path": "/metadata/labels", "value": {"a": "1"}}]),
    ],
)
def test_every_kind_of_patch_is_understood(patch_type, patch):
    api = client()
    api.create_pod()

    assert api.call("PATCH", f"{PODS}/train", patch, patch_type=patch_type)["metadata"]["labels"] == {"a": "1"}


def test_unknown_kind_of_patch_is_refused():
    api = client()
    api.create_pod()

    assert api.refusal("PATCH", f"{PODS}/train", {}, patch_type="text/plain").code == 415


def test_patch_with_an_older_version_is_a_conflict():
    api = client()
    version = api.create_pod()["metadata"]["resourceVersion"]
    api.after(5)

    patch = {"metadata": {"resourceVersion": version, "labels": {"a": "1"}}}

    assert api.refusal("PATCH", f"{PODS}/train", patch, patch_type=MERGE_PATCH).code == 409


@pytest.mark.parametrize(
    ("patch", "allowed"),
    [
        ([{"op": "replace", "path": "/spec/containers/0/image", "value": "other:2"}], True),
        ({"spec": {"activeDeadlineSeconds": 60}}, True),
        ({"spec": {"nodeName": "kalos-002"}}, False),
        ([{"op": "add", "path": "/spec/containers/0/command", "value": ["sh"]}], False),
        ({"spec": {"terminationGracePeriodSeconds": 5}}, False),
        ({"spec": {"schedulingGates": [{"name": "late"}]}}, False),
    ],
)
def test_only_few_fields_of_a_pod_may_change(patch, allowed):
    api = client()
    api.create_pod()
    api.after(2)
    patch_type = JSON_PATCH if isinstance(patch, list) else MERGE_PATCH

    if allowed:
        api.call("PATCH", f"{PODS}/train", patch, patch_type=patch_type)
    else:
        assert api.refusal("PATCH", f"{PODS}/train", patch, patch_type=patch_type).code == 422


def test_template_of_a_job_is_immutable_except_for_placement_while_it_is_suspended():
    api = client()
    api.call("POST", JOBS, job(suspend=True))
    patch = {"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "kalos-003"}}}}}
    command = [{"op": "add", "path": "/spec/template/spec/containers/0/command", "value": ["x"]}]

    assert "field is immutable" in api.refusal("PATCH", f"{JOBS}/sweep", command, patch_type=JSON_PATCH).message
    api.call("PATCH", f"{JOBS}/sweep", patch, patch_type=MERGE_PATCH)
    api.call("PATCH", f"{JOBS}/sweep", {"spec": {"suspend": False}}, patch_type=MERGE_PATCH)
    api.after(3)
    assert [one["spec"]["nodeName"] for one in api.pods()] == ["kalos-003"]
    refused = api.refusal("PATCH", f"{JOBS}/sweep", {"spec": {"template": {"spec": {"nodeSelector": None}}}},
                          patch_type=MERGE_PATCH)  # fmt: skip
    assert "spec.template" in refused.message


def test_status_changes_only_through_its_subresource():
    api = client()
    api.create_pod()
    status = {"status": {"phase": "Failed"}}

    assert api.call("PATCH", f"{PODS}/train", status, patch_type=MERGE_PATCH)["status"]["phase"] == "Pending"
    changed = api.call("PATCH", f"{PODS}/train/status", {**status, "spec": {"nodeName": "x"}}, patch_type=MERGE_PATCH)
    assert changed["status"]["phase"] == "Failed" and changed["spec"]["nodeName"] != "x"


def test_generation_counts_changes_of_the_spec():
    api = client()
    api.call("POST", JOBS, job(suspend=True))

    label = api.call("PATCH", f"{JOBS}/sweep", {"metadata": {"labels": {"a": "1"}}}, patch_type=MERGE_PATCH)
    spec = api.call("PATCH", f"{JOBS}/sweep", {"spec": {"parallelism": 3}}, patch_type=MERGE_PATCH)

    assert [label["metadata"]["generation"], spec["metadata"]["generation"]] == [1, 2]


# Deleting


def test_deleted_object_is_gone_and_its_name_is_free():
    api = client()
    uid = api.call("POST", MAPS, config())["metadata"]["uid"]

    answer = api.call("DELETE", f"{MAPS}/settings")

    assert (answer["status"], answer["details"]["uid"]) == ("Success", uid)
    assert api.refusal("GET", f"{MAPS}/settings").message == 'configmaps "settings" not found'
    assert api.call("POST", MAPS, config())["metadata"]["uid"] != uid


def test_deletion_waits_for_finalizers():
    api = client()
    api.call("POST", MAPS, config(finalizers=["acme/keep"]))

    marked = api.call("DELETE", f"{MAPS}/settings")
    assert marked["metadata"]["deletionTimestamp"] == "2027-01-15T08:00:00Z"

    api.call("PATCH", f"{MAPS}/settings", {"metadata": {"finalizers": None}}, patch_type=MERGE_PATCH)
    assert api.refusal("GET", f"{MAPS}/settings").code == 404


@pytest.mark.parametrize("preconditions", [{"uid": "other"}, {"resourceVersion": "1"}])
def test_deletion_with_another_identity_is_a_conflict(preconditions):
    api = client()
    api.call("POST", MAPS, config())

    assert api.refusal("DELETE", f"{MAPS}/settings", {"preconditions": preconditions}).code == 409


@pytest.mark.parametrize(
    ("body", "query"),
    [({"propagationPolicy": "Sideways"}, {}), ({"gracePeriodSeconds": -3}, {}), (None, {"gracePeriodSeconds": "x"})],
)
def test_wrong_delete_options_are_refused(body, query):
    api = client()
    api.create_pod()

    assert api.refusal("DELETE", f"{PODS}/train", body, **query).code in (400, 422)


def test_collection_is_deleted_by_selector():
    api = client()
    for name in ("a", "b", "c"):
        api.call("POST", MAPS, config(name, labels={"keep": str(name == "b").lower()}))

    api.call("DELETE", MAPS, labelSelector="keep=false")

    assert [one["metadata"]["name"] for one in api.call("GET", MAPS)["items"]] == ["b"]


def test_namespace_is_deleted_with_everything_in_it():
    api = client()
    api.call("POST", "/api/v1/namespaces", {"metadata": {"name": "nlp"}})
    api.after(1).call("POST", "/api/v1/namespaces/nlp/pods", pod(node="kalos-001"))
    api.after(3).call("DELETE", "/api/v1/namespaces/nlp")

    refused = api.refusal("POST", "/api/v1/namespaces/nlp/configmaps", config())
    assert (refused.code, "because it is being terminated" in refused.message) == (403, True)
    api.after(5)
    assert api.refusal("GET", "/api/v1/namespaces/nlp").code == 404
    assert api.call("GET", "/api/v1/pods")["items"] == []


# Lists


def test_pages_of_a_list_show_one_version():
    api = client()
    for number in range(5):
        api.call("POST", MAPS, config(f"m{number}"))

    first = api.call("GET", MAPS, limit="2")
    api.call("DELETE", f"{MAPS}/m3")
    api.call("POST", MAPS, config("m9"))
    second = api.call("GET", MAPS, limit="2", **{"continue": first["metadata"]["continue"]})
    third = api.call("GET", MAPS, limit="2", **{"continue": second["metadata"]["continue"]})

    names = [one["metadata"]["name"] for page in (first, second, third) for one in page["items"]]
    assert names == ["m0", "m1", "m2", "m3", "m4"]
    assert first["metadata"]["remainingItemCount"] == 3
    assert len({page["metadata"]["resourceVersion"] for page in (first, second, third)}) == 1
    assert "continue" not in third["metadata"]


def test_page_of_a_compacted_list_has_expired():
    api = client()
    for number in range(3):
        api.call("POST", MAPS, config(f"m{number}"))
    token = api.call("GET", MAPS, limit="1")["metadata"]["continue"]
    api.call("POST", MAPS, config("m9"))
    api.cluster.store.compact()

    refused = api.refusal("GET", MAPS, limit="1", **{"continue": token})

    assert (refused.code, refused.reason) == (410, "Expired")


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"limit": "x"}, 400),
        ({"continue": "x"}, 400),
        ({"labelSelector": "="}, 400),
        ({"fieldSelector": "spec.x=1"}, 400),
    ],
    ids=str,
)
def test_wrong_list_options_are_refused(query, code):
    assert client().refusal("GET", MAPS, **query).code == code


def test_items_of_a_list_have_no_kind_as_in_kubernetes():
    api = client()
    api.create_pod()

    found = api.call("GET", PODS)

    assert (found["kind"], found["apiVersion"], "kind" in found["items"][0]) == ("PodList", "v1", False)


# Permissions


def with_role(api, *rules, cluster_wide: bool = False):
    """A service account that has these rules in the namespace "default"."""
    scope = "" if cluster_wide else "/namespaces/default"
    kind = "ClusterRole" if cluster_wide else "Role"
    roles, bindings = (f"/apis/rbac.authorization.k8s.io/v1{scope}/{kind.lower()}{end}" for end in ("s", "bindings"))
    api.call("POST", roles, {"metadata": {"name": "acme"}, "rules": list(rules)})
    subject = {"kind": "ServiceAccount", "name": "acme", "namespace": "default"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "acme"}
    api.call("POST", bindings, {"metadata": {"name": "acme"}, "roleRef": reference, "subjects": [subject]})
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    api.call("POST", accounts, {"metadata": {"name": "acme"}})
    token = api.call("POST", f"{accounts}/acme/token", {"spec": {"expirationSeconds": 600}})["status"]["token"]
    api.user = api.cluster.user_of(token, api.now)
    return token


READ_PODS = {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]}


def test_role_allows_its_verbs_in_its_namespace_only():
    api = client()
    with_role(api, READ_PODS)

    assert api.call("GET", PODS)["items"] == []
    refused = api.refusal("POST", PODS, pod())
    assert refused.code == 403
    assert refused.message == (
        'pods is forbidden: User "system:serviceaccount:default:acme" cannot create resource "pods" in API group ""'
        ' in the namespace "default"'
    )
    assert api.refusal("GET", "/api/v1/namespaces/kube-system/pods").code == 403
    assert api.refusal("GET", "/api/v1/pods").code == 403


def test_cluster_role_reaches_every_namespace():
    api = client()
    with_role(api, READ_PODS, cluster_wide=True)

    assert api.call("GET", "/api/v1/pods")["items"] == []
    assert api.refusal("GET", "/api/v1/nodes").code == 403


def test_token_expires_and_ends_with_its_account():
    api = client()
    token = with_role(api, READ_PODS)
    user_of = api.cluster.user_of

    assert user_of(token, NOW + 599) is not None
    assert user_of(token, NOW + 600) is None
    assert user_of(token[:-1] + "x", NOW) is None and user_of("", NOW) is None
    api.user = ADMIN
    api.call("DELETE", "/api/v1/namespaces/default/serviceaccounts/acme")
    assert user_of(token, NOW) is None
