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
    check_address(address)
    scheme = next(scheme for scheme in BACKENDS if address.startswith(scheme))
    return BACKENDS[scheme](address, user=user, token=token, timeout_s=timeout_s, api=api, senders=senders)


def has_backend(address: str) -> bool:
    return address.startswith(tuple(BACKENDS))


def check_address(address: str) -> None:
    """Raise ValueError, with one sentence, if there is no backend for this kind of address."""
    if not has_backend(address):
        raise ValueError(f"address must begin with {schemes_text()}, for example http://host:6820.")


def schemes_text() -> str:
    *others, last = BACKENDS
    return f"{', '.join(others)} or {last}"
