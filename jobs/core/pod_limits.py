"""What pods of jobs may use of the nodes of a Kubernetes cluster, as the environment of this installation says. Pure.

A user who may change a cluster decides how the pods of jobs look. With a host path, the network of the host or root, a
pod can take over its node.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PodPrivilege(StrEnum):
    ROOT = "root"
    HOST_NETWORK = "host-network"
    IPC_LOCK = "ipc-lock"
    SERVICE_ACCOUNT = "service-account"


@dataclass(frozen=True, kw_only=True)
class PodLimits:
    """By default nothing is allowed."""

    host_paths: tuple[str, ...] = ()  # directories; what is beneath them may be mounted too
    privileges: frozenset[str] = frozenset()  # of `PodPrivilege`
