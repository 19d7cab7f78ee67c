"""An attempt becomes the objects of its shape, and what follows an owner is computed from the owner alone."""

import json
from datetime import timedelta

import pytest

from acmeweb.common.errors import MalformedResponse
from jobs.core.cluster_kinds import PodLimits
from scheduling.backends.attempt_record import RECORD_VARIABLE
from scheduling.backends.base import RequestRejected, SubmitRequest
from scheduling.backends.kubernetes.pod_objects import (
    ApiFeatures,
    Shape,
    attempt_name,
    dependent_objects,
    owner_nodes,
    owner_object,
    shape_of,
)
from scheduling.backends.kubernetes.pod_script import escape_references, pod_script
from scheduling.backends.kubernetes.pod_template import parse_pod_template, stored_pod_template
from tests.scheduling.backends.kubernetes.test_pod_template import ALL, FULL

JOB_SETS = ApiFeatures(indexed_jobs=True, job_set_path="/apis/jobset.x-k8s.io/v1alpha2", scheduling_gates=True)
JOBS = ApiFeatures(indexed_jobs=True, job_set_path="", scheduling_gates=True)
OLD = ApiFeatures(indexed_jobs=False, job_set_path="", scheduling_gates=False)
SIMPLE = parse_pod_template({"image": "train:1"}, PodLimits())


def request(nodes=2, **more):
    values = {
        "key": "01k3v9q2m7t_7.1",
        "name": "train",
        "user": "ada",
        "account": "nlp",
        "workdir": "/work",
        "script": "echo $HOME $$",
        "environment": {"COST": "$5", RECORD_VARIABLE: "/logs/a.acme"},
        "nodes": tuple(f"n{number}" for number in range(nodes, 0, -1)),
        "gpus_per_node": 8,
        "gpu_model": "H100",
        "cpus_per_node": 64,
        "memory_per_node_mb": 2048,
        "time_limit": timedelta(hours=2),
        "stdout": "",
        "installation": "inst1",
    }
    return SubmitRequest(**{**values, **more})


def stored(new):
    """The object as the API server returns it."""
    body = json.loads(json.dumps(new.body))
    return {**body, "metadata": {**body["metadata"], "uid": "uid-1", "resourceVersion": "7"}}


def pod_spec(body):
    spec = body["spec"]
    for name in ("template", "spec"):
        spec = spec[name]
    return spec


def environment(spec):
    return {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}


@pytest.mark.parametrize(
    ("features", "shape"),
    [(JOB_SETS, Shape.JOB_SET), (JOBS, Shape.INDEXED_JOB), (OLD, Shape.PODS)],
    ids=["job_sets", "jobs", "old"],
)
def test_shape_is_the_best_that_the_api_supports(features, shape):
    assert shape_of(features, request()) == shape


@pytest.mark.parametrize(
    ("features", "collection", "kind"),
    [
        (JOB_SETS, "/apis/jobset.x-k8s.io/v1alpha2/namespaces/acme-jobs/jobsets", "JobSet"),
        (JOBS, "/apis/batch/v1/namespaces/acme-jobs/jobs", "Job"),
        (OLD, "/api/v1/namespaces/acme-jobs/configmaps", "ConfigMap"),
    ],
    ids=["job_sets", "jobs", "old"],
)
def test_owner_carries_the_key_and_the_nodes_in_rank_order(features, collection, kind):
    new = owner_object(request(), SIMPLE, features)
    metadata = new.body["metadata"]

    assert (new.collection, new.body["kind"]) == (collection, kind)
    assert metadata["name"] == attempt_name("01k3v9q2m7t_7.1") == "acme-01k3v9q2m7t-7-1"
    assert metadata["labels"] == {"acme/attempt": "01k3v9q2m7t_7.1", "acme/installation": "inst1"}
    assert owner_nodes(new.body) == ["n2", "n1"]


def test_owner_carries_the_workload_key_only_if_the_job_has_one():
    marks = [owner_object(request(wckey=key), SIMPLE, JOBS).body["metadata"]["annotations"] for key in ("", "climate")]

    assert [one.get("acme/wckey") for one in marks] == [None, "climate"]


def test_job_runs_once_on_pods_that_wait_for_their_nodes():
    spec = owner_object(request(), SIMPLE, JOBS).body["spec"]
    pod = spec["template"]["spec"]

    assert {name: spec[name] for name in ("completionMode", "completions", "parallelism", "backoffLimit")} == {
        "completionMode": "Indexed",
        "completions": 2,
        "parallelism": 2,
        "backoffLimit": 0,
    }
    assert spec["ttlSecondsAfterFinished"] == 86_400
    assert (pod["activeDeadlineSeconds"], spec.get("activeDeadlineSeconds")) == (7200, None)
    assert (pod["restartPolicy"], pod["schedulerName"]) == ("Never", "acme")
    assert pod["schedulingGates"] == [{"name": "acme/gang"}]
    assert "suspend" not in spec


def test_pods_of_a_job_request_what_the_job_requested_and_nothing_else():
    pod = pod_spec(owner_object(request(), SIMPLE, JOBS).body)
    container = pod["containers"][0]
    resources = {"cpu": "64", "memory": "2048Mi", "nvidia.com/gpu": "8"}

    assert container["resources"] == {"requests": resources, "limits": resources}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
        "fsGroupChangePolicy": "OnRootMismatch",
    }
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert (container["image"], container["workingDir"]) == ("train:1", "/work")


def test_user_that_the_image_does_not_know_has_a_name_and_a_home_directory():
    variables = environment(pod_spec(owner_object(request(), SIMPLE, JOBS).body))

    assert (variables["HOME"], variables["USER"], variables["LOGNAME"]) == ("/tmp", "ada", "ada")


def test_user_of_the_image_is_kept_and_must_not_be_root():
    template = parse_pod_template({"image": "train:1", "run_as_user": "image"}, PodLimits())

    pod = pod_spec(owner_object(request(), template, JOBS).body)

    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert "HOME" not in environment(pod)


def test_template_may_run_pods_as_root_with_the_privilege():
    template = parse_pod_template({"image": "train:1", "run_as_user": 0}, ALL)

    pod = pod_spec(owner_object(request(), template, JOBS).body)

    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (False, 0)
    assert pod["containers"][0]["securityContext"]["capabilities"] == {}


def test_command_and_variables_survive_the_references_of_kubernetes():
    job = request()
    container = pod_spec(owner_object(job, SIMPLE, JOBS).body)["containers"][0]

    assert container["command"] == ["/bin/bash", "-c", escape_references(pod_script(job))]
    assert environment({"containers": [container]})["COST"] == "$$5"


def test_launchers_are_told_the_names_that_the_pods_of_each_shape_get():
    name = "acme-01k3v9q2m7t-7-1"
    job = pod_spec(owner_object(request(), SIMPLE, JOBS).body)
    job_set = owner_object(request(), SIMPLE, JOB_SETS).body["spec"]["replicatedJobs"][0]["template"]

    assert environment(job)["SLURM_JOB_NODELIST"] == f"{name}-0.{name},{name}-1.{name}"
    assert environment(job)["MASTER_ADDR"] == f"{name}-0.{name}"
    assert environment(job)["WORLD_SIZE"] == "16"
    assert environment(pod_spec(job_set))["MASTER_ADDR"] == f"{name}-g-0-0.{name}"
    assert RECORD_VARIABLE not in environment(job)


def test_variables_of_the_job_take_precedence_over_those_for_launchers():
    pod = pod_spec(owner_object(request(environment={"MASTER_PORT": "1234"}), SIMPLE, JOBS).body)

    assert environment(pod)["MASTER_PORT"] == "1234"


def test_job_without_gpus_requests_none_and_counts_one_process_per_node():
    pod = pod_spec(owner_object(request(gpus_per_node=0, gpu_model="unknown"), SIMPLE, JOBS).body)

    assert set(pod["containers"][0]["resources"]["limits"]) == {"cpu", "memory"}
    assert environment(pod)["WORLD_SIZE"] == "2"


def test_template_is_applied_to_the_pods():
    job = request(mounts=("datasets", "scratch"), image="registry.example/train/x:1", gpu_model="mi300x")
    new = owner_object(job, parse_pod_template(FULL, ALL), JOBS)
    pod = pod_spec(new.body)
    container = pod["containers"][0]

    assert new.collection == "/apis/batch/v1/namespaces/jobs/jobs"
    assert [volume["name"] for volume in pod["volumes"]] == ["datasets", "home", "scratch", "acme-shm"]
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "datasets"}
    assert container["volumeMounts"][0] == {"name": "datasets", "mountPath": "/data", "readOnly": True}
    assert container["volumeMounts"][2]["subPath"] == "acme"
    assert pod["volumes"][3]["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}
    assert container["resources"]["limits"] == {"cpu": "64", "memory": "2048Mi", "rdma/hca": "1", "amd.com/gpu": "8"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert (pod["serviceAccountName"], pod["priorityClassName"]) == ("trainer", "training")
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["fsGroup"]) == (1000, 1000)
    assert pod["terminationGracePeriodSeconds"] == 60
    assert pod["hostNetwork"] is True
    assert environment(pod)["MASTER_ADDR"] == "n2"
    assert environment(pod)["MASTER_PORT"] != "29500"


@pytest.mark.parametrize("features", [JOB_SETS, JOBS], ids=["job_sets", "jobs"])
def test_job_of_a_queue_waits_until_kueue_admits_it(features):
    """Only the owner names the queue: a pod or inner Job with the label would be counted again."""
    body = owner_object(request(), parse_pod_template({**FULL, "host_network": False}, ALL), features).body

    assert body["spec"]["suspend"] is True
    assert body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "training"
    assert json.dumps(body).count("queue-name") == 1


def test_single_pod_of_an_old_cluster_names_its_node():
    new = owner_object(request(nodes=1), SIMPLE, OLD)
    spec = new.body["spec"]

    assert (new.collection, new.body["kind"]) == ("/api/v1/namespaces/acme-jobs/pods", "Pod")
    assert (spec["nodeName"], spec["activeDeadlineSeconds"]) == ("n1", 7200)
    assert environment(spec)["MASTER_ADDR"] == "localhost"
    assert not {"schedulerName", "schedulingGates"} & set(spec)
    assert dependent_objects(stored(new)) == []


def test_config_map_says_which_pods_to_create():
    owner = stored(owner_object(request(), SIMPLE, OLD))

    service, *pods = dependent_objects(owner)

    assert [pod.body["metadata"]["name"] for pod in pods] == ["acme-01k3v9q2m7t-7-1-0", "acme-01k3v9q2m7t-7-1-1"]
    assert owner["immutable"] is True
    for index, pod in enumerate(pods):
        spec, metadata = pod.body["spec"], pod.body["metadata"]
        assert pod.collection == "/api/v1/namespaces/acme-jobs/pods"
        assert environment(spec)["JOB_COMPLETION_INDEX"] == str(index)
        assert (spec["hostname"], spec["subdomain"]) == (metadata["name"], "acme-01k3v9q2m7t-7-1")
        assert "nodeName" not in spec
        assert metadata["labels"]["acme/attempt"] == "01k3v9q2m7t_7.1"
        assert "acme/nodes" not in metadata["annotations"]
        assert metadata["ownerReferences"] == [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": "acme-01k3v9q2m7t-7-1",
                "uid": "uid-1",
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ]
    assert service.body["spec"]["selector"] == {"acme/attempt": "01k3v9q2m7t_7.1"}


def test_gang_of_a_job_gets_a_headless_service():
    owner = stored(owner_object(request(), SIMPLE, JOBS))

    (service,) = dependent_objects(owner)

    assert service.collection == "/api/v1/namespaces/acme-jobs/services"
    assert service.body["spec"]["clusterIP"] == "None"
    assert service.body["spec"]["publishNotReadyAddresses"] is True
    assert service.body["metadata"]["name"] == pod_spec(owner)["subdomain"]
    assert service.body["metadata"]["ownerReferences"][0]["kind"] == "Job"


@pytest.mark.parametrize(
    ("nodes", "features"), [(1, JOBS), (1, JOB_SETS), (2, JOB_SETS)], ids=["job", "job_set", "job_set_of_two"]
)
def test_nothing_follows_where_controllers_create_all(nodes, features):
    assert dependent_objects(stored(owner_object(request(nodes=nodes), SIMPLE, features))) == []


@pytest.mark.parametrize("change", [{"metadata": {}}, {"metadata": {"name": "a"}}], ids=["no_metadata", "no_uid"])
def test_object_without_identity_creates_nothing(change):
    owner = {**stored(owner_object(request(), SIMPLE, OLD)), **change}

    with pytest.raises(MalformedResponse):
        dependent_objects(owner)


@pytest.mark.parametrize("text", ["", "[", "7", '["n1", 7]', '[""]'])
def test_unreadable_list_of_nodes_is_empty(text):
    assert owner_nodes({"metadata": {"annotations": {"acme/nodes": text}}}) == []


@pytest.mark.parametrize("features", [JOB_SETS, JOBS, OLD], ids=["job_sets", "jobs", "old"])
def test_largest_command_of_a_large_gang_stays_below_the_limit_of_an_object(features):
    """etcd refuses requests above 1.5 MiB, and the kernel one argument or variable above 128 KiB."""
    job = request(nodes=1000, script='$"' * 32_768, environment={"TEXT": '$"' * 32_000})
    body = owner_object(job, SIMPLE, features).body

    assert len(json.dumps(body, ensure_ascii=False).encode()) < 1_000_000
    assert len(pod_script(job).encode()) < 131_072
    if features != OLD:
        spec = body["spec"]["replicatedJobs"][0]["template"] if features == JOB_SETS else body
        assert len(environment(pod_spec(spec))["SLURM_JOB_NODELIST"]) < 131_072


@pytest.mark.parametrize(
    ("more", "settings", "sentence"),
    [
        ({"image": "other:1"}, {"image": "train:1"}, "The cluster's pod template does not allow the image other:1."),
        ({}, {}, "The job names no container image, and the cluster's pod template has no default image."),
        ({"mounts": ("x",)}, {"image": "train:1"}, "The cluster's pod template has no volume x."),
        ({}, {"image": "a", "gpu_resource": {"a100": "nvidia.com/gpu"}}, "gpu_resource in the cluster's pod template"),
        (
            {"mounts": ("a", "b")},
            {"image": "a", "volumes": {name: {"claim": name, "mount_path": "/x"} for name in "ab"}},
            "Two of the mounts of the job have the same path /x.",
        ),
    ],
    ids=["image", "no_image", "mount", "model", "path"],
)
def test_what_the_template_does_not_offer_is_refused(more, settings, sentence):
    with pytest.raises(RequestRejected) as error:
        owner_object(request(**more), parse_pod_template(settings, ALL), JOBS)

    assert str(error.value).startswith(sentence)


def test_stored_template_that_the_limits_no_longer_allow_creates_no_pods():
    template = stored_pod_template({"image": "train:1", "run_as_user": 0}, PodLimits())

    with pytest.raises(RequestRejected, match=r"^The pod template is not allowed: run_as_user 0 needs"):
        owner_object(request(), template, JOBS)
