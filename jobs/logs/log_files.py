"""Opening a log and reading pieces of it: what the reader process of `storage` does. Standard library only.

Only files beneath the cluster's log root are opened, one directory at a time and never through a symbolic link, so a
job cannot make the web server read something else by putting a link where its log should be. Nothing but a regular file
is opened: a FIFO would wait for its writer, and a device may do anything.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from errno import ELOOP, ENOTDIR
from pathlib import PurePosixPath

from jobs.logs.allowed_paths import AllowedPaths, PathNotAllowed


class LogReadError(Exception):
    """There is nothing to show; the message is a sentence for the page."""


class LogNotCreated(LogReadError):
    """The file is not there, and may come."""


@dataclass(frozen=True, kw_only=True)
class LogReadResult:
    size: int
    owner: int  # uid
    file: tuple[int, int]  # device and inode
    pieces: list[bytes]


def read_log_pieces(
    root: str,
    path: str,
    pieces: Sequence[tuple[int, int]],
    file: tuple[int, int] | None,
    allowed: AllowedPaths,
) -> LogReadResult:
    """Pieces, as (bytes, offset), of a log; of this very file where one is named."""
    fd = open_beneath(root, path, allowed)
    try:
        seen = os.fstat(fd)
        if file not in (None, (seen.st_dev, seen.st_ino)):
            raise LogReadError("The log was replaced by another file while it was read.")
        found = [os.pread(fd, count, at) for count, at in pieces]
    finally:
        os.close(fd)
    return LogReadResult(size=seen.st_size, owner=seen.st_uid, file=(seen.st_dev, seen.st_ino), pieces=found)


def open_beneath(root: str, path: str, allowed: AllowedPaths) -> int:
    """A file descriptor of a regular file beneath root; `path` is absolute beneath it, or relative to it."""
    parts = _path_components(root, path)
    try:
        here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise LogReadError(f"The log directory of this cluster cannot be read ({error.strerror}).") from None
    try:
        _refuse_forbidden(root, here, allowed)
        for part in parts[:-1]:
            here = _open_child_of(here, part, os.O_DIRECTORY)
        _check_regular(_stat_child(here, parts[-1]))
        here = _open_child_of(here, parts[-1], os.O_NONBLOCK)
        _check_regular(os.fstat(here))  # it may be another one by now
    except BaseException:
        os.close(here)
        raise
    return here


def _refuse_forbidden(root: str, descriptor: int, allowed: AllowedPaths) -> None:
    try:
        allowed.check_open_directory(descriptor)
    except PathNotAllowed as refused:
        raise LogReadError(
            f"The log directory {root} of this cluster {refused}. Choose another one in its settings."
        ) from None


def _check_regular(seen: os.stat_result) -> None:
    if not stat.S_ISREG(seen.st_mode) and not stat.S_ISLNK(seen.st_mode):
        raise LogReadError("The log is not a regular file, so it is not read.")


def _path_components(root: str, path: str) -> tuple[str, ...]:
    if not root or not path:
        raise LogReadError("This cluster keeps no logs that Acme can read.")
    wanted = PurePosixPath(path)
    if wanted.is_absolute():
        try:
            wanted = wanted.relative_to(root)
        except ValueError:
            raise LogReadError("The log lies outside the log directory of its cluster.") from None
    if not wanted.parts or ".." in wanted.parts or "\x00" in path:
        raise LogReadError("The log lies outside the log directory of its cluster.")
    return wanted.parts


def _stat_child(parent: int, name: str) -> os.stat_result:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except OSError as error:
        raise _log_read_error(error) from None


def _open_child_of(parent: int, name: str, flags: int) -> int:
    """One name further down; the parent is closed only when the child is open, so the caller owns exactly one."""
    try:
        child = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=parent)
    except OSError as error:
        raise _log_read_error(error) from None
    os.close(parent)
    return child


def _log_read_error(error: OSError) -> LogReadError:
    if isinstance(error, FileNotFoundError):
        return LogNotCreated("Nothing was printed yet.")
    why = "it lies behind a symbolic link" if error.errno in (ELOOP, ENOTDIR) else error.strerror
    return LogReadError(f"The log cannot be read ({why}).")


def directory_access(root: str) -> tuple[bool, bool]:
    """Whether a log root is a directory, and whether we may list and enter it."""
    return os.path.isdir(root), os.access(root, os.R_OK | os.X_OK)
