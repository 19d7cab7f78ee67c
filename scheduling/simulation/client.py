"""Requests that only a simulated cluster accepts: faults, clocks of GPUs, and plans for jobs that will be submitted.

Both simulators have the same paths beside the API that they simulate. A fault of a job is addressed by its number on a
Slurm cluster, and by one of its pods on a Kubernetes cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import httpx

from acmeweb.common.errors import InvalidInput
from acmeweb.common.http_client import HttpClient, RequestDeadline
from jobs.core.cluster_kinds import KUBERNETES
from jobs.models import Attempt, Cluster
from scheduling.backends.base import BackendError
from scheduling.backends.kubernetes.api_client import ApiClient
from scheduling.backends.kubernetes.api_errors import CommandRefused
from scheduling.backends.kubernetes.connection.access import parse_address
from scheduling.backends.kubernetes.fields import mappings_at, text_at
from scheduling.backends.kubernetes.ownership import KEY_LABEL
from scheduling.backends.senders import SlurmIdentity
from scheduling.clusters.clock_command import ClocksNotSet
from scheduling.clusters.connections import cluster_token, secret_reader

TIMEOUT_S = 5.0
MAX_RESPONSE_BYTES = 1 << 20


class SimulatorError(Exception):
    """The request was refused or had no answer. The message is a sentence for users."""


def plan_job(cluster: Cluster, public_id: str, plan: Mapping[str, str]) -> None:
    """Decide how a job will go. A plan for a job that is never submitted has no effect."""
    _post(cluster, "/plans", {"plans": {public_id: dict(plan)}})


def store_logs(cluster: Cluster, logs: Mapping[str, str]) -> None:
    """Store whole logs by their paths, as if jobs of the past had written them. Slurm only."""
    _post(cluster, "/logs", {"logs": dict(logs)})


def inject_node_fault(cluster: Cluster, kind: str, node: str) -> None:
    _post(cluster, "/faults", {"kind": kind, "node": node})


def inject_job_fault(cluster: Cluster, kind: str, attempt: Attempt) -> None:
    where = {"pod": _first_pod(cluster, attempt)} if cluster.kind is KUBERNETES else {"job": int(attempt.backend_id)}
    _post(cluster, "/faults", {"kind": kind, **where})


def set_clocks(cluster: Cluster, clocks: Mapping[str, int | None]) -> None:
    """Set the clocks of the GPUs in MHz, by node; None is the highest. Raises ClocksNotSet."""
    try:
        _post(cluster, "/clocks", {"clocks": dict(clocks)})
    except SimulatorError as error:
        raise ClocksNotSet(str(error)) from None


def create_object(cluster: Cluster, path: str, body: Mapping[str, Any]) -> None:
    """Create an object of a simulated Kubernetes cluster unless it exists."""
    with _kubernetes(cluster) as (api, deadline):
        try:
            api.command("POST", path, deadline, body)
        except CommandRefused as error:
            if error.reason != "AlreadyExists":
                raise


def _first_pod(cluster: Cluster, attempt: Attempt) -> str:
    """NAMESPACE/NAME of the first pod of an attempt that runs. A pod of another owner than Acme names it by its uid."""
    with _kubernetes(cluster) as (api, deadline):
        pods = mappings_at(api.get("/api/v1/pods", deadline, fieldSelector="status.phase=Running"), "items")
        for pod in sorted(pods, key=lambda pod: text_at(pod, "metadata", "name")):
            owners = {text_at(owner, "uid") for owner in mappings_at(pod, "metadata", "ownerReferences")}
            key = text_at(pod, "metadata", "labels", KEY_LABEL)
            if key == attempt.key or attempt.backend_id in {text_at(pod, "metadata", "uid"), *owners}:
                return f"{text_at(pod, 'metadata', 'namespace')}/{text_at(pod, 'metadata', 'name')}"
    raise SimulatorError(f"No pod of {attempt.key} runs.")


def _post(cluster: Cluster, path: str, body: Mapping[str, Any]) -> None:
    if cluster.kind is KUBERNETES:
        with _kubernetes(cluster) as (api, deadline):
            api.command("POST", path, deadline, body)
        return
    try:
        headers = SlurmIdentity(user=cluster.api_user, token=cluster_token(cluster)).headers
        with closing(HttpClient(cluster.address, headers, largest=MAX_RESPONSE_BYTES)) as client:
            response = client.request("POST", path, RequestDeadline(TIMEOUT_S), body)
    except (httpx.HTTPError, InvalidInput) as error:
        raise SimulatorError(f"The cluster {cluster} does not answer: {error}.") from None
    if response.is_error:
        raise SimulatorError(_refusal(response, cluster))


@contextmanager
def _kubernetes(cluster: Cluster) -> Iterator[tuple[ApiClient, RequestDeadline]]:
    try:
        address, reader = parse_address(cluster.address), secret_reader(cluster)
        with closing(ApiClient(address, reader, TIMEOUT_S, plain_http=cluster.is_bundled)) as api:
            yield api, api.new_deadline()
    except (BackendError, ValueError) as error:
        raise SimulatorError(f"The cluster {cluster} refused or does not answer: {error}.") from None


def _refusal(response: httpx.Response, cluster: Cluster) -> str:
    try:
        return f"The cluster {cluster} refused: {response.json()['errors'][0]['error']}."
    except (ValueError, LookupError, TypeError):
        return f"The cluster {cluster} refused with status {response.status_code}."
