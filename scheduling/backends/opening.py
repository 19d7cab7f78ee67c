"""Opens the backend for an address. The only place that knows the kinds of clusters.

A simulated, a local and a real cluster of one kind differ only by address, so the address is enough. What the kinds
have in common with each other is in `Backend`; what a user can configure for one of them is in `ClusterKind`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jobs.core.pod_limits import PodLimits

from .base import Backend
from .kubernetes.backend import KubernetesBackend
from .kubernetes.connection.access import EXAMPLE, ReadFile, load_connection, parse_address
from .kubernetes.connection.advice import MANIFEST_COMMAND
from .kubernetes.ownership import parse_owner_mapping
from .kubernetes.pod_template import stored_pod_template
from .senders import IdentityProvider
from .slurm import SlurmBackend

KUBERNETES_SETTINGS = ("workload_owners", "pod_template")  # columns of a cluster's row


def _refuse_file(path: str) -> str:
    raise ValueError("cannot be read: no files are allowed here")


def _open_slurm(address: str, **options: Any) -> Backend:
    for name in ("read_file", "plain_http", "installation", "pod_limits", *KUBERNETES_SETTINGS):
        del options[name]
    return SlurmBackend(address, **options)


def _open_kubernetes(address: str, **options: Any) -> Backend:
    try:
        template = stored_pod_template(options["pod_template"], options["pod_limits"])
    except ValueError as error:
        raise ValueError(f"pod_template: {error}") from None
    return KubernetesBackend(
        address,
        read_file=options["read_file"],
        plain_http=options["plain_http"],
        owners=parse_owner_mapping(options["workload_owners"]),
        template=template,
        installation=options["installation"],
        timeout_s=options["timeout_s"],
    )


@dataclass(frozen=True, kw_only=True)
class ClusterKind:
    """What the clusters behind addresses of one form have in common, before one is called."""

    name: str
    open: Callable[..., Backend]
    check_address: Callable[[str], object]  # raises ValueError with one sentence
    server_address: Callable[[str, ReadFile], str]  # the server that is called; raises ClusterUnreachable
    unused_settings: frozenset[str]  # columns of a cluster's row that mean nothing here
    runs_as_service: bool = False  # all jobs run as the service's user, and `submit_as` means nothing
    # What an operator should do if …
    bad_address_advice: str
    no_listener_advice: str
    forbidden_nodes_advice: str
    no_nodes_advice: str
    no_gpus_advice: str


def _kubernetes_server(address: str, read_file: ReadFile) -> str:
    return load_connection(parse_address(address), read_file, plain_http=True).server  # nothing is sent


SLURM = ClusterKind(
    name="Slurm",
    open=_open_slurm,
    check_address=lambda address: None,
    server_address=lambda address, read_file: address,
    unused_settings=frozenset(KUBERNETES_SETTINGS),
    bad_address_advice="Use the address of slurmrestd: http://host:6820.",
    no_listener_advice="Start slurmrestd on this port (for example -a 0.0.0.0:6820), or correct the port.",
    forbidden_nodes_advice="Check that this user may list the nodes.",
    no_nodes_advice="Add nodes to slurm.conf.",
    no_gpus_advice="Add GresTypes=gpu and the Gres=gpu:… of the nodes to slurm.conf.",
)
KUBERNETES = ClusterKind(
    name="Kubernetes",
    open=_open_kubernetes,
    check_address=parse_address,
    server_address=_kubernetes_server,
    unused_settings=frozenset({"api_user", "token_file", "user_token_directory"}),
    runs_as_service=True,
    bad_address_advice=f"Use the path of a kubeconfig file: {EXAMPLE}.",
    no_listener_advice="Start the API server, or correct the server in the kubeconfig.",
    forbidden_nodes_advice=f"Grant Acme read access: {MANIFEST_COMMAND}",
    no_nodes_advice="Join nodes to the cluster.",
    no_gpus_advice="Install the device plugin of the GPUs: it adds nvidia.com/gpu, for example, to the nodes.",
)
# The beginning of an address → the kind of cluster
KINDS: dict[str, ClusterKind] = {
    "http://": SLURM,
    "https://": SLURM,
    "unix:///": SLURM,
    "kubernetes://": KUBERNETES,
}


def open_backend(
    address: str,
    *,
    user: str = "",
    token: str = "",
    timeout_s: float = 10.0,
    api: str = "",
    senders: IdentityProvider | None = None,
    read_file: ReadFile = _refuse_file,
    plain_http: bool = False,
    workload_owners: Mapping[str, Any] | None = None,
    pod_template: Mapping[str, Any] | None = None,
    pod_limits: PodLimits = PodLimits(),  # noqa: B008 - immutable
    installation: str = "",
) -> Backend:
    """The backend for this address. Raises ValueError, with a sentence, if there is none.

    `read_file` returns the text of a file that the address names, or raises ValueError with what is wrong with it.
    `plain_http`: a token in a kubeconfig may be sent unencrypted to another machine.
    `installation`: the one whose jobs are advanced; empty: those of all.
    """
    check_address(address)
    return cluster_kind(address).open(
        address,
        user=user,
        token=token,
        timeout_s=timeout_s,
        api=api,
        senders=senders,
        read_file=read_file,
        plain_http=plain_http,
        workload_owners=workload_owners or {},
        pod_template=pod_template or {},
        pod_limits=pod_limits,
        installation=installation,
    )


def has_backend(address: str) -> bool:
    return address.startswith(tuple(KINDS))


def cluster_kind(address: str) -> ClusterKind:
    """The kind of cluster at an address for which there is a backend."""
    return next(kind for scheme, kind in KINDS.items() if address.startswith(scheme))


def check_address(address: str) -> None:
    """Raise ValueError, with one sentence, if there is no backend for this address."""
    if not has_backend(address):
        raise ValueError(f"address must begin with {schemes_text()}, for example http://host:6820.")
    cluster_kind(address).check_address(address)


def schemes_text() -> str:
    *others, last = KINDS
    return f"{', '.join(others)} or {last}"
