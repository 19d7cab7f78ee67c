"""Opens the backend for an address. Which kind of cluster it is, says `jobs.core.cluster_kinds`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

from jobs.core.cluster_kinds import KUBERNETES, PodLimits, cluster_kind, has_kind, schemes_text

from .base import Backend
from .kubernetes.api_client import ApiClient
from .kubernetes.backend import KubernetesBackend
from .kubernetes.connection.access import ReadFile, load_connection, parse_address
from .kubernetes.ownership import parse_owner_mapping
from .kubernetes.pod_template import stored_pod_template
from .senders import IdentityProvider, SlurmIdentity
from .slurm import SlurmBackend

DEFAULT_TIMEOUT_S = 10.0


class BackendOptions(TypedDict, total=False):
    """What a connection needs besides the address. A kind of cluster ignores what it has no use for."""

    timeout_s: float
    # Slurm
    user: str
    token: str
    api: str
    senders: IdentityProvider | None
    # Kubernetes
    read_file: ReadFile  # the text of a file that the address names; raises ValueError with what is wrong with it
    plain_http: bool  # a token in a kubeconfig may be sent unencrypted to another machine
    workload_owners: Mapping[str, Any] | None
    pod_template: Mapping[str, Any] | None
    pod_limits: PodLimits
    installation: str  # the one whose jobs are advanced; empty: those of all


def open_backend(address: str, **options: Unpack[BackendOptions]) -> Backend:
    """The backend for this address. Raises ValueError, with a sentence, if there is none."""
    check_address(address)
    return _open_kubernetes(address, options) if cluster_kind(address) is KUBERNETES else _open_slurm(address, options)


def _open_slurm(address: str, options: BackendOptions) -> Backend:
    return SlurmBackend(
        address,
        identity=SlurmIdentity(user=options.get("user", ""), token=options.get("token", "")),
        timeout_s=options.get("timeout_s", DEFAULT_TIMEOUT_S),
        api=options.get("api", ""),
        senders=options.get("senders"),
    )


def _open_kubernetes(address: str, options: BackendOptions) -> Backend:
    try:
        template = stored_pod_template(options.get("pod_template") or {}, options.get("pod_limits", PodLimits()))
    except ValueError as error:
        raise ValueError(f"pod_template: {error}") from None
    timeout_s = options.get("timeout_s", DEFAULT_TIMEOUT_S)
    read_file, plain_http = options.get("read_file", _refuse_file), options.get("plain_http", False)
    return KubernetesBackend(
        ApiClient(parse_address(address), read_file, timeout_s, plain_http=plain_http),
        owners=parse_owner_mapping(options.get("workload_owners") or {}),
        template=template,
        installation=options.get("installation", ""),
    )


def _refuse_file(path: str) -> str:
    raise ValueError("cannot be read: no files are allowed here")


def check_address(address: str) -> None:
    """Raise ValueError, with one sentence, if there is no backend for this address."""
    if not has_kind(address):
        raise ValueError(f"address must begin with {schemes_text()}, for example http://host:6820.")
    if cluster_kind(address) is KUBERNETES:
        parse_address(address)


def server_address(address: str, read_file: ReadFile) -> str:
    """The server that is called. Nothing is sent. Raises ClusterUnreachable."""
    if cluster_kind(address) is KUBERNETES:
        return load_connection(parse_address(address), read_file, plain_http=True).server
    return address
