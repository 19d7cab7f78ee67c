"""What must be true before anything is started; each answer is one sentence a person can act on."""

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
    """Bind and let go: the only question whose answer counts."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise CannotStart(_port_sentence(host, port, error)) from None


def _port_sentence(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} on {host} is already in use; choose another with ACME_PORT={port + 1}."
    if error.errno == errno.EACCES:
        return f"Port {port} needs privileges that this user has not; choose one above 1023 with ACME_PORT=8000."
    return f"ACME_BIND={host} is no address of this machine ({error.strerror})."


def check_disk(path: Path, free: Callable[[Path], int] = free_mb) -> None:
    if (left := free(path)) < DISK_NEEDED_MB:
        raise CannotStart(f"{path} has {left} MB of free disk, and Acme needs {DISK_NEEDED_MB} MB; free some.")


def check_path(path: Path) -> None:
    """The process runner's file format cuts a line at " ;" and " #"; better said than seen."""
    if re.search(r"\s[;#]|\n", str(path)):
        raise CannotStart(f"Acme cannot live in {str(path)!r}, because of the ' ;' or ' #' in it; move it.")


def make_directories(place: InstanceDirectories) -> None:
    try:
        for directory in (place.var, place.run, place.log, place.valkey, place.work, place.static):
            directory.mkdir(parents=True, exist_ok=True)
        place.secrets.mkdir(mode=0o700, exist_ok=True)
        place.secrets.chmod(0o700)
        # A server that runs as another user passes through here; what is secret lies closed further down.
        for directory in (place.var, place.run):
            directory.chmod(0o755)
        place.log.chmod(0o750)
    except OSError as error:
        why = f"{error.filename} cannot be made ({error.strerror}); choose another directory with ACME_VAR."
        raise CannotStart(why) from None
    if not os.access(place.run, os.W_OK):
        raise CannotStart(f"{place.run} cannot be written to; choose another directory with ACME_VAR.")
