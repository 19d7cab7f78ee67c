"""Which files and directories of this machine the settings of a cluster may name, and reading a token from them.

Whoever may configure clusters decides where tokens are sent and which directory logs are read from. Without limits
that would be a way to read any file that Acme can read. Token files are therefore accepted only beneath directories
named by the operator of this machine (ACME_TOKEN_DIRS); directories of logs and checkpoints must not overlap system
directories, ACME_VAR or directories of tokens.

Paths are checked when they are saved and again when they are used, because a link may be replaced in between: a token
is opened step by step without following links, an open directory is judged by the path the kernel reports for it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MAX_TOKEN_BYTES = 16 << 10
SYSTEM_DIRECTORIES = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/root", "/run", "/sbin", "/sys", "/usr"),
    "/var/lib",
)


class PathNotAllowed(ValueError):
    """The message is a sentence without its subject and full stop, as of a field."""


@dataclass(frozen=True, kw_only=True)
class AllowedPaths:
    var: str
    token_dirs: tuple[str, ...]
    log_dirs: tuple[str, ...] = ()
    bundled_logs: str = ""  # of the cluster that `make up` brings along; beneath `var`, and no person can enter it

    def check_token_path(self, path: str) -> None:
        """Only where it lies: the file may be written later."""
        self._locate_token(path)

    def read_token(self, path: str) -> str:
        """The one word of a token file beneath an allowed directory. No link is followed after the check."""
        directory, parts = self._locate_token(path)
        try:
            here = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for part in parts[:-1]:
                here = _open_child(here, part, os.O_DIRECTORY)
            here = _open_child(here, parts[-1], os.O_NONBLOCK)  # opening a FIFO must not wait for its writer
        except OSError as error:
            raise _unreadable_error(error) from None
        return _read_token_text(here)

    def check_token_directory(self, path: str) -> None:
        """The same for a directory with one token file per user: an allowed directory, or one beneath it."""
        real = _real_path(path)
        if any(real == os.path.realpath(one) for one in self.token_dirs):
            return
        self._locate_token(path)

    def check_shared_directory(self, path: str) -> None:
        """Of logs or checkpoints, as a person enters it. It need not exist yet."""
        self._check_shared(_real_path(path))

    def check_open_directory(self, descriptor: int) -> None:
        """The same for a directory that is open, so nobody can replace it between this check and its use."""
        real = os.readlink(f"/proc/self/fd/{descriptor}")
        if not self.bundled_logs or real != os.path.realpath(self.bundled_logs):
            self._check_shared(real)

    def check_socket(self, path: str) -> None:
        if _is_beneath(_real_path(path), os.path.realpath(self.var)):
            raise PathNotAllowed("lies in ACME_VAR, where Acme's own services listen")

    def _locate_token(self, path: str) -> tuple[str, tuple[str, ...]]:
        """(the allowed directory, the way from there to the file), both without links."""
        real = _real_path(path)
        for directory in map(os.path.realpath, self.token_dirs):
            if real != directory and _is_beneath(real, directory):
                self._refuse_own_secrets(real)
                return directory, Path(real).relative_to(directory).parts
        named = ", ".join(self.token_dirs)
        raise PathNotAllowed(
            f"is not beneath a directory for tokens ({named}); move the file there, or add its directory to"
            " ACME_TOKEN_DIRS"
        )

    def _refuse_own_secrets(self, real: str) -> None:
        var = os.path.realpath(self.var)
        if _is_beneath(real, var) and not _is_beneath(real, f"{var}/tokens"):
            raise PathNotAllowed(f"lies in ACME_VAR, where Acme keeps its own secrets; move it to {self.var}/tokens")

    def _check_shared(self, real: str) -> None:
        if real == "/":
            raise PathNotAllowed("is the root directory of this machine; name the directory that jobs write to")
        _refuse_overlap(real, [os.path.realpath(self.var)], "ACME_VAR, where Acme keeps its own data and secrets")
        _refuse_overlap(real, map(os.path.realpath, self.token_dirs), "a directory of tokens")
        if self.log_dirs:
            if not any(_is_beneath(real, os.path.realpath(one)) for one in self.log_dirs):
                raise PathNotAllowed(f"is not beneath {', '.join(self.log_dirs)} (ACME_LOG_DIRS)")
        else:
            _refuse_overlap(real, SYSTEM_DIRECTORIES, "a system directory")


def load_allowed_paths() -> AllowedPaths:
    from django.conf import settings  # here, because the readers of shared file systems run without Django

    return AllowedPaths(
        var=str(settings.VAR),
        token_dirs=tuple(settings.ACME_TOKEN_DIRS),
        log_dirs=tuple(settings.ACME_LOG_DIRS),
        bundled_logs=str(settings.VAR / "cluster" / "logs"),
    )


def read_program_token(path: str) -> str:
    """Of the cluster that `make up` brings along: the program chose the path, so it may lie anywhere."""
    try:
        here = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _unreadable_error(error) from None
    return _read_token_text(here)


def _real_path(path: str) -> str:
    if "\x00" in path:
        raise PathNotAllowed("contains a NUL byte")
    if not path.startswith("/"):
        raise PathNotAllowed("does not begin with /; name it as it is mounted on this machine")
    try:
        return os.path.realpath(path)
    except (OSError, ValueError) as error:
        raise PathNotAllowed(f"cannot be resolved ({error})") from None


def _is_beneath(path: str, directory: str) -> bool:
    """Or the same."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _refuse_overlap(real: str, forbidden: Iterable[str], what: str) -> None:
    for one in forbidden:
        if _is_beneath(real, one):
            raise PathNotAllowed(f"is in {what} ({one})")
        if _is_beneath(one, real):
            raise PathNotAllowed(f"contains {what} ({one})")


def _open_child(parent: int, name: str, flags: int) -> int:
    """One name further down. The parent is closed in any case, so the caller owns exactly one descriptor."""
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=parent)
    finally:
        os.close(parent)


def _read_token_text(descriptor: int) -> str:
    """Closes the descriptor."""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise PathNotAllowed("is not a regular file")
        raw = os.read(descriptor, MAX_TOKEN_BYTES + 1)
    except OSError as error:
        raise _unreadable_error(error) from None
    finally:
        os.close(descriptor)
    if len(raw) > MAX_TOKEN_BYTES:
        raise PathNotAllowed(f"is larger than {MAX_TOKEN_BYTES >> 10} KiB; it must hold the token and nothing else")
    try:
        text = raw.decode("ascii").strip()
    except UnicodeDecodeError:
        raise PathNotAllowed("holds no text; it must hold the token and nothing else") from None
    if not text:
        raise PathNotAllowed("is empty; write a token into it: scontrol token username=… lifespan=…")
    if not text.isprintable() or " " in text:
        raise PathNotAllowed("holds more than one word; it must hold the token alone, without SLURM_JWT= before it")
    return text


def _unreadable_error(error: Exception) -> PathNotAllowed:
    why = getattr(error, "strerror", "") or str(error)
    return PathNotAllowed(f"cannot be read ({why}); let uid {os.getuid()} of this machine read it")
