"""Requests that only a simulated cluster accepts: faults on request, and plans for jobs that will be submitted."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import httpx

from jobs.logs.allowed_paths import PathNotAllowed
from jobs.models import Cluster
from scheduling.backends.http_client import HttpClient, RequestDeadline
from scheduling.backends.senders import SlurmIdentity
from scheduling.clusters.connections import cluster_token

TIMEOUT_S = 5.0
MAX_RESPONSE_BYTES = 1 << 20


class SimulatorError(Exception):
    """The request was refused or had no answer. The message is a sentence for users."""


def plan_job(cluster: Cluster, public_id: str, plan: Mapping[str, str]) -> None:
    """Decide how a job will go. A plan for a job that is never submitted has no effect."""
    _post(cluster, "/plans", {"plans": {public_id: dict(plan)}})


def store_logs(cluster: Cluster, logs: Mapping[str, str]) -> None:
    """Store whole logs by their paths, as if jobs of the past had written them."""
    _post(cluster, "/logs", {"logs": dict(logs)})


def inject_node_fault(cluster: Cluster, kind: str, node: str) -> None:
    _post(cluster, "/faults", {"kind": kind, "node": node})


def inject_job_fault(cluster: Cluster, kind: str, backend_id: str) -> None:
    _post(cluster, "/faults", {"kind": kind, "job": int(backend_id)})


def _post(cluster: Cluster, path: str, body: Mapping[str, Any]) -> None:
    try:
        headers = SlurmIdentity(user=cluster.api_user, token=cluster_token(cluster)).headers
        with closing(HttpClient(cluster.address, headers, largest=MAX_RESPONSE_BYTES)) as client:
            response = client.request("POST", path, RequestDeadline(TIMEOUT_S), body)
    except (httpx.HTTPError, PathNotAllowed) as error:
        raise SimulatorError(f"The cluster {cluster} does not answer: {error}.") from None
    if response.is_error:
        raise SimulatorError(_refusal(response, cluster))


def _refusal(response: httpx.Response, cluster: Cluster) -> str:
    try:
        return f"The cluster {cluster} refused: {response.json()['errors'][0]['error']}."
    except (ValueError, LookupError, TypeError):
        return f"The cluster {cluster} refused with status {response.status_code}."
