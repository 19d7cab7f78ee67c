"""Free ports for servers that only this machine talks to."""

from __future__ import annotations

import random
import socket

# Below the range from which the kernel takes ports for outgoing connections, so that none is taken between the look
# and the server's own bind.
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
    """The port of last time if it is still free, so that what was written down elsewhere stays true."""
    if last and MIN_PORT <= last <= MAX_PORT and is_free(last):
        return last
    for port in random.SystemRandom().sample(range(MIN_PORT, MAX_PORT + 1), 200):
        if is_free(port):
            return port
    raise OSError("no free port between 20000 and 29999")
