"""The API objects of an attempt: from the template of the cluster and the request of the job. Pure.

| shape | owner | what is created after it | who creates the pods |
|---|---|---|---|
| JobSet | JobSet | | its controllers, and the Service too |
| Indexed Job | Job | the Service of a gang | the Job controller |
| pods, several nodes | ConfigMap with the pod and the nodes | Service, pods | Acme |
| pods, one node | the pod, which names its node | | Acme |

What follows an owner is computed from the owner alone, as the API server returns it. So any process can create what is
missing, at any time, and no process has to remember anything. Names depend on the attempt's key only: creating an
object twice is refused with 409.

Pods of all owners wait for Acme to place them: `schedulerName` names a scheduler that nobody runs. Where the API has
scheduling gates, they say so to `kubectl`.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from jobs.core.gpu_shares import MIG_RESOURCE_PREFIX

from ..attempt_record import RECORD_VARIABLE
from ..base import RequestRejected, SubmitRequest
from .fields import mapping_at, require_text, texts_at
from .ownership import INSTALLATION_LABEL, KEY_LABEL
from .pod_script import INDEX_VARIABLE, escape_references, grace_seconds, launcher_environment, pod_script
from .pod_template import ROOT_ID, SHARED_MEMORY_PATH, SHARED_MEMORY_VOLUME, PodTemplate, Volume, mounted_volumes

NODES_ANNOTATION = "acme/nodes"  # JSON list of the nodes in rank order; on owners
FAILS_IF_STOPPED_ANNOTATION = "acme/fails-if-stopped"  # on pods, since their script does (`pod_script`)
ADMITTED_ANNOTATION = "acme/admitted"  # on owners: all pods have their nodes, and later ones get none
NAME_ANNOTATION, USER_ANNOTATION, WCKEY_ANNOTATION = "acme/name", "acme/user", "acme/wckey"  # for readers of kubectl
GATE = "acme/gang"
SCHEDULER = "acme"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"  # in the template's labels: Kueue admits the job by ending `suspend`
POD_DATA = "pod"  # key in a ConfigMap: the pod as JSON, without what differs between the pods
CONTAINER = "job"
REPLICATED_JOB = "g"
KEEP_ENDED_S = 86_400
MASTER_PORT = 29_500
# With the network of the host, gangs whose first pods share a node need ports of their own
HOST_PORTS = range(20_000, 30_000)
MAX_HOST_NAME = 63


class Shape(StrEnum):
    JOB_SET = "job_set"
    INDEXED_JOB = "indexed_job"
    PODS = "pods"


@dataclass(frozen=True, kw_only=True)
class ApiFeatures:
    """What the API server supports, as found by probing it."""

    indexed_jobs: bool
    job_set_path: str  # /apis/jobset.x-k8s.io/v1alpha2; empty if JobSets are not served
    scheduling_gates: bool


@dataclass(frozen=True, kw_only=True)
class NewObject:
    collection: str  # the path that it is posted to
    body: Mapping[str, Any]


def shape_of(features: ApiFeatures, request: SubmitRequest) -> Shape:
    """The shape of an attempt. Shapes do not depend on the number of nodes, only names that would be too long do."""
    if features.job_set_path and len(_job_set_host(request.key, len(request.nodes))) <= MAX_HOST_NAME:
        return Shape.JOB_SET
    return Shape.INDEXED_JOB if features.indexed_jobs else Shape.PODS


def attempt_name(key: str) -> str:
    """The name of an attempt's owner: acme-01k3v9q2m7t-1."""
    return f"acme-{re.sub('[^a-z0-9-]', '-', key.lower())}"


def owner_object(request: SubmitRequest, template: PodTemplate, features: ApiFeatures) -> NewObject:
    """The object that stands for the attempt; its uid is the attempt's id on the cluster. Raises RequestRejected."""
    _check_offers(request, template)
    shape = shape_of(features, request)
    is_bare = shape == Shape.PODS and len(request.nodes) == 1
    build = _bare_pod if is_bare else {Shape.JOB_SET: _job_set, Shape.INDEXED_JOB: _job, Shape.PODS: _config_map}[shape]
    collection, body = build(request, template, features, _hosts(request, template, shape))
    return NewObject(collection=collection, body={**body, "metadata": _owner_metadata(request, template)})


def dependent_objects(owner: Mapping[str, Any]) -> list[NewObject]:
    """What is created after the owner, computed from the owner as the API server returned it.

    Raises MalformedResponse for what is not an owner of an attempt.
    """
    nodes = owner_nodes(owner)
    if POD_DATA in texts_at(owner, "data"):
        return [_service(owner), *_pods(owner, nodes)]
    is_gang_of_job = len(nodes) > 1 and "completions" in mapping_at(owner, "spec")
    return [_service(owner)] if is_gang_of_job else []


def owner_nodes(owner: Mapping[str, Any]) -> list[str]:
    """The nodes of an attempt in rank order; empty for a bare pod and for objects that are not Acme's."""
    try:
        nodes = json.loads(texts_at(owner, "metadata", "annotations").get(NODES_ANNOTATION, "[]"))
    except ValueError:
        return []
    return nodes if isinstance(nodes, list) and all(isinstance(node, str) and node for node in nodes) else []


# --- what the cluster offers


def _check_offers(request: SubmitRequest, template: PodTemplate) -> None:
    if template.denial:
        raise RequestRejected(template.denial)
    image = request.image or template.image
    if not image:
        raise RequestRejected("The job names no container image, and the cluster's pod template has no default image.")
    if not template.offers.has_image(image):
        raise RequestRejected(f"The cluster's pod template does not allow the image {image}.")
    if unknown := [mount for mount in request.mounts if mount not in template.volumes]:
        raise RequestRejected(f"The cluster's pod template has no volume {unknown[0]}.")
    if request.gpu_shards:
        raise RequestRejected("This cluster does not share GPUs; request whole GPUs or a MIG slice.")
    if request.gpus_per_node and not template.gpu_resource_of(request.gpu_model):
        model = request.gpu_model or "unknown"
        raise RequestRejected(f"gpu_resource in the cluster's pod template has no resource for GPUs of model {model}.")
    paths = [volume.mount_path for volume in mounted_volumes(template, request.mounts)]
    if twice := next((path for path in paths if paths.count(path) > 1), ""):
        raise RequestRejected(f"Two of the mounts of the job have the same path {twice}.")


# --- owners


def _job_set(
    request: SubmitRequest, template: PodTemplate, features: ApiFeatures, hosts: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    job = {"metadata": _marks(request, template), "spec": _job_spec(request, template, features, hosts)}
    job["spec"].pop("ttlSecondsAfterFinished")
    group_version = features.job_set_path.removeprefix("/apis/")
    return f"{features.job_set_path}/namespaces/{template.namespace}/jobsets", {
        "apiVersion": group_version,
        "kind": "JobSet",
        "spec": {
            "replicatedJobs": [{"name": REPLICATED_JOB, "replicas": 1, "template": job}],
            "failurePolicy": {"maxRestarts": 0},
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "ttlSecondsAfterFinished": KEEP_ENDED_S,
            **_suspend(template),
        },
    }


def _job(
    request: SubmitRequest, template: PodTemplate, features: ApiFeatures, hosts: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    spec = _job_spec(request, template, features, hosts)
    if len(hosts) > 1 and not template.host_network:
        spec["template"]["spec"]["subdomain"] = attempt_name(request.key)
    return f"/apis/batch/v1/namespaces/{template.namespace}/jobs", {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "spec": {**spec, **_suspend(template)},
    }


def _suspend(template: PodTemplate) -> dict[str, bool]:
    return {"suspend": True} if QUEUE_LABEL in template.labels else {}


def _job_spec(
    request: SubmitRequest, template: PodTemplate, features: ApiFeatures, hosts: Sequence[str]
) -> dict[str, Any]:
    """The time limit is that of the pods: a limit of the Job would also count the wait for a kubelet."""
    return {
        "completionMode": "Indexed",
        "completions": len(request.nodes),
        "parallelism": len(request.nodes),
        "backoffLimit": 0,
        "ttlSecondsAfterFinished": KEEP_ENDED_S,
        "template": {
            "metadata": _marks(request, template),
            "spec": {**_pod_spec(request, template, hosts), **_gate(request, features), **_deadline(request)},
        },
    }


def _config_map(
    request: SubmitRequest, template: PodTemplate, features: ApiFeatures, hosts: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    spec = {**_pod_spec(request, template, hosts), **_gate(request, features), **_deadline(request)}
    pod = {"metadata": _marks(request, template), "spec": spec}
    return f"/api/v1/namespaces/{template.namespace}/configmaps", {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "immutable": True,
        "data": {POD_DATA: json.dumps(pod, ensure_ascii=False)},
    }


def _bare_pod(
    request: SubmitRequest, template: PodTemplate, features: ApiFeatures, hosts: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    spec = {**_pod_spec(request, template, hosts), **_deadline(request), "nodeName": request.nodes[0]}
    return f"/api/v1/namespaces/{template.namespace}/pods", {"apiVersion": "v1", "kind": "Pod", "spec": spec}


def _owner_metadata(request: SubmitRequest, template: PodTemplate) -> dict[str, Any]:
    marks = _marks(request, template)
    return {
        "name": attempt_name(request.key),
        "namespace": template.namespace,
        "labels": {**template.labels, **marks["labels"]},
        "annotations": {**marks["annotations"], NODES_ANNOTATION: json.dumps(request.nodes)},
    }


def _marks(request: SubmitRequest, template: PodTemplate) -> dict[str, dict[str, str]]:
    """Labels and annotations of pods and of what creates them. Only an owner names its queue, so that it is counted
    once.
    """
    labels = {name: value for name, value in template.labels.items() if name != QUEUE_LABEL}
    return {
        "labels": {**labels, KEY_LABEL: request.key, INSTALLATION_LABEL: request.installation},
        "annotations": {
            **template.annotations,
            NAME_ANNOTATION: request.name,
            USER_ANNOTATION: request.user,
            **({WCKEY_ANNOTATION: request.wckey} if request.wckey else {}),
            FAILS_IF_STOPPED_ANNOTATION: "true",
        },
    }


def _gate(request: SubmitRequest, features: ApiFeatures) -> dict[str, Any]:
    """Keeps pods off the nodes until Acme places them. A single pod needs no gate, which would be one more write."""
    is_gated = features.scheduling_gates and len(request.nodes) > 1
    gates = {"schedulingGates": [{"name": GATE}]} if is_gated else {}
    return {"schedulerName": SCHEDULER, **gates}


def _deadline(request: SubmitRequest) -> dict[str, int]:
    limit = request.time_limit
    return {"activeDeadlineSeconds": max(int(limit.total_seconds()), 1)} if limit else {}


# --- hosts


def _job_set_host(key: str, number: int) -> str:
    return f"{attempt_name(key)}-{REPLICATED_JOB}-0-{number}"


def _hosts(request: SubmitRequest, template: PodTemplate, shape: Shape) -> tuple[str, ...]:
    """The names, in rank order, under which the pods reach each other."""
    if template.host_network:
        return request.nodes
    if len(request.nodes) == 1:
        return ("localhost",)
    domain = attempt_name(request.key)
    first = f"{domain}-{REPLICATED_JOB}-0" if shape == Shape.JOB_SET else domain
    return tuple(f"{first}-{index}.{domain}" for index in range(len(request.nodes)))


def _port(request: SubmitRequest, template: PodTemplate) -> int:
    if not template.host_network:
        return MASTER_PORT
    return HOST_PORTS[zlib.crc32(request.key.encode()) % len(HOST_PORTS)]


# --- the pod


def _pod_spec(request: SubmitRequest, template: PodTemplate, hosts: Sequence[str]) -> dict[str, Any]:
    volumes = mounted_volumes(template, request.mounts)
    account = {"serviceAccountName": template.service_account} if template.service_account else {}
    network = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if template.host_network else {}
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_seconds(request, template.grace_s),
        "enableServiceLinks": False,
        "automountServiceAccountToken": bool(template.service_account),
        "securityContext": _security_context(template),
        "containers": [_container(request, template, volumes, hosts)],
        "volumes": [*_volumes(volumes), *_shared_memory(template)],
        **account,
        **network,
        **_optional_parts(template),
    }


def _optional_parts(template: PodTemplate) -> dict[str, Any]:
    parts = {
        "tolerations": list(template.tolerations),
        "priorityClassName": template.priority_class,
        "imagePullSecrets": [{"name": name} for name in template.image_pull_secrets],
    }
    return {name: value for name, value in parts.items() if value}


def _security_context(template: PodTemplate) -> dict[str, Any]:
    """`fsGroup`: jobs may write to new volumes, which belong to root otherwise."""
    user = template.run_as_user
    group = user if template.run_as_group is None else template.run_as_group
    volumes = {"fsGroup": group, "fsGroupChangePolicy": "OnRootMismatch"} if group else {}
    ids = {name: number for name, number in (("runAsUser", user), ("runAsGroup", group)) if number is not None}
    return {"runAsNonRoot": user != ROOT_ID, "seccompProfile": {"type": "RuntimeDefault"}, **ids, **volumes}


def _container(
    request: SubmitRequest, template: PodTemplate, volumes: Sequence[Volume], hosts: Sequence[str]
) -> dict[str, Any]:
    return {
        "name": CONTAINER,
        "image": request.image or template.image,
        "command": ["/bin/bash", "-c", escape_references(pod_script(request))],
        "workingDir": request.workdir,
        "env": _environment(request, template, hosts),
        "resources": _resources(request, template),
        "volumeMounts": [*map(_volume_mount, volumes), *_shared_memory_mount(template)],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "capabilities": _capabilities(template),
        },
    }


def _capabilities(template: PodTemplate) -> dict[str, list[str]]:
    """Root keeps those of the container runtime: without them it could not read the files of others. InfiniBand needs
    memory that is never swapped out, more than the limit of a container allows.
    """
    dropped = {"drop": ["ALL"]} if template.run_as_user != ROOT_ID else {}
    return {**dropped, **({"add": ["IPC_LOCK"]} if template.has_rdma else {})}


def _environment(request: SubmitRequest, template: PodTemplate, hosts: Sequence[str]) -> list[dict[str, Any]]:
    """Variables of the launchers, and those of the job, which take precedence."""
    launcher = launcher_environment(request, tuple(hosts), _port(request, template))
    variables = {**_user_variables(request, template), **launcher, **request.environment}
    variables.pop(RECORD_VARIABLE, None)  # pods leave no record; the cluster remembers how they ended
    node = {"name": "SLURMD_NODENAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}}}
    return [*({"name": name, "value": escape_references(value)} for name, value in variables.items()), node]


def _user_variables(request: SubmitRequest, template: PodTemplate) -> dict[str, str]:
    """What programs ask for a user that the image does not know. Its home directory would be /."""
    if template.run_as_user in (None, ROOT_ID):
        return {}
    return {"HOME": "/tmp", **dict.fromkeys(("USER", "LOGNAME"), request.user or "acme")}  # noqa: S108


def _resources(request: SubmitRequest, template: PodTemplate) -> dict[str, dict[str, str]]:
    """Requests equal limits: the pod gets what its job requested, and no other pod is evicted for it."""
    amounts = {
        "cpu": request.cpus_per_node,
        "memory": f"{request.memory_per_node_mb}Mi" if request.memory_per_node_mb else "",
        **template.extra_resources,
    }
    if request.mig_profile:
        amounts[f"{MIG_RESOURCE_PREFIX}{request.mig_profile}"] = 1
    if request.gpus_per_node:
        amounts[template.gpu_resource_of(request.gpu_model)] = request.gpus_per_node
    texts = {name: str(amount) for name, amount in amounts.items() if amount}
    return {"requests": texts, "limits": texts}


def _volumes(volumes: Sequence[Volume]) -> list[dict[str, Any]]:
    return [{"name": volume.name, **volume.source} for volume in volumes]


def _volume_mount(volume: Volume) -> dict[str, Any]:
    sub_path = {"subPath": volume.sub_path} if volume.sub_path else {}
    return {"name": volume.name, "mountPath": volume.mount_path, "readOnly": volume.read_only, **sub_path}


def _shared_memory(template: PodTemplate) -> list[dict[str, Any]]:
    size = template.shared_memory
    return [{"name": SHARED_MEMORY_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": size}}] if size else []


def _shared_memory_mount(template: PodTemplate) -> list[dict[str, Any]]:
    mount = {"name": SHARED_MEMORY_VOLUME, "mountPath": SHARED_MEMORY_PATH, "readOnly": False}
    return [mount] if template.shared_memory else []


# --- what follows an owner


def _service(owner: Mapping[str, Any]) -> NewObject:
    """The headless Service that gives the pods of a gang their names, also before they are ready."""
    metadata = _dependent_metadata(owner, require_text(owner, "metadata", "name"), mapping_at(owner, "metadata"))
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {KEY_LABEL: metadata["labels"].get(KEY_LABEL, "")},
    }
    body = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
    return NewObject(collection=f"/api/v1/namespaces/{metadata['namespace']}/services", body=body)


def _pods(owner: Mapping[str, Any], nodes: Sequence[str]) -> list[NewObject]:
    name, pod = require_text(owner, "metadata", "name"), _pod_data(owner)
    collection = f"/api/v1/namespaces/{require_text(owner, 'metadata', 'namespace')}/pods"
    return [NewObject(collection=collection, body=_gang_pod(owner, pod, name, index)) for index in range(len(nodes))]


def _pod_data(owner: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        pod = json.loads(texts_at(owner, "data")[POD_DATA])
    except ValueError:
        pod = None
    return mapping_at(pod)


def _gang_pod(owner: Mapping[str, Any], pod: Mapping[str, Any], subdomain: str, index: int) -> dict[str, Any]:
    spec, name = mapping_at(pod, "spec"), f"{subdomain}-{index}"
    container, *others = spec.get("containers") or [{}]
    variables = [*container.get("env", ()), {"name": INDEX_VARIABLE, "value": str(index)}]
    names = {} if spec.get("hostNetwork") else {"hostname": name, "subdomain": subdomain}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _dependent_metadata(owner, name, mapping_at(pod, "metadata")),
        "spec": {**spec, **names, "containers": [{**container, "env": variables}, *others]},
    }


def _dependent_metadata(owner: Mapping[str, Any], name: str, marks: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata with the labels and annotations of `marks`, except the annotations that describe an owner."""
    annotations = texts_at(marks, "annotations")
    return {
        "name": name,
        "namespace": require_text(owner, "metadata", "namespace"),
        "labels": texts_at(marks, "labels"),
        "annotations": {
            mark: annotations[mark] for mark in annotations if mark not in (NODES_ANNOTATION, ADMITTED_ANNOTATION)
        },
        "ownerReferences": [_reference(owner)],
    }


def _reference(owner: Mapping[str, Any]) -> dict[str, Any]:
    is_config_map = POD_DATA in texts_at(owner, "data")
    return {
        "apiVersion": "v1" if is_config_map else "batch/v1",
        "kind": "ConfigMap" if is_config_map else "Job",
        "name": require_text(owner, "metadata", "name"),
        "uid": require_text(owner, "metadata", "uid"),
        "controller": True,
        "blockOwnerDeletion": False,
    }
