"""Opens the backend for an address. The only place that knows the kinds of backends.

A simulated, a local and a real cluster of one kind differ only by address, so the address is enough.
"""

from __future__ import annotations

from collections.abc import Callable

from .base import Backend
from .senders import IdentityProvider
from .slurm import SlurmBackend

# The beginning of an address → the backend for it
BACKENDS: dict[str, Callable[..., Backend]] = {
    "http://": SlurmBackend,
    "https://": SlurmBackend,
    "unix:///": SlurmBackend,
}


def open_backend(
    address: str,
    *,
    user: str = "",
    token: str = "",
    timeout_s: float = 10.0,
    api: str = "",
    senders: IdentityProvider | None = None,
) -> Backend:
    """The backend for this address. Raises ValueError, with a sentence, if there is none."""
    backend_class = BACKENDS[address_scheme(address)]
    return backend_class(address, user=user, token=token, timeout_s=timeout_s, api=api, senders=senders)


def address_scheme(address: str) -> str:
    """The key of `BACKENDS` that the address begins with. Raises ValueError, with a sentence, if there is none."""
    for scheme in BACKENDS:
        if address.startswith(scheme):
            return scheme
    *others, last = BACKENDS
    raise ValueError(f"address must begin with {', '.join(others)} or {last}, for example http://host:6820.")
