"""Free ports for servers that only this machine connects to."""

from __future__ import annotations

import random
import socket

# Below the kernel's range for outgoing connections, so that no connection takes the port between this check and the
# server's own bind.
MIN_PORT, MAX_PORT = 20000, 29999


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def pick(last: int | None = None) -> int:
    """Return the previous port if it is still free, so that stored addresses stay valid; else a random one."""
    if last and MIN_PORT <= last <= MAX_PORT and is_free(last):
        return last
    for port in random.SystemRandom().sample(range(MIN_PORT, MAX_PORT + 1), 200):
        if is_free(port):
            return port
    raise OSError("No port between 20000 and 29999 is free.")
