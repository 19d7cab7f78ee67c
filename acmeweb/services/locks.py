"""Two locks decide whether an instance may be started: one for the start, one that all its processes share.

Both are kernel locks: they end with the processes that hold them, so they are never stale.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from acmeweb.services.preflight import CannotStart

MAX_WAIT_S = 20.0  # an orderly stop of everything takes less
KILL_AFTER_S = 15.0


@contextmanager
def instance_lock(lock: Path) -> Iterator[None]:
    """Hold the lock of the instance; raise CannotStart if another process holds it."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _try_lock(descriptor):
            pid = os.read(descriptor, 20).decode().strip() or "unknown"
            raise CannotStart(
                f"Acme is already running in {lock.parent.parent} (process {pid}). Stop it there with Ctrl-C, "
                "or start a second instance with another ACME_VAR and ACME_PORT."
            )
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def no_process_left(alive: Path) -> bool:
    """Whether all processes that were started with `hold` on this file have ended."""
    descriptor = os.open(alive, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        return _try_lock(descriptor)
    finally:
        os.close(descriptor)


def wait_for_leftovers(alive: Path, pause: Callable[[float], None] = time.sleep) -> None:
    """Wait for processes of a killed `up`, which end by themselves (parent_guard); kill them after KILL_AFTER_S."""
    began = time.monotonic()
    while not no_process_left(alive):
        waited = time.monotonic() - began
        if waited > KILL_AFTER_S:
            kill_holders(alive)
        if waited > MAX_WAIT_S:
            raise CannotStart(
                f"Processes of an earlier Acme still run in {alive.parent.parent}"
                f" ({_holder_pids_text(alive)}). End them."
            )
        pause(0.1)


def kill_holders(alive: Path) -> None:
    """Kill the processes that hold our own file. Never trust a pid from a file: it may belong to another program."""
    for pid in lock_holders(alive):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def lock_holders(path: Path) -> list[int]:
    """Return the pids of the processes that have this file open, if the system can tell (/proc)."""
    target = str(path.resolve())
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(os.readlink(fd) == target for fd in (process / "fd").iterdir()):
                pids.append(int(process.name))
    return [pid for pid in pids if pid != os.getpid()]


def _holder_pids_text(alive: Path) -> str:
    return ", ".join(map(str, lock_holders(alive))) or "unknown"
