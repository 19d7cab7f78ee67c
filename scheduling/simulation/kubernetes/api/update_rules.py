"""What may change in an existing object. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from scheduling.simulation.kubernetes.objects import JsonObject, deep_copy, value_at

from .errors import FieldError, forbidden_field, invalid_value

Errors = Iterator[FieldError]

IMMUTABLE_METADATA = (
    "name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink",
    "generateName",
)  # fmt: skip
POD_UPDATE_RULE = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing"
    " tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def with_fixed_fields(old: JsonObject, new: JsonObject, *, status_only: bool, has_status: bool) -> JsonObject:
    """The new object with what an update cannot change: parts of the metadata, and status or everything but status."""
    metadata = {**(new.get("metadata") or {})}
    for name in IMMUTABLE_METADATA:
        metadata.pop(name, None)
        if name in old["metadata"]:
            metadata[name] = old["metadata"][name]
    metadata.pop("managedFields", None)
    if "generation" in old["metadata"]:
        metadata["generation"] = old["metadata"]["generation"]
    if status_only:
        finalizers = {name: old["metadata"][name] for name in ("finalizers",) if name in old["metadata"]}
        kept = {**metadata, **finalizers}
        return {**old, "metadata": kept, "status": new.get("status", {})}
    fixed = {**new, "metadata": metadata}
    if has_status:
        fixed.pop("status", None)
        if "status" in old:
            fixed["status"] = old["status"]
    return fixed


def update_errors(resource: str, old: JsonObject, new: JsonObject) -> list[FieldError]:
    return list(RULES.get(resource, _no_errors)(old, new))


def _no_errors(old: JsonObject, new: JsonObject) -> Errors:
    return iter(())


def _pod_errors(old: JsonObject, new: JsonObject) -> Errors:
    before, after = deep_copy(old["spec"]), deep_copy(new["spec"])
    gates = [gate["name"] for gate in before.pop("schedulingGates", None) or []]
    kept = [gate.get("name") for gate in after.pop("schedulingGates", None) or []]
    for name in kept:
        if name not in gates:
            text = f"only deletion is allowed, but found new scheduling gate '{name!s:.80}'"
            yield forbidden_field("spec.schedulingGates", text)
    if gates:  # a gated pod has not been scheduled, so its constraints may become tighter
        yield from _tighter_placement_errors(before, after)
    yield from _toleration_errors(before.pop("tolerations", []), after.pop("tolerations", []))
    for spec in (before, after):
        spec.pop("activeDeadlineSeconds", None)
        for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
            container.pop("image", None)
    if before != after:
        yield forbidden_field("spec", POD_UPDATE_RULE)


def _tighter_placement_errors(before: JsonObject, after: JsonObject) -> Errors:
    """Take the placement of a gated pod out of both specs: it may become tighter, never wider."""
    old, new = before.pop("nodeSelector", None) or {}, after.pop("nodeSelector", None) or {}
    if not old.items() <= new.items():
        yield invalid_value(
            "spec.nodeSelector", new, "only additions are allowed to spec.nodeSelector (no mutations or deletions)"
        )


def _toleration_errors(before: list[JsonObject], after: list[JsonObject]) -> Errors:
    if any(toleration not in after for toleration in before):
        yield forbidden_field(
            "spec.tolerations", "existing toleration can not be modified except its tolerationSeconds"
        )


def _job_errors(old: JsonObject, new: JsonObject) -> Errors:
    before, after = old["spec"], new["spec"]
    for name in ("completionMode", "selector", "podFailurePolicy", "backoffLimitPerIndex"):
        if before.get(name) != after.get(name):
            yield invalid_value(f"spec.{name}", after.get(name), "field is immutable")
    if before.get("completions") != after.get("completions") and not _is_elastic(after):
        yield invalid_value("spec.completions", after.get("completions"), "field is immutable")
    if _fixed_template(old, before) != _fixed_template(old, after):
        yield invalid_value("spec.template", after.get("template"), "field is immutable")


def _is_elastic(spec: JsonObject) -> bool:
    """An indexed Job may be resized if parallelism and completions stay equal."""
    return spec.get("completionMode") == "Indexed" and spec.get("completions") == spec.get("parallelism")


def _fixed_template(job: JsonObject, spec: JsonObject) -> JsonObject:
    """The template without the scheduling directives, which may change while the Job is suspended and has not begun."""
    template = deep_copy(spec["template"])
    if job["spec"].get("suspend") and value_at(job, "status", "startTime") is None:
        template.pop("metadata", None)
        for name in ("nodeSelector", "tolerations", "schedulingGates"):
            template["spec"].pop(name, None)
    return template


RULES: Mapping[str, Callable[[JsonObject, JsonObject], Errors]] = {"pods": _pod_errors, "jobs.batch": _job_errors}
