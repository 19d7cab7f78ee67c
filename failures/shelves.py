"""Listing a directory of checkpoints: names, sizes and a few bytes, never through a symbolic link, never without end.

The path is a user's and so are the files, so each directory is opened from the one above it and must be one itself.
What is read is what `checkpoints` needs: trackers, indexes and the ends of files. A reader process does it
(`jobs.storage`), and is given up when the mount does not answer.
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

from failures.checkpoints import INDEXES, LATEST, ORDER, STATE, TRACKER, File, Listing, is_sound
from jobs import allowed_paths, storage
from jobs.allowed_paths import AllowedPaths, PathRefused
from jobs.storage import StorageSilent

MOST_FILES = 100_000
MOST_DEPTH = 8
MOST_S = 20.0
MOST_TEXT = 8 << 20
MOST_TEXTS = 64 << 20  # together
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NoShelf(Exception):
    """The directory cannot be listed; the message is a sentence."""


@dataclass(kw_only=True)
class Walk:
    most_files: int
    files: list[File] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    read: int = 0
    until: float = math.inf
    cut: str = ""


def listing(root: str, path: str, most_files: int = MOST_FILES, most_s: float = MOST_S) -> Listing:
    """What lies in `path`, which is absolute beneath the root, or relative to it."""
    try:
        words = (root, path, most_files, most_s, allowed_paths.configured())
        return storage.call(root, walked, *words, deadline_s=most_s + storage.DEADLINE_S)
    except StorageSilent as silent:
        raise NoShelf(str(silent)) from None


def walked(root: str, path: str, most_files: int, most_s: float, allowed: AllowedPaths) -> Listing:
    """In the reader process."""
    top = _opened(root, path, allowed)
    walk = Walk(most_files=most_files, until=time.monotonic() + most_s)
    try:
        _walk(walk, top, "", 0)
    finally:
        os.close(top)
    return Listing(files=tuple(walk.files), texts=walk.texts, cut=walk.cut)


def _opened(root: str, path: str, allowed: AllowedPaths) -> int:
    parts = PurePosixPath(path).parts
    if path.startswith("/"):
        if not PurePosixPath(path).is_relative_to(root):
            raise NoShelf(f"{path} is not beneath {root}.")
        parts = PurePosixPath(path).relative_to(root).parts
    if ".." in parts or "\x00" in path:
        raise NoShelf("A path of checkpoints may not lead upwards.")
    try:
        here = _root(root, allowed)
        for part in parts:
            above = here
            try:
                here = os.open(part, DIRECTORY, dir_fd=above)
            finally:
                os.close(above)
    except OSError as error:
        raise NoShelf(f"{path} cannot be listed ({error.strerror}).") from None
    return here


def _root(root: str, allowed: AllowedPaths) -> int:
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        allowed.check_open_directory(here)
    except PathRefused as refused:
        os.close(here)
        raise NoShelf(
            f"The checkpoint directory {root} {refused}. Choose another one in the cluster's settings."
        ) from None
    return here


def _walk(walk: Walk, here: int, prefix: str, depth: int) -> None:
    for entry in _entries(walk, here, prefix):
        name = f"{prefix}{entry.name}"
        try:
            if entry.is_dir(follow_symlinks=False):
                _deeper(walk, here, entry.name, name, depth)
            elif entry.is_file(follow_symlinks=False):
                _file(walk, here, entry.name, name)
        except OSError as error:
            walk.cut = walk.cut or f"{name} cannot be read ({error.strerror})"


def _entries(walk: Walk, here: int, prefix: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(here) as entries:
        for entry in entries:
            if len(walk.files) >= walk.most_files:
                walk.cut = f"there are more than {walk.most_files} files, and not all were looked at"
                return
            if time.monotonic() > walk.until:
                walk.cut = "looking through it takes too long, and not all was looked at"
                return
            if _is_text(entry.name):
                yield entry


def _is_text(name: str) -> bool:
    """Bytes that are no UTF-8 arrive as surrogates, which can neither be stored nor shown."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _deeper(walk: Walk, here: int, leaf: str, name: str, depth: int) -> None:
    if depth >= MOST_DEPTH:
        walk.cut = f"{name} lies more than {MOST_DEPTH} directories deep"
        return
    inner = os.open(leaf, DIRECTORY, dir_fd=here)
    try:
        _walk(walk, inner, f"{name}/", depth + 1)
    finally:
        os.close(inner)


def _file(walk: Walk, here: int, leaf: str, name: str) -> None:
    """Opened once, and what is said of it is said of what was opened."""
    fd = os.open(leaf, PLAIN, dir_fd=here)
    try:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode):
            return
        sound = is_sound(leaf, seen.st_size, lambda offset, length: os.pread(fd, length, offset))
        at = datetime.fromtimestamp(seen.st_mtime, UTC)
        walk.files.append(File(path=name, size=seen.st_size, at=at, sound=sound))
        if leaf in (TRACKER, LATEST, STATE, ORDER) or leaf.endswith(INDEXES):
            _text(walk, fd, name, seen.st_size)
    finally:
        os.close(fd)


def _text(walk: Walk, fd: int, name: str, size: int) -> None:
    """A file that is too long stays unread, and its checkpoint is then not trusted."""
    if size <= MOST_TEXT and walk.read + size <= MOST_TEXTS:
        walk.read += size
        walk.texts[name] = os.pread(fd, size, 0).decode("utf-8", "replace")
