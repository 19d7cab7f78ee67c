"""What the API server supports, found by asking it and never by its version.

Old servers drop unknown fields silently, and then run a Job that should be suspended. So the probes create objects with
`dryRun=All`, which stores nothing, and look at what the answers still contain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from acmeweb.common.http_client import RequestDeadline

from ...base import ClusterUnreachable
from ..api_client import ApiClient
from ..api_errors import ApiRefusal, CommandRefused
from ..fields import mapping_at, mappings_at, text_at
from ..pod_objects import GATE, ApiFeatures

PROBE = "acme-probe"
JOB_SET_GROUP, JOB_SET_RESOURCE = "jobset.x-k8s.io", "jobsets"
EVICTION = "pods/eviction"
# For namespaces that enforce the Pod Security Standard "restricted"
RESTRICTED = {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}


def probe_features(
    api: ApiClient, namespace: str, groups: Mapping[str, Sequence[str]], deadline: RequestDeadline
) -> ApiFeatures:
    """Raises ClusterUnreachable, also if Acme may not create objects in the namespace."""
    job = _dry_run(api, f"/apis/batch/v1/namespaces/{namespace}/jobs", _probe_job(), deadline)
    pod = _dry_run(api, f"/api/v1/namespaces/{namespace}/pods", _probe_pod(), deadline)
    spec = mapping_at(job, "spec")
    return ApiFeatures(
        indexed_jobs=spec.get("completionMode") == "Indexed" and spec.get("suspend") is True,
        scheduling_gates=bool(mappings_at(pod, "spec", "schedulingGates")),
        job_set_path=_job_set_path(api, groups.get(JOB_SET_GROUP, ()), deadline),
    )


def eviction_version(api: ApiClient, deadline: RequestDeadline) -> str:
    """`policy/v1`, or what the server offers; empty if it has no evictions."""
    for entry in mappings_at(api.get("/api/v1", deadline), "resources"):
        if entry.get("name") == EVICTION:
            return f"{text_at(entry, 'group')}/{text_at(entry, 'version')}"
    return ""


def _dry_run(api: ApiClient, path: str, body: object, deadline: RequestDeadline) -> Mapping[str, Any]:
    try:
        return api.command("POST", path, deadline, body, dryRun="All")
    except CommandRefused as error:
        raise ClusterUnreachable(f"{api.server}: Acme cannot submit jobs to {path}: {error}") from None


def _probe_pod() -> dict[str, Any]:
    container = {"name": "probe", "image": "probe", "command": ["true"], **_smallest_resources(), **RESTRICTED}
    spec = {
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "schedulingGates": [{"name": GATE}],
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": PROBE}, "spec": spec}


def _smallest_resources() -> dict[str, Any]:
    """For namespaces with a quota, in which pods must name their resources."""
    amounts = {"cpu": "1m", "memory": "1Mi"}
    return {"resources": {"requests": amounts, "limits": amounts}}


def _probe_job() -> dict[str, Any]:
    pod = _probe_pod()
    template = {"metadata": {}, "spec": {"restartPolicy": "Never", "containers": pod["spec"]["containers"]}}
    spec = {"completionMode": "Indexed", "completions": 1, "parallelism": 1, "suspend": True, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": PROBE}, "spec": spec}


def _job_set_path(api: ApiClient, versions: Sequence[str], deadline: RequestDeadline) -> str:
    for version in versions:
        path = f"/apis/{JOB_SET_GROUP}/{version}"
        try:
            served = mappings_at(api.get(path, deadline), "resources")
        except ApiRefusal:
            continue
        if any(entry.get("name") == JOB_SET_RESOURCE for entry in served):
            return path
    return ""
