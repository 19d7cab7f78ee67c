"""Disks that can be filled: a directory moves to its own file system, which is shrunk to its used size.

Only root can mount. The mounts are private to this process and its children, so the kernel removes them when the last
of these ends for any reason.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNS = 0x20000
SIZE_MB = 4096  # memory is used only for written data


class NoMount(Exception):
    """No file system can be mounted; the message is one sentence with the reason."""


def make_mounts_private() -> None:
    """Give this process its own mounts; call it before any other thread is started."""
    if os.geteuid() != 0:
        raise NoMount("mounting a file system needs root")
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        raise NoMount(f"no private mounts ({os.strerror(ctypes.get_errno())})")
    _run("mount", "--make-rprivate", "/")


class Disk:
    """Moves a directory with its content to its own file system."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        staging = Path(tempfile.mkdtemp(prefix=".disk-", dir=directory.parent))
        _run("mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "tmpfs", str(staging))
        _run("cp", "-a", f"{directory}/.", str(staging))
        _run("mount", "--move", str(staging), str(directory))
        staging.rmdir()

    @contextmanager
    def full(self) -> Iterator[None]:
        """Make all writes fail inside the block."""
        self._shrink()
        try:
            yield
        finally:
            self._resize(SIZE_MB * 2**20)

    def release(self) -> None:
        """Move the directory back to the original disk, so that the files outlive this process."""
        copy = Path(tempfile.mkdtemp(prefix=".disk-", dir=self._directory.parent))
        _run("cp", "-a", f"{self._directory}/.", str(copy))
        _run("umount", "-l", str(self._directory))
        shutil.rmtree(self._directory)
        copy.rename(self._directory)

    def _shrink(self) -> None:
        """Shrink the file system to its used size. Retried, because programs write meanwhile."""
        for _ in range(50):
            status = os.statvfs(self._directory)
            used = (status.f_blocks - status.f_bfree) * status.f_frsize
            try:
                return self._resize(max(used, 1))  # 0 means no limit
            except NoMount as error:
                last_error = error
        raise last_error

    def _resize(self, size: int) -> None:
        _run("mount", "-o", f"remount,size={size}", str(self._directory))


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoMount(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
