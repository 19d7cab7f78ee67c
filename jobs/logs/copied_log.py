"""Writes a log that Acme copies from elsewhere, so that an interrupted copy continues without a gap or a repetition.

Beside LOG lies LOG.position: the size of the log, and how far each part of its source was read. It is replaced
atomically after the log was written. So what lies beyond the recorded size was written by a copy that was killed, and
is cut off before anything is added. Runs in the reader process of `storage`; standard library only.

A lock on the log keeps a second worker out, and the position that a worker began with must still be there. Nothing
waits for the disk, because that would take longer than everything else. If the server lost power, the log may be
shorter than recorded, or the position empty: then the log goes on at its end, and a line says so.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from jobs.logs.allowed_paths import AllowedPaths
from jobs.logs.log_files import LogNotCreated, LogReadError, check_regular, open_beneath, open_directory_of

SUFFIX = ".position"
MAX_POSITION_BYTES = 4 << 20  # a gang of 10,000 pods
DIRECTORY_MODE, FILE_MODE = 0o750, 0o640
CREATE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
UNKNOWN_SIZE = 2**62  # recorded in a position that cannot be read
CONTINUED = b"acme: the log goes on after a failure of its storage; lines may be missing or repeated\n"
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class LogPositionChanged(LogReadError):
    """Another worker writes this log, or has written it since."""


@dataclass(frozen=True, kw_only=True)
class CopyPosition:
    size: int = 0
    parts: Mapping[str, str] = field(default_factory=dict)


def read_position(root: str, path: str, allowed: AllowedPaths) -> CopyPosition:
    """Return how far the log was copied; nothing if there is no position."""
    _make_own_directory(root, allowed)
    try:
        descriptor = open_beneath(root, f"{path}{SUFFIX}", allowed)
    except LogNotCreated:
        return CopyPosition()
    with os.fdopen(descriptor, "rb") as file:
        return _parse_position(file.read(MAX_POSITION_BYTES + 1))


def _parse_position(raw: bytes) -> CopyPosition:
    try:
        match json.loads(raw):
            case {"size": int(size), "parts": dict(parts)} if size >= 0 and all(
                isinstance(value, str) for value in parts.values()
            ):
                return CopyPosition(size=size, parts=parts)
    except (ValueError, RecursionError):
        pass
    return CopyPosition(size=UNKNOWN_SIZE)


def append(
    root: str, path: str, before: CopyPosition, text: bytes, parts: Mapping[str, str], allowed: AllowedPaths
) -> CopyPosition:
    """Add text to the log and record the new position. Raises LogPositionChanged unless `before` is the position."""
    _make_own_directory(root, allowed)
    directory, name = open_directory_of(root, path, allowed)
    try:
        with _locked_log(directory, name) as log:
            if read_position(root, path, allowed) != before:
                raise LogPositionChanged("The log was written by another worker meanwhile.")
            after = CopyPosition(size=_write_log(log, before.size, text), parts=dict(parts))
            _write_position(directory, f"{name}{SUFFIX}", after)
    except OSError as error:
        if error.errno in FULL:
            raise LogReadError(f"The log directory of this cluster is full ({error.strerror}).") from None
        raise LogReadError(f"The log cannot be written ({error.strerror}).") from None
    finally:
        os.close(directory)
    return after


def _make_own_directory(root: str, allowed: AllowedPaths) -> None:
    """A cluster's directory in ACME_VAR is made when its first log is copied."""
    if allowed.holds_pod_logs(root):
        os.makedirs(root, DIRECTORY_MODE, exist_ok=True)


@contextmanager
def _locked_log(directory: int, name: str) -> Iterator[int]:
    """The log, open and locked until the block ends. A log that was deleted meanwhile is not written."""
    log = os.open(name, CREATE, FILE_MODE, dir_fd=directory)
    try:
        status = os.fstat(log)
        check_regular(status)
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LogPositionChanged("Another worker writes the log at the moment.") from None
        if os.stat(name, dir_fd=directory, follow_symlinks=False).st_ino != status.st_ino:
            raise LogPositionChanged("The log was replaced meanwhile.")
        yield log
    finally:
        os.close(log)


def _write_log(log: int, recorded: int, text: bytes) -> int:
    """Cut off what is not recorded, and add the text. Return the new size."""
    begin = min(recorded, os.fstat(log).st_size)
    text = CONTINUED + text if begin < recorded else text
    os.ftruncate(log, begin)
    try:
        _write_all(log, text, begin)
    except OSError:
        with suppress(OSError):
            os.ftruncate(log, begin)
        raise
    return begin + len(text)


def _write_all(descriptor: int, content: bytes, at: int) -> None:
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written


def _write_position(directory: int, name: str, position: CopyPosition) -> None:
    raw = json.dumps({"size": position.size, "parts": position.parts}, separators=(",", ":")).encode()
    new = os.open(f"{name}.new", CREATE | os.O_TRUNC, FILE_MODE, dir_fd=directory)
    try:
        _write_all(new, raw, 0)
    finally:
        os.close(new)
    os.rename(f"{name}.new", name, src_dir_fd=directory, dst_dir_fd=directory)


def delete_old_logs(directory: str, before: float, most: int) -> int:
    """Delete logs in the directories beneath `directory` that were last written before this unix time, at most `most`,
    with their positions. Return their number."""
    deleted = 0
    for folder in _directories(directory):
        with os.scandir(folder) as entries:
            for entry in entries:
                if deleted >= most:
                    return deleted
                if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mtime < before:
                    os.unlink(entry.path)
                    deleted += 1
    return deleted


def _directories(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []
