"""Default values of the fields of new and changed objects, as the API server sets them. Pure."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from scheduling.simulation.kubernetes.objects import JsonObject, changed, value_at

from .job_sets import default_job_set
from .resources import JOB_SETS
from .served import STANDARD, ServedApi

DEFAULT_TOLERATION_S = 300
UNREACHABLE, NOT_READY = "node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"
CONTROLLER_UID, JOB_NAME = "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"
OLD_CONTROLLER_UID, OLD_JOB_NAME = "controller-uid", "job-name"
# What versions after 1.20 know
LATER_JOB_LABELS = (CONTROLLER_UID, JOB_NAME)
LATER_JOB_FIELDS = (
    "backoffLimitPerIndex", "completionMode", "managedBy", "maxFailedIndexes", "podFailurePolicy",
    "podReplacementPolicy", "successPolicy", "suspend",
)  # fmt: skip
LATER_POD_FIELDS = ("hostUsers", "os", "resourceClaims", "resources", "schedulingGates")
TEMPLATE = ("spec", "template")
LATER_PATHS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "pods": tuple(("spec", name) for name in LATER_POD_FIELDS),
    "jobs.batch": (
        *(("spec", name) for name in LATER_JOB_FIELDS),
        *((*TEMPLATE, "spec", name) for name in LATER_POD_FIELDS),
        *((*TEMPLATE, "metadata", "labels", name) for name in LATER_JOB_LABELS),
    ),
}


def with_defaults(resource: str, new: JsonObject, api: ServedApi = STANDARD) -> JsonObject:
    """The object with the defaults of its resource. `new` may be changed."""
    filled = DEFAULTS.get(resource, _unchanged)(new)
    return _as_in_old_version(resource, filled) if api.is_old else filled


def _unchanged(new: JsonObject) -> JsonObject:
    return new


def default_pod(pod: JsonObject) -> JsonObject:
    spec = pod["spec"] = dict(pod.get("spec") or {})
    _default_pod_spec(spec)
    spec.setdefault("serviceAccountName", spec.get("serviceAccount") or "default")
    spec["serviceAccount"] = spec["serviceAccountName"]
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    spec.setdefault("priority", 0)
    tolerations = spec.get("tolerations") or []
    if isinstance(tolerations, list) and all(isinstance(one, dict) for one in tolerations):
        spec["tolerations"] = _default_tolerations(tolerations)
    return pod


def _default_pod_spec(spec: JsonObject) -> None:
    for name, value in (
        ("restartPolicy", "Always"),
        ("terminationGracePeriodSeconds", 30),
        ("dnsPolicy", "ClusterFirst"),
        ("schedulerName", "default-scheduler"),
        ("securityContext", {}),
    ):
        spec.setdefault(name, value)
    for kind in ("initContainers", "containers"):
        if isinstance(spec.get(kind), list):
            spec[kind] = [_default_container(one) if isinstance(one, dict) else one for one in spec[kind]]


def _default_container(container: JsonObject) -> JsonObject:
    filled = dict(container)
    filled.setdefault("imagePullPolicy", _pull_policy(str(container.get("image", ""))))
    filled.setdefault("terminationMessagePath", "/dev/termination-log")
    filled.setdefault("terminationMessagePolicy", "File")
    filled["resources"] = _default_requests(filled.get("resources") or {})
    if isinstance(ports := filled.get("ports"), list):
        filled["ports"] = [{"protocol": "TCP", **port} if isinstance(port, dict) else port for port in ports]
    return filled


def _pull_policy(image: str) -> str:
    """Images without a tag, and those tagged `latest`, are always pulled."""
    tag = image.rpartition("/")[2].partition(":")[2]
    return "IfNotPresent" if "@" in image or tag not in ("", "latest") else "Always"


def _default_requests(resources: JsonObject) -> JsonObject:
    """Requests default to the limits. Quantities are texts, also if a client wrote numbers."""
    texts = {name: _quantity_texts(value) for name, value in resources.items()}
    limits, requests = texts.get("limits"), texts.get("requests") or {}
    if not isinstance(limits, dict) or not isinstance(requests, dict):
        return texts
    return {**texts, "requests": {**limits, **requests}}


def _quantity_texts(amounts: Any) -> Any:
    if not isinstance(amounts, dict):
        return amounts
    return {name: str(value) if isinstance(value, int | float) else value for name, value in amounts.items()}


def _default_tolerations(tolerations: list[JsonObject]) -> list[JsonObject]:
    """With those of the admission plugin DefaultTolerationSeconds."""
    added = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": DEFAULT_TOLERATION_S}
        for key in (NOT_READY, UNREACHABLE)
        if not any(_tolerates_no_execute(one, key) for one in tolerations)
    ]
    return [*tolerations, *added]


def _tolerates_no_execute(toleration: JsonObject, key: str) -> bool:
    return toleration.get("key") in (None, "", key) and toleration.get("effect") in (None, "", "NoExecute")


def quality_of_service(pod: JsonObject) -> str:
    """The class by the CPU and memory requests of its containers."""
    containers = value_at(pod, "spec", "containers", default=[])
    amounts = [_cpu_and_memory(one, kind) for one in containers for kind in ("requests", "limits")]
    if not any(amounts):
        return "BestEffort"
    guaranteed = all(len(_cpu_and_memory(one, "limits")) == 2 for one in containers) and all(
        _cpu_and_memory(one, "requests") == _cpu_and_memory(one, "limits") for one in containers
    )
    return "Guaranteed" if guaranteed else "Burstable"


def _cpu_and_memory(container: JsonObject, kind: str) -> JsonObject:
    amounts = value_at(container, "resources", kind, default={})
    return {name: amounts[name] for name in ("cpu", "memory") if name in amounts}


def default_job(job: JsonObject) -> JsonObject:
    """The selector and the labels that connect a Job with its pods need its uid."""
    spec = job["spec"] = dict(job.get("spec") or {})
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    for name, value in (
        ("parallelism", 1),
        ("backoffLimit", _default_backoff_limit(spec)),
        ("completionMode", "NonIndexed"),
        ("suspend", False),
        ("podReplacementPolicy", "TerminatingOrFailed"),
    ):
        spec.setdefault(name, value)
    template = spec["template"] = dict(spec.get("template") or {})
    template["spec"] = dict(template.get("spec") or {})
    _default_pod_spec(template["spec"])
    if not spec.get("manualSelector") and (uid := value_at(job, "metadata", "uid")):
        _connect_with_pods(job, spec, template, str(uid))
    return job


def _default_backoff_limit(spec: JsonObject) -> int:
    return 2**31 - 1 if spec.get("backoffLimitPerIndex") is not None else 6


def _connect_with_pods(job: JsonObject, spec: JsonObject, template: JsonObject, uid: str) -> None:
    name = str(value_at(job, "metadata", "name", default=""))
    labels = {CONTROLLER_UID: uid, JOB_NAME: name, OLD_CONTROLLER_UID: uid, OLD_JOB_NAME: name}
    metadata = template["metadata"] = dict(template.get("metadata") or {})
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    metadata.setdefault("creationTimestamp", None)
    spec.setdefault("selector", {"matchLabels": {CONTROLLER_UID: uid}})


def default_service(service: JsonObject) -> JsonObject:
    spec = service["spec"] = dict(service.get("spec") or {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("internalTrafficPolicy", "Cluster")
    spec.setdefault("ipFamilies", ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "SingleStack")
    if isinstance(ports := spec.get("ports"), list):
        spec["ports"] = [_default_service_port(port) if isinstance(port, dict) else port for port in ports]
    if spec.get("clusterIP") == "None":
        spec.setdefault("clusterIPs", ["None"])
    service.setdefault("status", {"loadBalancer": {}})
    return service


def _default_service_port(port: JsonObject) -> JsonObject:
    return {"protocol": "TCP", "targetPort": port.get("port"), **port}


def default_namespace(namespace: JsonObject) -> JsonObject:
    namespace.setdefault("spec", {"finalizers": ["kubernetes"]})
    namespace.setdefault("status", {"phase": "Active"})
    name = value_at(namespace, "metadata", "name")
    if name:
        metadata = namespace["metadata"]
        metadata["labels"] = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": name}
    return namespace


def default_secret(secret: JsonObject) -> JsonObject:
    """`stringData` is written into `data`."""
    plain = secret.pop("stringData", None) or {}
    if isinstance(plain, dict) and plain:
        secret["data"] = {**(secret.get("data") or {}), **_encoded(plain.items())}
    secret.setdefault("type", "Opaque")
    return secret


def _encoded(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name: b64encode(str(value).encode()).decode() for name, value in pairs}


def default_node(node: JsonObject) -> JsonObject:
    node.setdefault("spec", {})
    node.setdefault("status", {})
    return node


DEFAULTS: Mapping[str, Callable[[JsonObject], JsonObject]] = {
    "pods": default_pod,
    "jobs.batch": default_job,
    JOB_SETS: lambda found: default_job_set(found, default_job),
    "services": default_service,
    "namespaces": default_namespace,
    "secrets": default_secret,
    "nodes": default_node,
}


# Objects as Kubernetes 1.20 stores them: without the fields and labels of later versions


def _as_in_old_version(resource: str, new: JsonObject) -> JsonObject:
    """The object with what 1.20 knows of it.

    An old API server drops fields that it does not know without a warning, so a client sees that they are missing only
    in the answer.
    """
    old = _without(new, LATER_PATHS.get(resource, ()))
    uid = value_at(old, "spec", "selector", "matchLabels", CONTROLLER_UID)
    if resource != "jobs.batch" or uid is None:
        return old
    return changed(old, "spec", "selector", value={"matchLabels": {OLD_CONTROLLER_UID: uid}})


def _without(new: JsonObject, paths: Iterable[tuple[str, ...]]) -> JsonObject:
    for path in paths:
        if value_at(new, *path) is not None:
            new = changed(new, *path, value=None)
    return new
