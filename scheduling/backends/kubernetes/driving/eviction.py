"""Evicts the pods of an attempt through the Eviction API, which respects PodDisruptionBudgets.

Failure story: the attempt ends when the first of its pods is evicted, so the command is repeated until all are gone.
Killed in between: the next `advance_jobs` finds an attempt that lost a pod, and ends the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...base import EvictionRefused, RequestRejected
from ..api_client import ApiClient
from ..api_errors import NOT_FOUND, CommandRefused, DisruptionForbidden
from ..following import PODS
from ..pods import Pod
from .advancing import object_path


def evict_pods(api: ApiClient, pods: Sequence[Pod], version: str) -> None:
    """Raises EvictionRefused, naming the budget, if one of them may not be evicted now. `version` as served."""
    if not version:
        raise RequestRejected(f"{api.server} does not serve evictions")
    for pod in pods:
        _evict_pod(api, pod, version)


def _evict_pod(api: ApiClient, pod: Pod, version: str) -> None:
    path = f"{object_path(PODS, pod.namespace, pod.name)}/eviction"
    metadata = {"name": pod.name, "namespace": pod.namespace}
    body = {"apiVersion": version, "kind": "Eviction", "metadata": metadata}
    body["deleteOptions"] = {"preconditions": {"uid": pod.uid}}
    try:
        api.command("POST", path, api.new_deadline(), body)
    except DisruptionForbidden as error:
        raise EvictionRefused(f"pod {pod.namespace}/{pod.name} may not be evicted now: {error}") from None
    except CommandRefused as error:
        if error.status != NOT_FOUND:
            raise
