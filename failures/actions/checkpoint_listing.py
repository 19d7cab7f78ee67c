"""Listing a directory of checkpoints: names, sizes and a few bytes, never through a symbolic link, never without end.

The path is a user's and so are the files, so each directory is opened from the one above it and must be one itself.
What is read is what `checkpoints` needs: trackers, indexes and the ends of files. A reader process does it
(`jobs.logs.storage`), and is given up when the mount does not answer.
"""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import PurePosixPath

from failures.recovery.checkpoints import (
    DEEPSPEED_LATEST,
    INDEX_SUFFIXES,
    MEGATRON_TRACKER,
    SAVE_ORDER_FILE,
    TRAINER_STATE,
    DirectoryListing,
    ListedFile,
    is_complete_file,
)
from jobs.logs import allowed_paths, storage
from jobs.logs.allowed_paths import AllowedPaths, PathNotAllowed
from jobs.logs.storage import StorageUnresponsive

MAX_FILES = 100_000
MAX_DEPTH = 8
MAX_LISTING_S = 20.0
MAX_TEXT_BYTES = 8 << 20
MAX_TOTAL_TEXT_BYTES = 64 << 20  # together
DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class CheckpointListingError(Exception):
    """The directory cannot be listed; the message is a sentence."""


@dataclass(kw_only=True)
class DirectoryWalk:
    most_files: int
    files: list[ListedFile] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    read: int = 0
    until: float = math.inf
    cut: str = ""


def list_checkpoint_files(
    root: str, path: str, most_files: int = MAX_FILES, most_s: float = MAX_LISTING_S
) -> DirectoryListing:
    """What lies in `path`, which is absolute beneath the root, or relative to it."""
    try:
        words = (root, path, most_files, most_s, allowed_paths.load_allowed_paths())
        return storage.call(root, walk_in_reader_process, *words, deadline_s=most_s + storage.ANSWER_DEADLINE_S)
    except StorageUnresponsive as silent:
        raise CheckpointListingError(str(silent)) from None


def walk_in_reader_process(
    root: str, path: str, most_files: int, most_s: float, allowed: AllowedPaths
) -> DirectoryListing:
    """In the reader process."""
    top = _open_directory(root, path, allowed)
    walk = DirectoryWalk(most_files=most_files, until=time.monotonic() + most_s)
    try:
        _walk_directory(walk, top, "", 0)
    finally:
        os.close(top)
    return DirectoryListing(files=tuple(walk.files), texts=walk.texts, cut=walk.cut)


def _open_directory(root: str, path: str, allowed: AllowedPaths) -> int:
    parts = PurePosixPath(path).parts
    if path.startswith("/"):
        if not PurePosixPath(path).is_relative_to(root):
            raise CheckpointListingError(f"{path} is not beneath {root}.")
        parts = PurePosixPath(path).relative_to(root).parts
    if ".." in parts or "\x00" in path:
        raise CheckpointListingError("A path of checkpoints may not lead upwards.")
    try:
        here = _open_root(root, allowed)
        for part in parts:
            above = here
            try:
                here = os.open(part, DIRECTORY_FLAGS, dir_fd=above)
            finally:
                os.close(above)
    except OSError as error:
        raise CheckpointListingError(f"{path} cannot be listed ({error.strerror}).") from None
    return here


def _open_root(root: str, allowed: AllowedPaths) -> int:
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        allowed.check_open_directory(here)
    except PathNotAllowed as refused:
        os.close(here)
        raise CheckpointListingError(
            f"The checkpoint directory {root} {refused}. Choose another one in the cluster's settings."
        ) from None
    return here


def _walk_directory(walk: DirectoryWalk, here: int, prefix: str, depth: int) -> None:
    for entry in _scan_entries(walk, here, prefix):
        name = f"{prefix}{entry.name}"
        try:
            if entry.is_dir(follow_symlinks=False):
                _walk_subdirectory(walk, here, entry.name, name, depth)
            elif entry.is_file(follow_symlinks=False):
                _add_file(walk, here, entry.name, name)
        except OSError as error:
            walk.cut = walk.cut or f"{name} cannot be read ({error.strerror})"


def _scan_entries(walk: DirectoryWalk, here: int, prefix: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(here) as entries:
        for entry in entries:
            if len(walk.files) >= walk.most_files:
                walk.cut = f"there are more than {walk.most_files} files, and not all were looked at"
                return
            if time.monotonic() > walk.until:
                walk.cut = "looking through it takes too long, and not all was looked at"
                return
            if _is_utf8_name(entry.name):
                yield entry


def _is_utf8_name(name: str) -> bool:
    """Bytes that are no UTF-8 arrive as surrogates, which can neither be stored nor shown."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _walk_subdirectory(walk: DirectoryWalk, here: int, leaf: str, name: str, depth: int) -> None:
    if depth >= MAX_DEPTH:
        walk.cut = f"{name} lies more than {MAX_DEPTH} directories deep"
        return
    inner = os.open(leaf, DIRECTORY_FLAGS, dir_fd=here)
    try:
        _walk_directory(walk, inner, f"{name}/", depth + 1)
    finally:
        os.close(inner)


def _add_file(walk: DirectoryWalk, here: int, leaf: str, name: str) -> None:
    """Opened once, and what is said of it is said of what was opened."""
    fd = os.open(leaf, FILE_FLAGS, dir_fd=here)
    try:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode):
            return
        sound = is_complete_file(leaf, seen.st_size, lambda offset, length: os.pread(fd, length, offset))
        at = datetime.fromtimestamp(seen.st_mtime, UTC)
        walk.files.append(ListedFile(path=name, size=seen.st_size, at=at, sound=sound))
        if leaf in (MEGATRON_TRACKER, DEEPSPEED_LATEST, TRAINER_STATE, SAVE_ORDER_FILE) or leaf.endswith(
            INDEX_SUFFIXES
        ):
            _read_text(walk, fd, name, seen.st_size)
    finally:
        os.close(fd)


def _read_text(walk: DirectoryWalk, fd: int, name: str, size: int) -> None:
    """A file that is too long stays unread, and its checkpoint is then not trusted."""
    if size <= MAX_TEXT_BYTES and walk.read + size <= MAX_TOTAL_TEXT_BYTES:
        walk.read += size
        walk.texts[name] = os.pread(fd, size, 0).decode("utf-8", "replace")
