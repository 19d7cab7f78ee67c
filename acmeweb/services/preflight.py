"""Checks before a start. Each failure is one sentence that says what to do."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from acmeweb.services.directories import InstanceDirectories

DISK_NEEDED_MB = 500


class CannotStart(Exception):
    """Why Acme cannot be started here, in one sentence."""


def free_mb(path: Path) -> int:
    return shutil.disk_usage(path).free // 2**20


def check_port(host: str, port: int) -> None:
    """Bind the port and release it: the only reliable check."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise CannotStart(_port_sentence(host, port, error)) from None


def _port_sentence(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} on {host} is already in use. Choose another with ACME_PORT={port + 1}."
    if error.errno == errno.EACCES:
        return f"Port {port} requires root. Choose one above 1023 with ACME_PORT=8000."
    return f"ACME_BIND={host} is not an address of this machine ({error.strerror})."


def check_disk(path: Path, free: Callable[[Path], int] = free_mb) -> None:
    if (free_space := free(path)) < DISK_NEEDED_MB:
        raise CannotStart(f"{path} has {free_space} MB of free disk space. Acme needs {DISK_NEEDED_MB} MB.")


def check_path(path: Path) -> None:
    """Reject paths that Supervisor's file format would cut: it treats " ;" and " #" as the start of a comment."""
    if re.search(r"\s[;#]|\n", str(path)):
        raise CannotStart(f"The path {str(path)!r} contains ' ;' or ' #', which Supervisor cannot handle. Move Acme.")


def make_directories(dirs: InstanceDirectories) -> None:
    try:
        for directory in (
            dirs.var,
            dirs.run,
            dirs.log,
            dirs.valkey,
            dirs.work,
            dirs.static,
            dirs.pod_logs,
        ):
            directory.mkdir(parents=True, exist_ok=True)
        dirs.secrets.mkdir(mode=0o700, exist_ok=True)
        dirs.secrets.chmod(0o700)
        # Servers that run as other users pass through here; secrets are protected further down.
        for directory in (dirs.var, dirs.run):
            directory.chmod(0o755)
        for directory in (dirs.log, dirs.pod_logs):
            directory.chmod(0o750)
        dirs.valkey.chmod(0o700)  # its file has the messages of all users
    except OSError as error:
        message = f"{error.filename} cannot be created ({error.strerror}). Choose another directory with ACME_VAR."
        raise CannotStart(message) from None
    if not os.access(dirs.run, os.W_OK):
        raise CannotStart(f"{dirs.run} is not writable. Choose another directory with ACME_VAR.")
