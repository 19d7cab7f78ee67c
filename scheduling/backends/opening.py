"""From an address to the backend behind it: the one place that knows which kinds there are."""

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
    """Simulated cluster, this machine or a real Slurm: all speak slurmrestd, so the address is all there is to say."""
    return SlurmBackend(address, user=user, token=token, timeout_s=timeout_s, api=api, senders=senders)
