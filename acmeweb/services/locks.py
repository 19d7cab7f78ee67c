"""Two locks say whether an instance may be started: one on starting, one that everything started keeps.

Both are the kernel's: they end with the processes that hold them, and no stale one can exist.
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
    """Nobody else starts or runs this instance meanwhile."""
    opened = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _try_lock(opened):
            pid = os.read(opened, 20).decode().strip() or "unknown"
            raise CannotStart(
                f"Acme is already running in {lock.parent.parent} (process {pid}); stop it there with Ctrl-C, "
                "or start a second one with another ACME_VAR and ACME_PORT."
            )
        os.truncate(opened, 0)
        os.pwrite(opened, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(opened)


def _try_lock(opened: int) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def no_process_left(alive: Path) -> bool:
    """Whether no process that was started with `hold` on this file is left."""
    opened = os.open(alive, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        return _try_lock(opened)
    finally:
        os.close(opened)


def wait_for_leftovers(alive: Path, pause: Callable[[float], None] = time.sleep) -> None:
    """What an `up` that was killed left behind is ending by itself (its leash saw to that). Wait, then end it."""
    began = time.monotonic()
    while not no_process_left(alive):
        waited = time.monotonic() - began
        if waited > KILL_AFTER_S:
            kill_holders(alive)
        if waited > MAX_WAIT_S:
            raise CannotStart(
                f"Something of an earlier Acme still runs in {alive.parent.parent}"
                f" (processes {_holder_pids_text(alive)}); end it."
            )
        pause(0.1)


def kill_holders(alive: Path) -> None:
    """They have been asked before. Only processes that hold our own file are touched, never a number from a file."""
    for pid in lock_holders(alive):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def lock_holders(path: Path) -> list[int]:
    """Who has this file open, where the system can say (/proc)."""
    target = str(path.resolve())
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(os.readlink(fd) == target for fd in (process / "fd").iterdir()):
                found.append(int(process.name))
    return [pid for pid in found if pid != os.getpid()]


def _holder_pids_text(alive: Path) -> str:
    return ", ".join(map(str, lock_holders(alive))) or "unknown"
