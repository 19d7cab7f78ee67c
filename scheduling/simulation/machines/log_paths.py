"""Paths of job logs: only below one directory, and never through a symlink.

A job names its own output path, so the path is not trusted: every directory on the way is opened relative to its parent
without following links, and a path outside the root is rejected as Slurm rejects an invalid output path.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path, PurePosixPath

from .values import SimulatedJob

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
APPEND_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
TRUNCATE_FLAGS = APPEND_FLAGS | os.O_TRUNC


class InvalidLogPath(Exception):
    """An output path that must not be written to."""


def output_path(job: SimulatedJob, root: Path) -> str:
    """The output path by Slurm's rules: %j and %x are filled in, and relative paths start at the working directory."""
    template = job.request.stdout or str(root / "slurm-%j.out")
    filled = template.replace("%j", str(job.id)).replace("%x", job.request.name.replace("/", "_"))
    return os.path.join(job.request.workdir, filled)


def parts_beneath(root: Path, path: str) -> tuple[str, ...]:
    """The parts of the path below the root. Raises InvalidLogPath for `..` and paths outside."""
    target = PurePosixPath(path)
    for base in (root, Path(os.path.realpath(root))):
        if target.is_relative_to(base):
            parts = target.relative_to(base).parts
            if parts and ".." not in parts and "\0" not in path:
                return parts
    raise InvalidLogPath(f"{path!r:.200} is not below {root}")


def open_log(root: Path, path: str, flags: int) -> int:
    """Open a log and return its descriptor; missing directories are created."""
    at, name = open_parent(root, path)
    try:
        return os.open(name, flags, 0o644, dir_fd=at)
    except OSError as error:
        raise InvalidLogPath(f"{path!r:.200}: {error.strerror}") from error
    finally:
        os.close(at)


def open_parent(root: Path, path: str) -> tuple[int, str]:
    """Open the directory of the path, creating missing directories; returns its descriptor and the file name."""
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
    """Open a child directory and close its parent; returns the child's descriptor."""
    with suppress(FileExistsError):
        os.mkdir(directory, 0o755, dir_fd=at)
    child = os.open(directory, DIRECTORY_FLAGS, dir_fd=at)
    os.close(at)
    return child
