"""Disks that can be filled: a directory moves onto a file system of its own, which is shrunk to what it holds.

Only root may mount. The mounts are private to this process and its children, so the kernel removes them with the last
of these, however they end.
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
SIZE_MB = 4096  # memory is taken only for what is written


class NoMount(Exception):
    """Why no file system can be mounted here, in one sentence."""


def make_mounts_private() -> None:
    """Call before any other thread is started: the mounts of this process are no longer those of the machine."""
    if os.geteuid() != 0:
        raise NoMount("mounting a file system needs root")
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        raise NoMount(f"no private mounts ({os.strerror(ctypes.get_errno())})")
    _run("mount", "--make-rprivate", "/")


class Disk:
    """A directory on a file system of its own, with everything that was in it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        staging = Path(tempfile.mkdtemp(prefix=".disk-", dir=directory.parent))
        _run("mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "tmpfs", str(staging))
        _run("cp", "-a", f"{directory}/.", str(staging))
        _run("mount", "--move", str(staging), str(directory))
        staging.rmdir()

    @contextmanager
    def full(self) -> Iterator[None]:
        """Nothing more can be written inside the block."""
        self._shrink()
        try:
            yield
        finally:
            self._resize(SIZE_MB * 2**20)

    def release(self) -> None:
        """Back onto the disk beneath, so that the files outlive this process. Nothing may use them any more."""
        copy = Path(tempfile.mkdtemp(prefix=".disk-", dir=self._directory.parent))
        _run("cp", "-a", f"{self._directory}/.", str(copy))
        _run("umount", "-l", str(self._directory))
        shutil.rmtree(self._directory)
        copy.rename(self._directory)

    def _shrink(self) -> None:
        """Others write meanwhile, and a size below what is used is refused: so look and try again."""
        for _ in range(50):
            seen = os.statvfs(self._directory)
            used = (seen.f_blocks - seen.f_bfree) * seen.f_frsize
            try:
                return self._resize(max(used, 1))  # 0 would mean "no limit"
            except NoMount as error:
                refused = error
        raise refused

    def _resize(self, size: int) -> None:
        _run("mount", "-o", f"remount,size={size}", str(self._directory))


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoMount(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
