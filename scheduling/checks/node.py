"""The default node test: checks that the GPUs, the network and the disk of a node are usable.

It is sent to the node as a script, so it uses only Python's standard library. It prints one line per check, and its
exit code is 1 if any check failed. `ACME_EXPECT_GPUS` is the number of GPUs that the node must have; `ACME_TEST_PEERS`
lists the peers (host:port, separated by spaces) that it must reach.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable

DISK_BYTES = 16 << 20
TCP_BYTES = 32 << 20
CHECK_TIMEOUT_S = 20


class NodeCheckFailed(Exception):
    """The message is printed in the line of the check."""


def check_gpus() -> str:
    expected = int(os.environ.get("ACME_EXPECT_GPUS") or 0)
    if not expected:
        return "none expected"
    program = shutil.which("nvidia-smi")
    if program is None:
        raise NodeCheckFailed(f"{expected} expected, but nvidia-smi is not installed")
    try:
        result = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=CHECK_TIMEOUT_S)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise NodeCheckFailed(f"nvidia-smi did not respond within {CHECK_TIMEOUT_S} s") from None
    visible = sum(line.startswith("GPU ") for line in result.stdout.splitlines())
    if result.returncode or visible < expected:
        raise NodeCheckFailed(f"{visible} of {expected} GPUs are visible (nvidia-smi exit code {result.returncode})")
    return f"{visible} of {expected}"


def check_loopback() -> str:
    """Check that TCP over the loopback interface transmits data unchanged."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(CHECK_TIMEOUT_S)
        block_sent = os.urandom(1 << 16)
        sender = threading.Thread(target=_send_blocks, args=(server.getsockname()[1], block_sent), daemon=True)
        sender.start()
        received, wrong = 0, False
        connection, _ = server.accept()
        with connection:
            connection.settimeout(CHECK_TIMEOUT_S)
            while block := connection.recv(1 << 20):
                at = received % len(block_sent)
                wrong |= block[:1] != block_sent[at : at + 1]
                received += len(block)
        sender.join(CHECK_TIMEOUT_S)
    if wrong or received != TCP_BYTES:
        raise NodeCheckFailed(f"{received} of {TCP_BYTES} bytes arrived, {'changed' if wrong else 'unchanged'}")
    return f"{received >> 20} MiB through 127.0.0.1"


def _send_blocks(port: int, block: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), CHECK_TIMEOUT_S) as connection:
        for _ in range(TCP_BYTES // len(block)):
            connection.sendall(block)


def check_peers() -> str:
    names = os.environ.get("ACME_TEST_PEERS", "").split()
    unreachable = [name for name in names if not _is_reachable(name)]
    if unreachable:
        raise NodeCheckFailed(f"cannot connect to {', '.join(unreachable)}")
    return f"{len(names)} reached" if names else "none configured"


def _is_reachable(name: str) -> bool:
    host, _, port = name.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CHECK_TIMEOUT_S).close()
    except (OSError, ValueError):
        return False
    return True


def check_disk() -> str:
    data = os.urandom(DISK_BYTES)
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        if file.read() != data:
            raise NodeCheckFailed("the data read differs from the data written")
    return f"{DISK_BYTES >> 20} MiB in {tempfile.gettempdir()}"


CHECKS: dict[str, Callable[[], str]] = {
    "gpus": check_gpus,
    "loopback": check_loopback,
    "peers": check_peers,
    "disk": check_disk,
}


def main() -> int:
    failed = 0
    print(f"testing {socket.gethostname()}", flush=True)
    for name, check in CHECKS.items():
        try:
            print(f"ok    {name}: {check()}", flush=True)
        except (NodeCheckFailed, OSError, ValueError) as error:
            failed += 1
            print(f"FAIL  {name}: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
