"""Objects as Kubernetes 1.20 stores them: without the fields and labels of later versions. Pure.

An old API server drops fields that it does not know without a warning, so a client sees that they are missing only in
the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scheduling.simulation.kubernetes.objects import JsonObject, changed, value_at

CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
JOB_LABELS = (CONTROLLER_UID, "batch.kubernetes.io/job-name")
JOB_FIELDS = (
    "backoffLimitPerIndex", "completionMode", "managedBy", "maxFailedIndexes", "podFailurePolicy",
    "podReplacementPolicy", "successPolicy", "suspend",
)  # fmt: skip
POD_FIELDS = ("hostUsers", "os", "resourceClaims", "resources", "schedulingGates")
TEMPLATE = ("spec", "template")
LATER_PATHS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "pods": tuple(("spec", name) for name in POD_FIELDS),
    "jobs.batch": (
        *(("spec", name) for name in JOB_FIELDS),
        *((*TEMPLATE, "spec", name) for name in POD_FIELDS),
        *((*TEMPLATE, "metadata", "labels", name) for name in JOB_LABELS),
    ),
}


def as_in_old_version(resource: str, new: JsonObject) -> JsonObject:
    """The object with what 1.20 knows of it."""
    old = _without(new, LATER_PATHS.get(resource, ()))
    uid = value_at(old, "spec", "selector", "matchLabels", CONTROLLER_UID)
    if resource != "jobs.batch" or uid is None:
        return old
    return changed(old, "spec", "selector", value={"matchLabels": {"controller-uid": uid}})


def _without(new: JsonObject, paths: Iterable[tuple[str, ...]]) -> JsonObject:
    for path in paths:
        if value_at(new, *path) is not None:
            new = changed(new, *path, value=None)
    return new
