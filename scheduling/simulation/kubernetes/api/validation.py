"""Checks the fields of new and changed objects, with the sentences of the API server. Pure.

Field types that would break a controller are checked too: what a client sends is not trusted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from scheduling.simulation.kubernetes.objects import JsonObject, value_at

from .errors import FieldError, forbidden_field, invalid_value, not_supported, required, wrong_type
from .job_sets import job_set_errors
from .quantities import parse_quantity
from .resources import JOB_SETS
from .selectors import LABEL_KEY, LABEL_VALUE

Errors = Iterator[FieldError]

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
RBAC_NAME = re.compile(r"[^/%]+")
SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and"
    " end with an alphanumeric character"
)
LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with"
    " an alphanumeric character"
)
LABEL_NAMES = frozenset({"namespaces", "services"})
RESTART_POLICIES = ("Always", "OnFailure", "Never")
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
MAX_ANNOTATIONS_BYTES = 256 * 1024
QUANTITY_RULE = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
MAX_INT32 = 2**31 - 1
STANDARD_RESOURCES = ("cpu", "memory", "ephemeral-storage", "pods")


def object_errors(resource: str, new: JsonObject) -> list[FieldError]:
    """Everything that is wrong with an object that has its defaults."""
    errors = list(_metadata_errors(resource, new["metadata"]))
    return errors or list(CHECKS.get(resource, _no_errors)(new))


def _no_errors(new: JsonObject) -> Errors:
    return iter(())


def _metadata_errors(resource: str, metadata: JsonObject) -> Errors:
    yield from _name_errors(resource, metadata)
    for field in ("labels", "annotations"):
        yield from _string_map_errors(f"metadata.{field}", metadata.get(field))
    yield from _label_errors("metadata.labels", metadata.get("labels"))
    if len(json.dumps(metadata.get("annotations") or {})) > MAX_ANNOTATIONS_BYTES:
        yield FieldError("metadata.annotations", "FieldValueTooLong", "Too long: may not be more than 262144 bytes")
    yield from _owner_errors(metadata.get("ownerReferences"))
    finalizers = metadata.get("finalizers") or []
    if not isinstance(finalizers, list) or not all(isinstance(one, str) for one in finalizers):
        yield wrong_type("metadata.finalizers", finalizers, "must be a list of names")


def _name_errors(resource: str, metadata: JsonObject) -> Errors:
    name = metadata.get("name")
    if not isinstance(name, str) or not name:
        yield required("metadata.name", "name or generateName is required")
    elif resource.endswith("rbac.authorization.k8s.io"):
        if not RBAC_NAME.fullmatch(name) or name in (".", ".."):
            yield invalid_value("metadata.name", name, "may not contain '/' or '%'")
    elif resource in LABEL_NAMES:
        if not DNS_LABEL.fullmatch(name):
            yield invalid_value("metadata.name", name, LABEL_RULE)
    elif len(name) > 253 or not DNS_SUBDOMAIN.fullmatch(name):
        yield invalid_value("metadata.name", name, SUBDOMAIN_RULE)


def _string_map_errors(field: str, values: Any) -> Errors:
    if values is not None and not (
        isinstance(values, dict) and all(isinstance(value, str) for value in values.values())
    ):
        yield wrong_type(field, values, "must be a map of strings")


def _label_errors(field: str, labels: Any) -> Errors:
    for key, value in labels.items() if isinstance(labels, dict) else ():
        if not re.fullmatch(LABEL_KEY, key):
            yield invalid_value(field, key, "a qualified name must consist of alphanumeric characters, '-', '_' or '.'")
        if not re.fullmatch(LABEL_VALUE, str(value)):
            yield invalid_value(
                field, value, "a valid label must be an empty string or consist of alphanumeric characters, '-', '_'"
                " or '.', and must start and end with an alphanumeric character"
            )  # fmt: skip


def _owner_errors(owners: Any) -> Errors:
    if owners is None:
        return
    if not isinstance(owners, list) or not all(isinstance(one, dict) for one in owners):
        yield wrong_type("metadata.ownerReferences", owners, "must be a list of references")
        return
    for place, owner in enumerate(owners):
        for name in ("apiVersion", "kind", "name", "uid"):
            if not isinstance(owner.get(name), str) or not owner[name]:
                yield required(f"metadata.ownerReferences[{place}].{name}")
    if sum(owner.get("controller") is True for owner in owners) > 1:
        yield invalid_value("metadata.ownerReferences", owners, "Only one reference can have Controller set to true")


# Pods


def pod_errors(pod: JsonObject) -> Errors:
    spec = pod["spec"]
    yield from pod_spec_errors(spec, "spec")
    if spec.get("nodeName") and spec.get("schedulingGates"):
        yield forbidden_field("spec.nodeName", "cannot be set until all schedulingGates have been cleared")


def pod_spec_errors(spec: JsonObject, path: str) -> Errors:
    yield from _containers_errors(spec, path)
    yield from _int_errors(spec, path, "terminationGracePeriodSeconds", 0)
    yield from _int_errors(spec, path, "activeDeadlineSeconds", 1)
    if spec.get("restartPolicy") not in RESTART_POLICIES:
        yield not_supported(f"{path}.restartPolicy", spec.get("restartPolicy"), RESTART_POLICIES)
    yield from _string_map_errors(f"{path}.nodeSelector", spec.get("nodeSelector"))
    for name in ("tolerations", "schedulingGates", "volumes", "imagePullSecrets"):
        yield from _object_list_errors(f"{path}.{name}", spec.get(name))
    for name in ("affinity", "securityContext"):
        if not isinstance(spec.get(name) or {}, dict):
            yield wrong_type(f"{path}.{name}", spec[name], "must be an object")
    for name in ("nodeName", "schedulerName", "serviceAccountName", "priorityClassName", "hostname", "subdomain"):
        if not isinstance(spec.get(name) or "", str):
            yield wrong_type(f"{path}.{name}", spec[name], "must be a string")


def _containers_errors(spec: JsonObject, path: str) -> Errors:
    if not isinstance(spec.get("containers"), list) or not spec["containers"]:
        yield required(f"{path}.containers")
        return
    names: set[str] = set()
    for kind in ("initContainers", "containers"):
        for place, container in enumerate(spec.get(kind) or []):
            where = f"{path}.{kind}[{place}]"
            if not isinstance(container, dict):
                yield wrong_type(where, container, "must be an object")
                continue
            yield from _container_errors(container, where)
            if (name := str(container.get("name"))) in names:
                yield FieldError(f"{where}.name", "FieldValueDuplicate", f'Duplicate value: "{name}"')
            names.add(name)


def _container_errors(container: JsonObject, where: str) -> Errors:
    name = container.get("name")
    if not isinstance(name, str) or not name:
        yield required(f"{where}.name")
    elif not DNS_LABEL.fullmatch(name):
        yield invalid_value(f"{where}.name", name, LABEL_RULE)
    if not isinstance(container.get("image"), str) or not container["image"].strip():
        yield required(f"{where}.image")
    if container.get("imagePullPolicy") not in PULL_POLICIES:
        yield not_supported(f"{where}.imagePullPolicy", container.get("imagePullPolicy"), PULL_POLICIES)
    for field in ("command", "args"):
        if not all(isinstance(word, str) for word in container.get(field) or ()):
            yield wrong_type(f"{where}.{field}", container[field], "must be a list of strings")
    for field in ("env", "volumeMounts", "ports", "envFrom"):
        yield from _object_list_errors(f"{where}.{field}", container.get(field))
    yield from _environment_errors(container, where)
    yield from _resources_errors(container["resources"], f"{where}.resources")


def _environment_errors(container: JsonObject, where: str) -> Errors:
    for place, variable in enumerate(container.get("env") or []):
        if not isinstance(variable, dict) or not isinstance(variable.get("name"), str) or not variable["name"]:
            yield required(f"{where}.env[{place}].name")
        elif not isinstance(variable.get("value") or "", str):
            yield wrong_type(f"{where}.env[{place}].value", variable["value"], "must be a string")


def _resources_errors(resources: Any, where: str) -> Errors:
    if not isinstance(resources, dict):
        yield wrong_type(where, resources, "must be an object")
        return
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for kind, amounts in (("limits", limits), ("requests", requests)):
        if not isinstance(amounts, dict):
            yield wrong_type(f"{where}.{kind}", amounts, "must be a map of quantities")
            return
        for name, value in amounts.items():
            yield from _quantity_errors(f"{where}.{kind}[{name}]", name, value)
    yield from _limit_errors(limits, requests, where)


def _quantity_errors(field: str, name: str, value: Any) -> Errors:
    try:
        amount = parse_quantity(value)
    except ValueError:
        yield wrong_type(field, value, QUANTITY_RULE)
        return
    if amount < 0:
        yield invalid_value(field, value, "must be greater than or equal to 0")
    elif is_extended(name) and amount != amount.to_integral_value():
        yield invalid_value(field, value, "must be an integer")


def _limit_errors(limits: JsonObject, requests: JsonObject, where: str) -> Errors:
    for name, value in requests.items():
        try:
            amount, limit = parse_quantity(value), parse_quantity(limits.get(name, value))
        except ValueError:
            continue  # reported already
        if is_extended(name) and name not in limits:
            yield required(f"{where}.limits", "Limit must be set for non overcommitable resources")
        elif is_extended(name) and amount != limit:
            yield invalid_value(f"{where}.requests", str(value), f"must be equal to {name} limit of {limits[name]}")
        elif amount > limit:
            yield invalid_value(
                f"{where}.requests", str(value), f"must be less than or equal to {name} limit of {limits[name]}"
            )


def is_extended(name: str) -> bool:
    """Whether the resource is a device such as `nvidia.com/gpu`."""
    return "/" in name and not name.startswith("kubernetes.io/")


def _object_list_errors(field: str, values: Any) -> Errors:
    if values is not None and not (isinstance(values, list) and all(isinstance(one, dict) for one in values)):
        yield wrong_type(field, values, "must be a list of objects")


def _int_errors(found: JsonObject, path: str, name: str, least: int) -> Errors:
    value = found.get(name)
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        yield wrong_type(f"{path}.{name}", value, "must be an integer")
    elif value < least or value > MAX_INT32:
        rule = "must be greater than or equal to 0" if least == 0 else f"must be between {least} and {MAX_INT32},"
        yield invalid_value(f"{path}.{name}", value, rule if least == 0 else f"{rule} inclusive")


# Other resources


def job_errors(job: JsonObject) -> Errors:
    spec = job["spec"]
    for name in ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        yield from _int_errors(spec, "spec", name, 0)
    modes = ("NonIndexed", "Indexed")
    mode = spec.get("completionMode", "NonIndexed")
    if mode not in modes:
        yield not_supported("spec.completionMode", mode, modes)
    elif mode == "Indexed" and spec.get("completions") is None:
        yield required("spec.completions", "when completion mode is Indexed")
    if not isinstance(spec.get("suspend", False), bool):
        yield wrong_type("spec.suspend", spec.get("suspend"), "must be a boolean")
    template = spec["template"]
    yield from _string_map_errors("spec.template.metadata.labels", value_at(template, "metadata", "labels"))
    yield from pod_spec_errors(template["spec"], "spec.template.spec")
    if template["spec"].get("restartPolicy") == "Always":
        yield required("spec.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"')


def budget_errors(budget: JsonObject) -> Errors:
    spec = budget.get("spec") if isinstance(budget.get("spec"), dict) else {}
    assert spec is not None
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        yield invalid_value("spec", spec, "minAvailable and maxUnavailable cannot be both set")
    for name in ("minAvailable", "maxUnavailable"):
        value = spec.get(name)
        if value is not None and not _is_count_or_percentage(value):
            yield invalid_value(f"spec.{name}", value, "must be a non-negative integer or a percentage")
    if not isinstance(spec.get("selector") or {}, dict):
        yield wrong_type("spec.selector", spec["selector"], "must be an object")


def _is_count_or_percentage(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return value >= 0
    return isinstance(value, str) and re.fullmatch(r"\d{1,3}%", value) is not None


def node_errors(node: JsonObject) -> Errors:
    taints = value_at(node, "spec", "taints", default=[])
    yield from _object_list_errors("metadata.taints", taints)
    for place, taint in enumerate(taints if isinstance(taints, list) else []):
        if isinstance(taint, dict) and taint.get("effect") not in TAINT_EFFECTS:
            yield not_supported(f"metadata.taints[{place}].effect", taint.get("effect"), TAINT_EFFECTS)


def service_errors(service: JsonObject) -> Errors:
    spec = service["spec"]
    headless = spec.get("clusterIP") == "None" or spec.get("type") == "ExternalName"
    if not spec.get("ports") and not headless:
        yield required("spec.ports")
    yield from _object_list_errors("spec.ports", spec.get("ports"))
    yield from _string_map_errors("spec.selector", spec.get("selector"))


def data_errors(new: JsonObject) -> Errors:
    yield from _string_map_errors("data", new.get("data"))


CHECKS: Mapping[str, Callable[[JsonObject], Errors]] = {
    "pods": pod_errors,
    "jobs.batch": job_errors,
    JOB_SETS: lambda found: job_set_errors(found, job_errors),
    "nodes": node_errors,
    "services": service_errors,
    "poddisruptionbudgets.policy": budget_errors,
    "configmaps": data_errors,
    "secrets": data_errors,
}
