"""JobSets: defaults and checks, as the webhooks of the JobSet controller apply them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from scheduling.simulation.kubernetes.objects import JsonObject, value_at

from .errors import FieldError, invalid_value, required, wrong_type

PREFIX = "jobset.sigs.k8s.io"
MAX_REPLICAS = 10_000
Jobs = Callable[[JsonObject], JsonObject]
JobErrors = Callable[[JsonObject], Iterator[FieldError]]


def default_job_set(found: JsonObject, default_job: Jobs) -> JsonObject:
    """With the defaults of its Jobs: Indexed, and pods that find each other by their host names."""
    spec = found["spec"] = dict(found.get("spec") or {})
    network = spec.get("network") if isinstance(spec.get("network"), dict) else {}
    spec["network"] = {"enableDNSHostnames": True, "publishNotReadyAddresses": True, **(network or {})}
    spec.setdefault("successPolicy", {"operator": "All", "targetReplicatedJobs": []})
    spec.setdefault("suspend", False)
    if isinstance(replicated := spec.get("replicatedJobs"), list):
        spec["replicatedJobs"] = [_default_replicated(one, default_job) for one in replicated]
    return found


def _default_replicated(one: Any, default_job: Jobs) -> Any:
    if not isinstance(one, dict) or not isinstance(value_at(one, "template", "spec"), dict):
        return one
    template = one["template"]
    template_spec = {"completionMode": "Indexed", **template["spec"]}
    pod = dict(value_at(template_spec, "template", default={}))
    if isinstance(pod.get("spec"), dict):
        template_spec["template"] = {**pod, "spec": {"restartPolicy": "OnFailure", **pod["spec"]}}
    job = default_job({"metadata": {}, "spec": template_spec})
    return {"replicas": 1, **one, "template": {**template, "spec": job["spec"]}}


def job_set_errors(found: JsonObject, job_errors: JobErrors) -> Iterator[FieldError]:
    replicated = found["spec"].get("replicatedJobs")
    if not isinstance(replicated, list) or not replicated:
        yield required("spec.replicatedJobs")
        return
    for place, one in enumerate(replicated):
        yield from _replicated_errors(one, f"spec.replicatedJobs[{place}]", job_errors)
    names = [one.get("name") for one in replicated if isinstance(one, dict)]
    if len(set(map(str, names))) < len(names):
        yield invalid_value("spec.replicatedJobs", names, "names must be unique")
    if not isinstance(found["spec"].get("suspend"), bool):
        yield wrong_type("spec.suspend", found["spec"].get("suspend"), "must be a boolean")
    most = value_at(found, "spec", "failurePolicy", "maxRestarts", default=0)
    if not isinstance(most, int) or isinstance(most, bool) or most < 0:
        yield wrong_type("spec.failurePolicy.maxRestarts", most, "must be a count")


def _replicated_errors(one: Any, where: str, job_errors: JobErrors) -> Iterator[FieldError]:
    if not isinstance(one, dict) or not isinstance(one.get("name"), str) or not one["name"]:
        yield required(f"{where}.name")
        return
    replicas = one.get("replicas")
    if not isinstance(replicas, int) or isinstance(replicas, bool) or not 0 <= replicas <= MAX_REPLICAS:
        yield invalid_value(f"{where}.replicas", replicas, f"must be between 0 and {MAX_REPLICAS}")
    if not isinstance(value_at(one, "template", "spec"), dict):
        yield required(f"{where}.template.spec")
        return
    for error in job_errors(one["template"]):
        yield FieldError(f"{where}.template.{error.field}", error.reason, error.message)
