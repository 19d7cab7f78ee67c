"""Which file a request for a log means, and which part of it. Answers as a kubelet does."""

from __future__ import annotations

from pathlib import Path

from .api.errors import ApiError, bad_request
from .api.reading import find_object
from .api.requests import TRUE_TEXTS, ApiRequest, int_query
from .cluster import KubernetesCluster
from .kubelets.node_status import node_ip
from .objects import JsonObject, seconds_of
from .pod_logs import LogOptions, log_path
from .values import PodRuntime


def log_options(request: ApiRequest) -> LogOptions:
    """Raises ApiError for a wrong value."""
    query = request.query
    since = query.get("sinceTime", "")
    return LogOptions(
        follow=query.get("follow") in TRUE_TEXTS,
        timestamps=query.get("timestamps") in TRUE_TEXTS,
        since=_time(since) if since else 0.0,
        limit_bytes=int_query(query, "limitBytes"),
    )


def _time(text: str) -> float:
    try:
        return seconds_of(text)
    except ValueError:
        raise bad_request(f"sinceTime: {text:.60} is not a time as in 2026-01-31T08:00:00Z") from None


def find_log(cluster: KubernetesCluster, request: ApiRequest, root: Path) -> Path | None:
    """The file of a container's log; None if the pod has no node.

    Raises ApiError if the container has not started, or its kubelet does not answer.
    """
    pod = find_object(cluster.store, request.key).object
    container = container_of(pod, request.query.get("container", ""))
    if not pod["spec"].get("nodeName"):
        return None
    runtime = cluster.kubelets.runtimes.get(request.key)
    if runtime is None or not runtime.started_at:
        raise _waiting(pod, container, runtime)
    _check_kubelet(cluster, pod, container)
    return log_path(root, runtime.uid, runtime.namespace, runtime.name, container, runtime.restarts)


def container_of(pod: JsonObject, name: str) -> str:
    """The container that a request means. Raises ApiError."""
    names = [str(one["name"]) for one in pod["spec"]["containers"]]
    if not name and len(names) > 1:
        raise bad_request(
            f"a container name must be specified for pod {pod['metadata']['name']}, choose one of: [{' '.join(names)}]"
        )
    if name and name not in names:
        raise bad_request(f"container {name:.80} is not valid for pod {pod['metadata']['name']}")
    return name or names[0]


def _waiting(pod: JsonObject, container: str, runtime: PodRuntime | None) -> ApiError:
    name = pod["metadata"]["name"]
    reason = "trying and failing to pull image" if runtime and runtime.pull_failures else "ContainerCreating"
    return bad_request(f'container "{container}" in pod "{name}" is waiting to start: {reason}')


def _check_kubelet(cluster: KubernetesCluster, pod: JsonObject, container: str) -> None:
    node = str(pod["spec"]["nodeName"])
    machine = cluster.kubelets.machine(node)
    if machine is None or not machine.reports:
        metadata = pod["metadata"]
        where = f"https://{node_ip(node)}:10250/containerLogs/{metadata['namespace']}/{metadata['name']}/{container}"
        message = f'Get "{where}": dial tcp {node_ip(node)}:10250: connect: connection refused'
        raise ApiError(500, "InternalError", message)
