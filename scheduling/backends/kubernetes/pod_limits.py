"""Whether a pod template keeps to the limits of this installation. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jobs.core.pod_limits import PodLimits, PodPrivilege

if TYPE_CHECKING:
    from .pod_template import PodTemplate

HOST_PATHS_VARIABLE, PRIVILEGES_VARIABLE = "ACME_POD_HOST_PATHS", "ACME_POD_PRIVILEGES"
PROFILE_ANNOTATIONS = ("container.apparmor.security.", "seccomp.security.", "container.seccomp.security.")
ROOT_ID = 0


def check_limits(template: PodTemplate, limits: PodLimits) -> None:
    """Raises ValueError with one sentence that names the setting and the variable."""
    for volume in template.volumes.values():
        path = str(volume.source.get("hostPath", {}).get("path", ""))
        if path and not any(_is_beneath(path, directory) for directory in limits.host_paths):
            allowed = ", ".join(limits.host_paths) or "none"
            name = f"volumes.{volume.name}.host_path"
            raise ValueError(f"{name}: {path} is not beneath a directory of {HOST_PATHS_VARIABLE} ({allowed}).")
    for setting, privilege in _needed_privileges(template):
        if privilege not in limits.privileges:
            raise ValueError(f"{setting} needs the privilege {privilege}, which {PRIVILEGES_VARIABLE} does not list.")
    if annotation := next((name for name in template.annotations if name.startswith(PROFILE_ANNOTATIONS)), ""):
        raise ValueError(f"annotations.{annotation} would change the security profile that Acme sets.")


def _needed_privileges(template: PodTemplate) -> Iterator[tuple[str, PodPrivilege]]:
    """The settings that need a privilege."""
    for name in ("run_as_user", "run_as_group"):
        if getattr(template, name) == ROOT_ID:
            yield f"{name} 0", PodPrivilege.ROOT
    if template.host_network:
        yield "host_network", PodPrivilege.HOST_NETWORK
    if template.service_account:
        yield "service_account", PodPrivilege.SERVICE_ACCOUNT
    if template.has_rdma:
        yield "extra_resources with rdma/", PodPrivilege.IPC_LOCK


def _is_beneath(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
