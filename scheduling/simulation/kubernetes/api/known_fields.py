"""The names of the fields that objects may have. Unknown ones are dropped, with a warning or an error. Pure.

Only the objects that clients of this cluster write are listed; a field that is listed without fields of its own is not
looked into. A real API server drops unknown fields in the same way, and a client notices a misspelled field here too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scheduling.simulation.kubernetes.objects import JsonObject

Fields = Mapping[str, Any]  # name -> fields below it, or None


def _names(text: str) -> dict[str, Any]:
    return dict.fromkeys(text.split())


METADATA: Fields = _names(
    "annotations creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers generateName generation"
    " labels managedFields name namespace ownerReferences resourceVersion selfLink uid"
)
TOP: Fields = {**_names("apiVersion kind"), "metadata": METADATA}
CONTAINER: Fields = _names(
    "args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe resizePolicy"
    " resources restartPolicy securityContext startupProbe stdin stdinOnce terminationMessagePath"
    " terminationMessagePolicy tty volumeDevices volumeMounts workingDir"
)
POD_SPEC: Fields = {
    **_names(
        "activeDeadlineSeconds affinity automountServiceAccountToken dnsConfig dnsPolicy enableServiceLinks"
        " ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers hostname imagePullSecrets nodeName"
        " nodeSelector os overhead preemptionPolicy priority priorityClassName readinessGates resourceClaims resources"
        " restartPolicy runtimeClassName schedulerName schedulingGates securityContext serviceAccount"
        " serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain terminationGracePeriodSeconds"
        " tolerations topologySpreadConstraints volumes"
    ),
    "containers": CONTAINER,
    "initContainers": CONTAINER,
}
JOB_SPEC: Fields = {
    **_names(
        "activeDeadlineSeconds backoffLimit backoffLimitPerIndex completionMode completions managedBy manualSelector"
        " maxFailedIndexes parallelism podFailurePolicy podReplacementPolicy selector successPolicy suspend"
        " ttlSecondsAfterFinished"
    ),
    "template": {"metadata": METADATA, "spec": POD_SPEC},
}
FIELDS: Mapping[str, Fields] = {
    "pods": {**TOP, "spec": POD_SPEC, "status": None},
    "jobs.batch": {**TOP, "spec": JOB_SPEC, "status": None},
    "configmaps": {**TOP, **_names("binaryData data immutable")},
    "secrets": {**TOP, **_names("data immutable stringData type")},
    "namespaces": {**TOP, "spec": _names("finalizers"), "status": None},
    "nodes": {
        **TOP,
        "spec": _names("configSource externalID podCIDR podCIDRs providerID taints unschedulable"),
        "status": None,
    },
    "poddisruptionbudgets.policy": {
        **TOP,
        "spec": _names("maxUnavailable minAvailable selector unhealthyPodEvictionPolicy"),
        "status": None,
    },
    "leases.coordination.k8s.io": {
        **TOP,
        "spec": _names(
            "acquireTime holderIdentity leaseDurationSeconds leaseTransitions preferredHolder renewTime strategy"
        ),
    },
}


def without_unknown_fields(resource: str, new: JsonObject) -> tuple[JsonObject, list[str]]:
    """The object without fields that its resource does not have, and the paths of those."""
    fields = FIELDS.get(resource)
    if fields is None:
        return new, []
    unknown: list[str] = []
    return _known_value(new, fields, "", unknown), unknown


def _known_value(value: Any, fields: Fields, path: str, unknown: list[str]) -> Any:
    if isinstance(value, list):
        return [_known_value(one, fields, f"{path}[{place}]", unknown) for place, one in enumerate(value)]
    if not isinstance(value, dict):
        return value
    return dict(_known_items(value, fields, path, unknown))


def _known_items(value: JsonObject, fields: Fields, path: str, unknown: list[str]) -> Iterator[tuple[str, Any]]:
    for name, one in value.items():
        below = f"{path}.{name}" if path else name
        if name not in fields:
            unknown.append(f'unknown field "{below:.200}"')
        else:
            yield name, one if fields[name] is None else _known_value(one, fields[name], below, unknown)
