"""Backends of clusters, with one connection per process and cluster."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from django.conf import settings as django_settings

from acmeweb.common.errors import InvalidInput
from jobs.logs import allowed_paths
from jobs.models import Cluster, Installation
from jobs.models.cluster import SubmitIdentity
from scheduling.backends.base import Backend, ClusterUnreachable
from scheduling.backends.kubernetes.connection.access import ReadFile
from scheduling.backends.opening import open_backend
from scheduling.backends.senders import IdentityProvider, ServiceTokenIdentities, UserTokenIdentities, token_user

_open_connections: dict[int, tuple[tuple[str, ...], Backend]] = {}


def ping(cluster: Cluster, timeout_s: float) -> None:
    """Ping the cluster over a separate connection with this timeout. Raises BackendError."""
    with closing(_open(cluster, _token(cluster), timeout_s=timeout_s)) as backend:
        backend.ping()


def connect(cluster: Cluster) -> Backend:
    """Return the cluster's connection. The token file is read each time, so a rotated token opens a new connection.

    A connection whose settings have changed is closed: it may watch the cluster.
    """
    token = _token(cluster)
    settings = json.dumps([cluster.workload_owners, cluster.pod_template], sort_keys=True)
    key = (cluster.address, cluster.api_user, token, cluster.submit_as, cluster.user_token_directory, settings)
    known = _open_connections.get(cluster.pk)
    if known is not None and known[0] == key:
        return known[1]
    senders, installation = _submit_senders(cluster, token), Installation.current_id()
    backend = _open(cluster, token, senders=senders, installation=installation)
    _open_connections[cluster.pk] = (key, backend)
    if known is not None:
        known[1].close()
    return backend


def _open(cluster: Cluster, token: str, **options: Any) -> Backend:
    settings = {name: getattr(cluster, name) for name in ("workload_owners", "pod_template")}
    connection = {"user": cluster.api_user, "token": token, "pod_limits": django_settings.ACME_POD_LIMITS, **settings}
    try:
        reading = {"read_file": secret_reader(cluster), "plain_http": cluster.is_bundled}
        return open_backend(cluster.address, **reading, **connection, **options)
    except ValueError as error:
        raise ClusterUnreachable(str(error)) from None


def _submit_senders(cluster: Cluster, token: str) -> IdentityProvider | None:
    user = cluster.api_user or token_user(token)
    if cluster.submit_as == SubmitIdentity.USER_HEADER:
        return ServiceTokenIdentities(service_user=user, token=token)
    if cluster.submit_as == SubmitIdentity.USER_TOKENS:
        read = allowed_paths.load_allowed_paths().read_token
        return UserTokenIdentities(service_user=user, directory=cluster.user_token_directory, read=read, now=_utc_now)
    return None


def secret_reader(cluster: Cluster) -> ReadFile:
    """Return the function that reads the kubeconfig of a cluster. Only that of the bundled cluster may lie outside
    ACME_TOKEN_DIRS."""
    if cluster.is_bundled:
        return allowed_paths.read_program_secret
    return allowed_paths.load_allowed_paths().read_secret


def _utc_now() -> datetime:
    """Return this machine's time. Several threads submit at once; the database's clock would cost each a connection."""
    return datetime.now(UTC)


def _token(cluster: Cluster) -> str:
    try:
        return cluster_token(cluster)
    except InvalidInput as error:
        raise ClusterUnreachable(f"the token file {cluster.token_file} {error}") from None


def cluster_token(cluster: Cluster) -> str:
    """Return the cluster's token. Raises InvalidInput. Only the bundled cluster may use a file outside
    ACME_TOKEN_DIRS."""
    if not cluster.token_file:
        return ""
    if cluster.is_bundled:
        return allowed_paths.read_program_token(cluster.token_file)
    return allowed_paths.load_allowed_paths().read_token(cluster.token_file)
