"""Opens the backend for an address. The only place that knows the kinds of backends."""

from __future__ import annotations

from .base import Backend
from .senders import IdentityProvider
from .slurm import SlurmBackend


def open_backend(
    address: str,
    *,
    user: str = "",
    token: str = "",
    timeout_s: float = 10.0,
    api: str = "",
    senders: IdentityProvider | None = None,
) -> Backend:
    """The backend of a simulated, local or real cluster. All of them run slurmrestd, so the address is enough."""
    return SlurmBackend(address, user=user, token=token, timeout_s=timeout_s, api=api, senders=senders)
