"""A cluster's row to the backend behind its address; one connection a process and address."""

from __future__ import annotations

from pathlib import Path

from jobs.models import Cluster
from scheduling.backends.base import Backend, Unreachable
from scheduling.backends.opening import open_backend

_open: dict[tuple[str, str, str], Backend] = {}


def connect(cluster: Cluster) -> Backend:
    """The token is read anew for each key, so a rotated file takes effect with the next connection."""
    key = (cluster.address, cluster.api_user, _token(cluster))
    if key not in _open:
        address, user, token = key
        try:
            _open[key] = open_backend(address, user=user, token=token)
        except ValueError as error:
            raise Unreachable(str(error)) from None
    return _open[key]


def _token(cluster: Cluster) -> str:
    if not cluster.token_file:
        return ""
    try:
        return Path(cluster.token_file).read_text().strip()
    except OSError as error:
        raise Unreachable(f"token file {cluster.token_file} cannot be read ({error.strerror})") from None
