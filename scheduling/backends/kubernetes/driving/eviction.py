"""Evicts an attempt through the Eviction API, which respects PodDisruptionBudgets.

A gang runs with all its pods or not at all, so one granted eviction ends the attempt, and its other pods are deleted.
Asking for each of them would stop halfway: a budget that allows one disruption refuses the second.

Failure story: killed after the eviction and before the end is recorded, the next `advance_jobs` finds an attempt that
lost a pod, and ends the others. The command is repeated until all are gone.
"""

from __future__ import annotations

from acmeweb.common.http_client import RequestDeadline

from ...base import EvictionRefused, RequestRejected
from ..api_client import ApiClient
from ..api_errors import NOT_FOUND, CommandRefused, DisruptionForbidden
from ..following import PODS
from ..pods import Pod
from .advancing import object_path


def evict_pod(api: ApiClient, pod: Pod, version: str, deadline: RequestDeadline) -> None:
    """Raises EvictionRefused, naming the budget, if the pod may not be evicted now. `version` as served."""
    if not version:
        raise RequestRejected(f"{api.server} does not serve evictions")
    path = f"{object_path(PODS, pod.namespace, pod.name)}/eviction"
    metadata = {"name": pod.name, "namespace": pod.namespace}
    body = {"apiVersion": version, "kind": "Eviction", "metadata": metadata}
    body["deleteOptions"] = {"preconditions": {"uid": pod.uid}}
    try:
        api.command("POST", path, deadline, body)
    except DisruptionForbidden as error:
        raise EvictionRefused(f"pod {pod.namespace}/{pod.name} may not be evicted now: {error}") from None
    except CommandRefused as error:
        if error.status != NOT_FOUND:
            raise
