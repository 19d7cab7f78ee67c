"""Requests whose answers are compared between the simulated API and a real one.

An answer is reduced to what clients act on: the status code, and of refusals the reason and the fields at fault; of
objects, the values at some paths. What differs between versions of Kubernetes is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

Call = Callable[..., Any]

PODS, JOBS = "/api/v1/namespaces/default/pods", "/apis/batch/v1/namespaces/default/jobs"
MAPS = "/api/v1/namespaces/default/configmaps"
JSON, MERGE = "application/json", "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One request, and the paths of the values that are compared in its answer."""

    name: str
    method: str
    path: str
    body: Any = None
    query: dict[str, str] = field(default_factory=dict)
    content_type: str = JSON
    shown: tuple[str, ...] = ()


def config(name: str, **more: Any) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **more}, "data": {"a": "1"}}


def pod(name: str, node: str = "", **spec: Any) -> dict:
    container = {"name": "main", "image": "registry.example/x:1", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    placed = {"nodeName": node} if node else {"nodeSelector": {"no": "node"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "contract"}},
        "spec": {"restartPolicy": "Never", "containers": [container], **placed, **spec},
    }


def job(name: str, **spec: Any) -> dict:
    template = {"spec": {"restartPolicy": "Never", "nodeSelector": {"no": "node"},
                         "containers": [{"name": "main", "image": "registry.example/x:1"}]}}  # fmt: skip
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": template, **spec}}


POD_DEFAULTS = (
    "spec.terminationGracePeriodSeconds",
    "spec.dnsPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.restartPolicy",
    "spec.tolerations.0.key",
    "spec.tolerations.1.key",
    "spec.enableServiceLinks",
    "spec.priority",
    "spec.preemptionPolicy",
    "spec.containers.0.imagePullPolicy",
    "spec.containers.0.resources",
    "spec.containers.0.terminationMessagePath",
    "spec.containers.0.terminationMessagePolicy",
    "status.phase",
    "status.qosClass",
)
BAD_CONTAINERS = [{"name": "main", "image": "x", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]
HALF_GPU = [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "0.5"}}}]
NOT_A_QUANTITY = [{"name": "main", "image": "x", "resources": {"limits": {"cpu": "many"}}}]

STEPS: tuple[Step, ...] = (
    # Objects
    Step(name="create", method="POST", path=MAPS, body=config("one"), shown=("kind", "apiVersion", "data")),
    Step(name="create again", method="POST", path=MAPS, body=config("one")),
    Step(name="get", method="GET", path=f"{MAPS}/one", shown=("kind", "metadata.name", "metadata.namespace")),
    Step(name="get nothing", method="GET", path=f"{MAPS}/nothing"),
    Step(name="dry run", method="POST", path=MAPS, body=config("dry"), query={"dryRun": "All"}, shown=("data",)),
    Step(name="after the dry run", method="GET", path=f"{MAPS}/dry"),
    Step(name="unknown resource", method="GET", path="/api/v1/nothings"),
    Step(name="unknown group", method="GET", path="/apis/nothing.example/v1/things"),
    Step(name="unknown version", method="GET", path="/apis/batch/v9/jobs"),
    Step(name="wrong kind", method="POST", path=MAPS, body={**config("x"), "kind": "Secret"}),
    Step(name="wrong version", method="POST", path=MAPS, body={**config("x"), "apiVersion": "v2"}),
    Step(name="other namespace", method="POST", path=MAPS, body=config("x", namespace="kube-system")),
    Step(name="no such namespace", method="POST", path=MAPS.replace("default", "none"), body=config("x")),
    Step(name="with a version", method="POST", path=MAPS, body=config("x", resourceVersion="1")),
    Step(name="bad name", method="POST", path=MAPS, body=config("Not_A_Name")),
    Step(name="no name", method="POST", path=MAPS, body={**config(""), "metadata": {}}),
    Step(name="bad label", method="POST", path=MAPS, body=config("x", labels={"a": "not a value"})),
    Step(name="not JSON", method="POST", path=MAPS, body=b"{"),
    Step(name="put old version", method="PUT", path=f"{MAPS}/one", body=config("one", resourceVersion="1")),
    Step(name="put other name", method="PUT", path=f"{MAPS}/one", body=config("two")),
    Step(name="put", method="PUT", path=f"{MAPS}/one", body={**config("one"), "data": {"b": "2"}}, shown=("data",)),
    Step(
        name="merge patch",
        method="PATCH",
        path=f"{MAPS}/one",
        body={"data": {"c": "3", "b": None}},
        content_type=MERGE,
        shown=("data",),
    ),
    Step(
        name="json patch",
        method="PATCH",
        path=f"{MAPS}/one",
        body=[{"op": "add", "path": "/data/d", "value": "4"}],
        content_type=JSON_PATCH,
        shown=("data",),
    ),
    Step(
        name="json patch that fails its test",
        method="PATCH",
        path=f"{MAPS}/one",
        body=[{"op": "test", "path": "/data/d", "value": "5"}],
        content_type=JSON_PATCH,
    ),
    Step(name="patch of no kind", method="PATCH", path=f"{MAPS}/one", body={}, content_type=JSON),
    Step(name="patch nothing", method="PATCH", path=f"{MAPS}/nothing", body={}, content_type=MERGE),
    Step(
        name="delete another uid", method="DELETE", path=f"{MAPS}/one", body={"preconditions": {"uid": "other"}}
    ),
    Step(name="delete", method="DELETE", path=f"{MAPS}/one", shown=("kind", "status", "details.name", "details.kind")),
    Step(name="delete again", method="DELETE", path=f"{MAPS}/one"),
    # Lists
    Step(name="create a", method="POST", path=MAPS, body=config("a", labels={"side": "left"})),
    Step(name="create b", method="POST", path=MAPS, body=config("b", labels={"side": "right"})),
    Step(
        name="list by label",
        method="GET",
        path=MAPS,
        query={"labelSelector": "side in (left)"},
        shown=("kind", "items.0.metadata.name", "items.1", "items.0.kind"),
    ),
    Step(
        name="list by absence",
        method="GET",
        path=MAPS,
        query={"labelSelector": "side!=left,side"},
        shown=("items.0.metadata.name", "items.1"),
    ),
    Step(
        name="list by name", method="GET", path=MAPS, query={"fieldSelector": "metadata.name=b"},
        shown=("items.0.metadata.name", "items.1"),
    ),
    Step(name="bad label selector", method="GET", path=MAPS, query={"labelSelector": "a in b"}),
    Step(name="bad field selector", method="GET", path=MAPS, query={"fieldSelector": "data.a=1"}),
    Step(name="bad continue", method="GET", path=MAPS, query={"limit": "1", "continue": "x"}),
    Step(name="page", method="GET", path=MAPS, query={"limit": "1", "labelSelector": "side"}, shown=("items.1",)),
    Step(name="delete collection", method="DELETE", path=MAPS, query={"labelSelector": "side"}, shown=("kind",)),
    # Pods
    Step(name="pod", method="POST", path=PODS, body=pod("p"), shown=POD_DEFAULTS),
    Step(name="no containers", method="POST", path=PODS, body=pod("x", containers=[])),
    Step(name="request without limit", method="POST", path=PODS, body=pod("x", containers=BAD_CONTAINERS)),
    Step(name="half a GPU", method="POST", path=PODS, body=pod("x", containers=HALF_GPU)),
    Step(name="not a quantity", method="POST", path=PODS, body=pod("x", containers=NOT_A_QUANTITY)),
    Step(name="bad restart policy", method="POST", path=PODS, body=pod("x", restartPolicy="Sometimes")),
    Step(name="no priority class", method="POST", path=PODS, body=pod("x", priorityClassName="none")),
    Step(name="no service account", method="POST", path=PODS, body=pod("x", serviceAccountName="none")),
    Step(
        name="other image",
        method="PATCH",
        path=f"{PODS}/p",
        body=[{"op": "replace", "path": "/spec/containers/0/image", "value": "y:2"}],
        content_type=JSON_PATCH,
        shown=("spec.containers.0.image", "spec.containers.0.resources"),
    ),
    Step(
        name="other command",
        method="PATCH",
        path=f"{PODS}/p",
        body=[{"op": "add", "path": "/spec/containers/0/command", "value": ["sh"]}],
        content_type=JSON_PATCH,
    ),
    Step(
        name="status of the pod through the pod",
        method="PATCH",
        path=f"{PODS}/p",
        body={"status": {"phase": "Failed"}},
        content_type=MERGE,
        shown=("status.phase",),
    ),
    Step(name="log of a pod without a node", method="GET", path=f"{PODS}/p/log"),
    Step(name="log of another container", method="GET", path=f"{PODS}/p/log", query={"container": "none"}),
    Step(name="bind to a node", method="POST", path=f"{PODS}/p/binding",
         body={"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"},
               "target": {"kind": "Node", "name": "gone"}}, shown=("status",)),
    Step(name="bind again", method="POST", path=f"{PODS}/p/binding",
         body={"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"},
               "target": {"kind": "Node", "name": "other"}}),
    Step(name="delete gracefully", method="DELETE", path=f"{PODS}/p", body={"gracePeriodSeconds": 20},
         shown=("kind", "metadata.deletionGracePeriodSeconds", "status.phase")),
    Step(name="delete faster", method="DELETE", path=f"{PODS}/p", body={"gracePeriodSeconds": 5},
         shown=("metadata.deletionGracePeriodSeconds",)),
    Step(name="delete by force", method="DELETE", path=f"{PODS}/p", body={"gracePeriodSeconds": 0}, shown=("kind",)),
    Step(name="evict nothing", method="POST", path=f"{PODS}/none/eviction",
         body={"metadata": {"name": "none"}}),
    # Jobs
    Step(name="job", method="POST", path=JOBS, body=job("j"),
         shown=("spec.completions", "spec.parallelism", "spec.backoffLimit", "spec.template.spec.restartPolicy",
                "spec.template.spec.terminationGracePeriodSeconds")),
    Step(name="job that restarts always", method="POST", path=JOBS,
         body=job("x", template={"spec": {"restartPolicy": "Always", "containers": [{"name": "m", "image": "x"}]}})),
    Step(name="job with negative completions", method="POST", path=JOBS, body=job("x", completions=-1)),
    Step(name="job with another image", method="PATCH", path=f"{JOBS}/j",
         body=[{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "y"}],
         content_type=JSON_PATCH),
    Step(name="job with other completions", method="PATCH", path=f"{JOBS}/j", body={"spec": {"completions": 2}},
         content_type=MERGE),
    Step(name="job with more pods at once", method="PATCH", path=f"{JOBS}/j", body={"spec": {"parallelism": 2}},
         content_type=MERGE, shown=("spec.parallelism",)),
    Step(name="delete job", method="DELETE", path=f"{JOBS}/j", body={"propagationPolicy": "Background"},
         shown=("status", "details.name", "details.kind", "details.group")),
    # Nodes
    Step(name="no such node", method="GET", path="/api/v1/nodes/none"),
    Step(name="nodes by cordon", method="GET", path="/api/v1/nodes", query={"fieldSelector": "spec.unschedulable=true"},
         shown=("kind", "items.0")),
    Step(name="bad taint", method="POST", path="/api/v1/nodes",
         body={"apiVersion": "v1", "kind": "Node", "metadata": {"name": "x"},
               "spec": {"taints": [{"key": "a", "effect": "Sometimes"}]}}),
)  # fmt: skip


def reduced(step: Step, status: int, body: Any) -> dict[str, Any]:
    """What is compared of an answer."""
    if status >= 400:
        refusal = body if isinstance(body, dict) else {}
        causes = (refusal.get("details") or {}).get("causes") or ()
        fields = sorted({str(cause.get("field")) for cause in causes if cause.get("field")})
        return {"status": status, "reason": refusal.get("reason") or "", "fields": fields}
    return {"status": status, **{path: value_at(body, path.split(".")) for path in step.shown}}


def value_at(found: Any, path: Iterable[str]) -> Any:
    for name in path:
        if isinstance(found, list):
            found = found[int(name)] if int(name) < len(found) else None
        else:
            found = found.get(name) if isinstance(found, dict) else None
    return found
