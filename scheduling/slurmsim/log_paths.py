"""Paths of job logs: beneath one directory only, and never through a symlink.

A job names its own output path, so the path is hostile until proven otherwise: every directory on the way is opened
by its parent, without following links, and a path that leaves the root is refused as Slurm refuses a bad output path.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path, PurePosixPath

from .values import SlurmJob

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
APPEND_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
TRUNCATE_FLAGS = APPEND_FLAGS | os.O_TRUNC


class InvalidLogPath(Exception):
    """An output path that may not be written to."""


def output_path(job: SlurmJob, root: Path) -> str:
    """Slurm's rule: %j and %x are filled in, a relative path is relative to the working directory."""
    asked = job.request.stdout or str(root / "slurm-%j.out")
    filled = asked.replace("%j", str(job.id)).replace("%x", job.request.name.replace("/", "_"))
    return os.path.join(job.request.workdir, filled)


def parts_beneath(root: Path, path: str) -> tuple[str, ...]:
    """The parts of the path below the root; `..` and every path outside are refused."""
    wanted = PurePosixPath(path)
    for known in (root, Path(os.path.realpath(root))):
        if wanted.is_relative_to(known):
            parts = wanted.relative_to(known).parts
            if parts and ".." not in parts and "\0" not in path:
                return parts
    raise InvalidLogPath(f"{path!r:.200} is not beneath {root}")


def open_log(root: Path, path: str, flags: int) -> int:
    """A descriptor of the log; directories on the way are made where they are missing."""
    at, name = open_parent(root, path)
    try:
        return os.open(name, flags, 0o644, dir_fd=at)
    except OSError as error:
        raise InvalidLogPath(f"{path!r:.200}: {error.strerror}") from error
    finally:
        os.close(at)


def open_parent(root: Path, path: str) -> tuple[int, str]:
    """A descriptor of the directory that the path is in, which is made where it is missing, and the last name."""
    *directories, name = parts_beneath(root, path)
    at = os.open(os.path.realpath(root), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for directory in directories:
            at = _open_child_directory(at, directory)
    except OSError as error:
        os.close(at)
        raise InvalidLogPath(f"{path!r:.200}: {error.strerror}") from error
    return at, name


def _open_child_directory(at: int, directory: str) -> int:
    """The child's descriptor in exchange for the parent's, which is closed once the child is open."""
    with suppress(FileExistsError):
        os.mkdir(directory, 0o755, dir_fd=at)
    child = os.open(directory, DIRECTORY_FLAGS, dir_fd=at)
    os.close(at)
    return child
