"""The kinds of clusters, and what is known about a cluster from its address. No other module of the product
tells kinds apart, except those that speak to one kind.

A simulated, a local and a real cluster of one kind differ only by address.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

KUBERNETES_SETTINGS = frozenset({"workload_owners", "pod_template"})  # columns of a cluster's row
KUBERNETES_EXAMPLE = "kubernetes:///etc/acme/tokens/kalos.kubeconfig"
MANIFEST_COMMAND = "manage.py kubernetes_manifest --mode observe | kubectl apply -f -"


@dataclass(frozen=True, kw_only=True)
class ClusterKind:
    """What the clusters behind addresses of one form have in common, before one is called."""

    name: str
    id_name: str  # what its job ids are called
    unused_settings: frozenset[str]  # columns of a cluster's row that mean nothing here
    writes_logs: bool  # jobs write their output to files themselves; if not, Acme copies it there
    powers_nodes: bool  # it powers nodes down and up itself; if not, a webhook of the site has to
    has_sbatch: bool  # jobs can be submitted with sbatch too
    runs_as_service: bool = False  # all jobs run as the service's user, and `submit_as` means nothing
    isolates_jobs: bool = False  # jobs that run as one user cannot reach each other
    # What an operator should do if …
    bad_address_advice: str
    no_listener_advice: str
    forbidden_nodes_advice: str
    no_nodes_advice: str
    no_gpus_advice: str


SLURM = ClusterKind(
    name="Slurm",
    id_name="Slurm",
    unused_settings=KUBERNETES_SETTINGS,
    writes_logs=True,
    powers_nodes=True,
    has_sbatch=True,
    bad_address_advice="Use the address of slurmrestd: http://host:6820.",
    no_listener_advice="Start slurmrestd on this port (for example -a 0.0.0.0:6820), or correct the port.",
    forbidden_nodes_advice="Check that this user may list the nodes.",
    no_nodes_advice="Add nodes to slurm.conf.",
    no_gpus_advice="Add GresTypes=gpu and the Gres=gpu:… of the nodes to slurm.conf.",
)
KUBERNETES = ClusterKind(
    name="Kubernetes",
    id_name="uid",
    unused_settings=frozenset({"api_user", "token_file", "user_token_directory"}),
    writes_logs=False,
    powers_nodes=False,
    has_sbatch=False,
    runs_as_service=True,
    isolates_jobs=True,
    bad_address_advice=f"Use the path of a kubeconfig file: {KUBERNETES_EXAMPLE}.",
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
COPIED_LOGS_SCHEMES = tuple(scheme for scheme, kind in KINDS.items() if not kind.writes_logs)


def has_kind(address: str) -> bool:
    return address.startswith(tuple(KINDS))


def cluster_kind(address: str) -> ClusterKind:
    """The kind of cluster at this address; Slurm if it has another form."""
    return next((kind for scheme, kind in KINDS.items() if address.startswith(scheme)), SLURM)


def schemes_text() -> str:
    *others, last = KINDS
    return f"{', '.join(others)} or {last}"


class PodPrivilege(StrEnum):
    ROOT = "root"
    HOST_NETWORK = "host-network"
    IPC_LOCK = "ipc-lock"
    SERVICE_ACCOUNT = "service-account"


@dataclass(frozen=True, kw_only=True)
class PodLimits:
    """What pods of jobs may use of the nodes of a Kubernetes cluster, as the environment of this installation says. By
    default nothing is allowed.

    A user who may change a cluster decides how the pods of jobs look. With a host path, the network of the host or
    root, a pod can take over its node.
    """

    host_paths: tuple[str, ...] = ()  # directories; what is beneath them may be mounted too
    privileges: frozenset[str] = frozenset()  # of `PodPrivilege`
