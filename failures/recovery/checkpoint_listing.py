"""Lists a directory of checkpoints: names, sizes and a few bytes. Limited in time and size; follows no symbolic links.

Path and files belong to a user and are untrusted, so each directory is opened relative to its parent and must be a
real directory. Only trackers, indexes and the ends of files are read, as `checkpoints` needs them. A reader process
does the work (`jobs.logs.storage`) and is abandoned if the mount does not respond.
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

from acmeweb.common.errors import InvalidInput
from failures.recovery.rules.checkpoints import (
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
from jobs.logs.allowed_paths import AllowedPaths
from jobs.logs.storage import StorageUnresponsive

MAX_FILES = 100_000
MAX_DEPTH = 8
MAX_LISTING_S = 20.0
MAX_TEXT_BYTES = 8 << 20
MAX_TOTAL_TEXT_BYTES = 64 << 20
DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Files whose text is read, as is that of index files
TEXT_FILES = (MEGATRON_TRACKER, DEEPSPEED_LATEST, TRAINER_STATE, SAVE_ORDER_FILE)


class CheckpointListingError(Exception):
    """The directory cannot be listed; the message says why."""


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
    """The files in `path`, which is relative to the root or an absolute path below it."""
    try:
        arguments = (root, path, most_files, most_s, allowed_paths.load_allowed_paths())
        return storage.call(root, walk_in_reader_process, *arguments, deadline_s=most_s + storage.ANSWER_DEADLINE_S)
    except StorageUnresponsive as error:
        raise CheckpointListingError(str(error)) from None


def walk_in_reader_process(
    root: str, path: str, most_files: int, most_s: float, allowed: AllowedPaths
) -> DirectoryListing:
    """The listing of the directory. Runs in the reader process."""
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
            raise CheckpointListingError(f"{path} is not below {root}.")
        parts = PurePosixPath(path).relative_to(root).parts
    if ".." in parts or "\x00" in path:
        raise CheckpointListingError("The checkpoint path must not contain “..”.")
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
    except InvalidInput as refused:
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
                walk.cut = f"there are more than {walk.most_files} files, and not all were checked"
                return
            if time.monotonic() > walk.until:
                walk.cut = "listing the files took too long, and not all were checked"
                return
            if _is_utf8_name(entry.name):
                yield entry


def _is_utf8_name(name: str) -> bool:
    """Whether the name is valid UTF-8. Other bytes arrive as surrogates, which can be neither stored nor shown."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _walk_subdirectory(walk: DirectoryWalk, here: int, leaf: str, name: str, depth: int) -> None:
    if depth >= MAX_DEPTH:
        walk.cut = f"{name} is more than {MAX_DEPTH} directories deep"
        return
    inner = os.open(leaf, DIRECTORY_FLAGS, dir_fd=here)
    try:
        _walk_directory(walk, inner, f"{name}/", depth + 1)
    finally:
        os.close(inner)


def _add_file(walk: DirectoryWalk, here: int, leaf: str, name: str) -> None:
    """Add a file. It is opened once and checked through the descriptor, so that it cannot be swapped in between."""
    fd = os.open(leaf, FILE_FLAGS, dir_fd=here)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return
        sound = is_complete_file(leaf, status.st_size, lambda offset, length: os.pread(fd, length, offset))
        at = datetime.fromtimestamp(status.st_mtime, UTC)
        walk.files.append(ListedFile(path=name, size=status.st_size, at=at, sound=sound))
        if leaf in TEXT_FILES or leaf.endswith(INDEX_SUFFIXES):
            _read_text(walk, fd, name, status.st_size)
    finally:
        os.close(fd)


def _read_text(walk: DirectoryWalk, fd: int, name: str, size: int) -> None:
    """Read a small file. One that is too large is not read; its checkpoint then counts as incomplete."""
    if size <= MAX_TEXT_BYTES and walk.read + size <= MAX_TOTAL_TEXT_BYTES:
        walk.read += size
        walk.texts[name] = os.pread(fd, size, 0).decode("utf-8", "replace")
