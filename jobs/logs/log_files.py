"""Opens logs and reads parts of them. Runs in the reader process of `storage`; standard library only.

Only files beneath the cluster's log root are opened, one directory at a time and never through a symbolic link, so a
job cannot replace its log by a link to another file. Only regular files are opened: a FIFO would wait for its writer,
and opening a device may have side effects.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from errno import ELOOP, ENOTDIR
from pathlib import PurePosixPath

from acmeweb.common.errors import InvalidInput, SkipsRow
from jobs.logs.allowed_paths import AllowedPaths

SCAN_BLOCK_BYTES = 1 << 20


class LogReadError(SkipsRow):
    """The log cannot be shown. The message is a sentence for the page."""


class LogNotCreated(LogReadError):
    """The file does not exist yet."""


@dataclass(frozen=True, kw_only=True)
class LogReadResult:
    size: int
    owner: int  # uid
    file: tuple[int, int]  # device and inode
    pieces: list[bytes]


def read_log_pieces(
    root: str, path: str, pieces: Sequence[tuple[int, int]], file: tuple[int, int] | None, allowed: AllowedPaths
) -> LogReadResult:
    """Read pieces, given as (bytes, offset), of a log. With `file`, only if the path still names that file."""
    fd = open_beneath(root, path, allowed)
    try:
        status = os.fstat(fd)
        _check_unchanged(status, file)
        contents = [os.pread(fd, count, at) for count, at in pieces]
    finally:
        os.close(fd)
    return LogReadResult(size=status.st_size, owner=status.st_uid, file=(status.st_dev, status.st_ino), pieces=contents)


@dataclass(frozen=True, kw_only=True)
class NewlineScan:
    count: int
    last: int  # offset of the last newline that was counted, or -1


def scan_newlines(
    root: str, path: str, span: tuple[int, int], most: int, file: tuple[int, int], allowed: AllowedPaths
) -> NewlineScan:
    """Count the newlines in a span of bytes, and stop at the `most`-th."""
    at, stop = span
    count, last = 0, -1
    fd = open_beneath(root, path, allowed)
    try:
        _check_unchanged(os.fstat(fd), file)
        while at < stop and count < most and (block := os.pread(fd, min(SCAN_BLOCK_BYTES, stop - at), at)):
            found = block.count(b"\n")
            if count + found > most:
                found, block = most - count, block[: _nth_newline(block, most - count) + 1]
            if found:
                last = at + block.rfind(b"\n")
            count, at = count + found, at + len(block)
    finally:
        os.close(fd)
    return NewlineScan(count=count, last=last)


def _nth_newline(block: bytes, number: int) -> int:
    where = -1
    for _ in range(number):
        where = block.find(b"\n", where + 1)
    return where


def _check_unchanged(status: os.stat_result, file: tuple[int, int] | None) -> None:
    if file not in (None, (status.st_dev, status.st_ino)):
        raise LogReadError("The log was replaced by another file while it was read.")


def open_beneath(root: str, path: str, allowed: AllowedPaths) -> int:
    """Open a regular file beneath root. `path` is absolute and beneath root, or relative to root."""
    descriptor, name = open_directory_of(root, path, allowed)
    try:
        # Before opening, because opening a device or FIFO may block or have side effects
        check_regular(_stat_child(descriptor, name))
        descriptor = _open_child_of(descriptor, name, os.O_NONBLOCK)
        check_regular(os.fstat(descriptor))  # the file may have been replaced since the check above
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_directory_of(root: str, path: str, allowed: AllowedPaths) -> tuple[int, str]:
    """Open the directory of a file beneath root. Return its descriptor and the name of the file in it."""
    parts = _path_components(root, path)
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and allowed.holds_pod_logs(root):
            raise _log_read_error(error) from None  # it is created with the first log
        raise LogReadError(f"The log directory of this cluster cannot be read ({error.strerror}).") from None
    try:
        _refuse_forbidden(root, descriptor, allowed)
        for part in parts[:-1]:
            descriptor = _open_child_of(descriptor, part, os.O_DIRECTORY)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, parts[-1]


def _refuse_forbidden(root: str, descriptor: int, allowed: AllowedPaths) -> None:
    try:
        allowed.check_open_directory(descriptor)
    except InvalidInput as refused:
        raise LogReadError(
            f"The log directory {root} of this cluster {refused}. Change it in the cluster settings."
        ) from None


def check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISLNK(status.st_mode):
        raise LogReadError("The log is not a regular file and is not read.")


def _path_components(root: str, path: str) -> tuple[str, ...]:
    if not root:
        raise LogReadError("This cluster has no log directory that Acme can read.")
    if not path:
        raise LogReadError("This attempt has no log.")
    relative = PurePosixPath(path)
    if relative.is_absolute():
        try:
            relative = relative.relative_to(root)
        except ValueError:
            raise LogReadError("The log lies outside the log directory of its cluster.") from None
    if not relative.parts or ".." in relative.parts or "\x00" in path:
        raise LogReadError("The log lies outside the log directory of its cluster.")
    return relative.parts


def _stat_child(parent: int, name: str) -> os.stat_result:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except OSError as error:
        raise _log_read_error(error) from None


def _open_child_of(parent: int, name: str, flags: int) -> int:
    """Open a child of a directory. The parent is closed only if that succeeds, so the caller owns exactly one
    descriptor."""
    try:
        child = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=parent)
    except OSError as error:
        raise _log_read_error(error) from None
    os.close(parent)
    return child


def _log_read_error(error: OSError) -> LogReadError:
    if isinstance(error, FileNotFoundError):
        return LogNotCreated("No output yet.")
    why = "it lies behind a symbolic link" if error.errno in (ELOOP, ENOTDIR) else error.strerror
    return LogReadError(f"The log cannot be read ({why}).")


def directory_access(root: str, writes: bool) -> tuple[bool, bool]:
    """Return whether a log root is a directory, and whether Acme may list and enter it, and create files in it."""
    return os.path.isdir(root), os.access(root, os.R_OK | os.X_OK | (os.W_OK if writes else 0))
