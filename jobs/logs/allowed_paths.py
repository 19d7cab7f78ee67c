"""Checks which files and directories the settings of a cluster may name, and reads tokens.

A user who may configure clusters decides where tokens are sent and which directory logs are read from. Without limits
this would allow them to read any file that Acme can read. Token files are therefore accepted only beneath directories
that the operator of this machine has named (ACME_TOKEN_DIRS). Directories of logs and checkpoints must not overlap
system directories, ACME_VAR or directories of tokens.

Paths are checked when they are saved and again when they are used, because a link may be replaced in between. A token
is opened component by component without following links, and an open directory is checked by the path that the kernel
reports for it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from acmeweb.common.errors import InvalidInput

MAX_TOKEN_BYTES = 16 << 10
MAX_SECRET_BYTES = 1 << 20  # a kubeconfig with the certificates of several clusters
SYSTEM_DIRECTORIES = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/root", "/run", "/sbin", "/sys", "/usr"),
    "/var/lib",
)


@dataclass(frozen=True, kw_only=True)
class AllowedPaths:
    """The directories that cluster settings may refer to."""

    var: str
    token_dirs: tuple[str, ...]
    log_dirs: tuple[str, ...] = ()
    # Beneath `var`, so users cannot enter these paths: logs of the cluster that `make up` starts, and the directory in
    # which each cluster has one for the logs that Acme copies
    bundled_logs: str = ""
    pod_logs: str = ""

    def check_token_path(self, path: str) -> None:
        """Check the location only: the file may be written later."""
        self._locate_token(path)

    def read_token(self, path: str) -> str:
        """Return the token in a file beneath an allowed directory. No link is followed after the check."""
        return _read_token_text(self._open_secret(path))

    def read_secret(self, path: str) -> str:
        """Return the text of a file beneath an allowed directory: a kubeconfig, a certificate or a key."""
        text = _read_ascii(self._open_secret(path), MAX_SECRET_BYTES, "")
        if not text.strip():
            raise InvalidInput("is empty")
        return text

    def _open_secret(self, path: str) -> int:
        directory, parts = self._locate_token(path)
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for part in parts[:-1]:
                descriptor = _open_child(descriptor, part, os.O_DIRECTORY)
            # without O_NONBLOCK, opening a FIFO would wait for its writer
            return _open_child(descriptor, parts[-1], os.O_NONBLOCK)
        except OSError as error:
            raise _unreadable_error(error) from None

    def check_token_directory(self, path: str) -> None:
        """Check a directory with one token file per user: an allowed directory, or a directory beneath one."""
        real = _real_path(path)
        if any(real == os.path.realpath(directory) for directory in self.token_dirs):
            return
        self._locate_token(path)

    def check_shared_directory(self, path: str) -> None:
        """Check a directory of logs or checkpoints that a user enters. It need not exist yet."""
        self._check_shared(_real_path(path))

    def check_open_directory(self, descriptor: int) -> None:
        """Check a directory by its descriptor, so that it cannot be replaced between this check and its use."""
        real = os.readlink(f"/proc/self/fd/{descriptor}")
        # Acme's own log directories lie in ACME_VAR, so they need an exception
        if not self._is_own_directory(real):
            self._check_shared(real)

    def holds_pod_logs(self, path: str) -> bool:
        """Whether the path is the directory of a cluster whose logs Acme copies to ACME_VAR."""
        return bool(self.pod_logs) and os.path.dirname(path) == self.pod_logs

    def _is_own_directory(self, real: str) -> bool:
        is_bundled = bool(self.bundled_logs) and real == os.path.realpath(self.bundled_logs)
        return is_bundled or (bool(self.pod_logs) and os.path.dirname(real) == os.path.realpath(self.pod_logs))

    def check_socket(self, path: str) -> None:
        if _is_beneath(_real_path(path), os.path.realpath(self.var)):
            raise InvalidInput("lies in ACME_VAR, where the services of Acme listen")

    def _locate_token(self, path: str) -> tuple[str, tuple[str, ...]]:
        """Return (allowed directory, path components from there to the file), both without links."""
        real = _real_path(path)
        for directory in map(os.path.realpath, self.token_dirs):
            if real != directory and _is_beneath(real, directory):
                self._refuse_own_secrets(real)
                return directory, Path(real).relative_to(directory).parts
        allowed = ", ".join(self.token_dirs)
        raise InvalidInput(
            f"is not beneath a directory for tokens ({allowed}); move the file there, or add its directory to"
            " ACME_TOKEN_DIRS"
        )

    def _refuse_own_secrets(self, real: str) -> None:
        var = os.path.realpath(self.var)
        if _is_beneath(real, var) and not _is_beneath(real, f"{var}/tokens"):
            raise InvalidInput(f"lies in ACME_VAR, where Acme stores its secrets; move it to {self.var}/tokens")

    def _check_shared(self, real: str) -> None:
        if real == "/":
            raise InvalidInput("is the root directory of this machine; enter the directory that jobs write to")
        _refuse_overlap(real, [os.path.realpath(self.var)], "ACME_VAR, where Acme stores its data and secrets")
        _refuse_overlap(real, map(os.path.realpath, self.token_dirs), "a directory of tokens")
        # An explicit list replaces the default ban of system directories
        if self.log_dirs:
            if not any(_is_beneath(real, os.path.realpath(directory)) for directory in self.log_dirs):
                raise InvalidInput(f"is not beneath {', '.join(self.log_dirs)} (ACME_LOG_DIRS)")
        else:
            _refuse_overlap(real, SYSTEM_DIRECTORIES, "a system directory")


def load_allowed_paths() -> AllowedPaths:
    """Return the limits from the Django settings."""
    from django.conf import settings  # imported here because reader processes run without Django

    return AllowedPaths(
        var=str(settings.VAR),
        token_dirs=tuple(settings.ACME_TOKEN_DIRS),
        log_dirs=tuple(settings.ACME_LOG_DIRS),
        bundled_logs=str(settings.VAR / "cluster" / "logs"),
        pod_logs=str(pod_log_directory()),
    )


def pod_log_directory() -> Path:
    """The directory of the logs that Acme copies for clusters without a log directory of their own."""
    from django.conf import settings

    return Path(settings.VAR).absolute() / "pod-logs"


def read_program_token(path: str) -> str:
    """Return the token of the cluster that `make up` starts. The program chose its path, so the file may be
    anywhere."""
    return _read_token_text(_open_program_file(path))


def read_program_secret(path: str) -> str:
    """Return the kubeconfig of the cluster that `make up` starts, wherever it is."""
    return _read_ascii(_open_program_file(path), MAX_SECRET_BYTES, "")


def _open_program_file(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _unreadable_error(error) from None


def _real_path(path: str) -> str:
    if "\x00" in path:
        raise InvalidInput("contains a NUL byte")
    if not path.startswith("/"):
        raise InvalidInput("does not begin with /; enter the path as mounted on this machine")
    try:
        return os.path.realpath(path)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot be resolved ({error})") from None


def _is_beneath(path: str, directory: str) -> bool:
    """Return whether the path is the directory or lies beneath it."""
    # The slash keeps /data2 from counting as beneath /data
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _refuse_overlap(real: str, forbidden: Iterable[str], what: str) -> None:
    for directory in forbidden:
        if _is_beneath(real, directory):
            raise InvalidInput(f"is in {what} ({directory})")
        if _is_beneath(directory, real):
            raise InvalidInput(f"contains {what} ({directory})")


def _open_child(parent: int, name: str, flags: int) -> int:
    """Open a child of a directory. The parent is always closed, so the caller owns exactly one descriptor."""
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=parent)
    finally:
        os.close(parent)


def _read_token_text(descriptor: int) -> str:
    """Return the token in an open file and close the descriptor."""
    text = _read_ascii(descriptor, MAX_TOKEN_BYTES, "; it must contain only the token").strip()
    if not text:
        raise InvalidInput("is empty; write a token to it with: scontrol token username=… lifespan=…")
    if not text.isprintable() or " " in text:
        raise InvalidInput("contains more than one word; it must contain only the token, without the prefix SLURM_JWT=")
    return text


def _read_ascii(descriptor: int, largest: int, advice: str) -> str:
    """Return the text of an open file and close the descriptor."""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InvalidInput("is not a regular file")
        # One byte more than allowed, to detect larger files
        raw = os.read(descriptor, largest + 1)
    except OSError as error:
        raise _unreadable_error(error) from None
    finally:
        os.close(descriptor)
    if len(raw) > largest:
        raise InvalidInput(f"is larger than {largest >> 10} KiB{advice}")
    try:
        return raw.decode("ascii")
    except UnicodeDecodeError:
        raise InvalidInput(f"is not a text file{advice}") from None


def _unreadable_error(error: Exception) -> InvalidInput:
    why = getattr(error, "strerror", "") or str(error)
    return InvalidInput(f"cannot be read ({why}); make it readable for uid {os.getuid()} of this machine")
