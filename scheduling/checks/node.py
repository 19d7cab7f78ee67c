"""What a test of a node runs where nobody configured another one: are its GPUs, its network and its disk usable?

It is sent to the node as a script, so it needs nothing but Python's standard library. One line a check; exit code 1
when any failed. `ACME_EXPECT_GPUS` says how many GPUs must be there, `ACME_TEST_PEERS` (host:port, separated by blanks)
whom the node must reach.
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
    """The message is what the line says."""


def check_gpus() -> str:
    expected = int(os.environ.get("ACME_EXPECT_GPUS") or 0)
    if not expected:
        return "none expected"
    program = shutil.which("nvidia-smi")
    if program is None:
        raise NodeCheckFailed(f"{expected} expected, and nvidia-smi is not there")
    try:
        said = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=CHECK_TIMEOUT_S)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise NodeCheckFailed(f"nvidia-smi did not answer in {CHECK_TIMEOUT_S} s") from None
    found = sum(line.startswith("GPU ") for line in said.stdout.splitlines())
    if said.returncode or found < expected:
        raise NodeCheckFailed(f"{found} of {expected} are visible (nvidia-smi exit code {said.returncode})")
    return f"{found} of {expected}"


def check_loopback() -> str:
    """TCP carries what it is given."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(CHECK_TIMEOUT_S)
        sent = os.urandom(1 << 16)
        sender = threading.Thread(target=_send_blocks, args=(server.getsockname()[1], sent), daemon=True)
        sender.start()
        got, wrong = 0, False
        connection, _ = server.accept()
        with connection:
            connection.settimeout(CHECK_TIMEOUT_S)
            while block := connection.recv(1 << 20):
                at = got % len(sent)
                wrong |= block[:1] != sent[at : at + 1]
                got += len(block)
        sender.join(CHECK_TIMEOUT_S)
    if wrong or got != TCP_BYTES:
        raise NodeCheckFailed(f"{got} of {TCP_BYTES} bytes came, {'changed' if wrong else 'unchanged'}")
    return f"{got >> 20} MiB through 127.0.0.1"


def _send_blocks(port: int, block: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), CHECK_TIMEOUT_S) as connection:
        for _ in range(TCP_BYTES // len(block)):
            connection.sendall(block)


def check_peers() -> str:
    names = os.environ.get("ACME_TEST_PEERS", "").split()
    away = [name for name in names if not _is_reachable(name)]
    if away:
        raise NodeCheckFailed(f"no answer from {', '.join(away)}")
    return f"{len(names)} reached" if names else "none named"


def _is_reachable(name: str) -> bool:
    host, _, port = name.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CHECK_TIMEOUT_S).close()
    except (OSError, ValueError):
        return False
    return True


def check_disk() -> str:
    written = os.urandom(DISK_BYTES)
    with tempfile.TemporaryFile() as file:
        file.write(written)
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        if file.read() != written:
            raise NodeCheckFailed("what was read is not what was written")
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
