"""Backends of clusters, with one connection per process, address and identity."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime

from jobs.logs import allowed_paths
from jobs.logs.allowed_paths import PathNotAllowed
from jobs.models import Cluster
from jobs.models.cluster import SubmitIdentity
from scheduling.backends.base import Backend, ClusterUnreachable
from scheduling.backends.opening import open_backend
from scheduling.backends.senders import IdentityProvider, ServiceTokenIdentities, UserTokenIdentities, token_user

_open_connections: dict[tuple[str, ...], Backend] = {}


def ping(cluster: Cluster, timeout_s: float) -> None:
    """Ping the cluster over a separate connection with this timeout. Raises BackendError."""
    try:
        backend = open_backend(cluster.address, user=cluster.api_user, token=_token(cluster), timeout_s=timeout_s)
    except ValueError as error:
        raise ClusterUnreachable(str(error)) from None
    with closing(backend):
        backend.ping()


def connect(cluster: Cluster) -> Backend:
    """Return the cluster's connection. The token file is read each time, so a rotated token opens a new connection."""
    address, user, token = cluster.address, cluster.api_user, _token(cluster)
    key = (address, user, token, cluster.submit_as, cluster.user_token_directory)
    if key not in _open_connections:
        try:
            _open_connections[key] = open_backend(
                address, user=user, token=token, senders=_submit_senders(cluster, token)
            )
        except ValueError as error:
            raise ClusterUnreachable(str(error)) from None
    return _open_connections[key]


def _submit_senders(cluster: Cluster, token: str) -> IdentityProvider | None:
    user = cluster.api_user or token_user(token)
    if cluster.submit_as == SubmitIdentity.USER_HEADER:
        return ServiceTokenIdentities(service_user=user, token=token)
    if cluster.submit_as == SubmitIdentity.USER_TOKENS:
        read = allowed_paths.load_allowed_paths().read_token
        return UserTokenIdentities(service_user=user, directory=cluster.user_token_directory, read=read, now=_utc_now)
    return None


def _utc_now() -> datetime:
    """Return this machine's time. Several threads submit at once; the database's clock would cost each a connection."""
    return datetime.now(UTC)


def _token(cluster: Cluster) -> str:
    try:
        return cluster_token(cluster)
    except PathNotAllowed as error:
        raise ClusterUnreachable(f"the token file {cluster.token_file} {error}") from None


def cluster_token(cluster: Cluster) -> str:
    """Return the cluster's token. Raises PathNotAllowed. Only the bundled cluster may use a file outside
    ACME_TOKEN_DIRS."""
    if not cluster.token_file:
        return ""
    if cluster.is_bundled:
        return allowed_paths.read_program_token(cluster.token_file)
    return allowed_paths.load_allowed_paths().read_token(cluster.token_file)
