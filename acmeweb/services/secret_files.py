"""Secrets of an instance: created once, in files that only their owner can read."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path


def read_or_create(path: Path, length: int = 48) -> str:
    """Return the secret in this file; create it on the first call. Letters and digits only: it is used in URLs."""
    try:
        if stored := path.read_text().strip():
            return stored
    except FileNotFoundError:
        pass
    new = random_secret(length)
    write(path, new + "\n")
    return new


def random_secret(length: int = 48) -> str:
    return secrets.token_hex(length // 2)


def write(path: Path, text: str) -> None:
    """Write the file atomically and never readable by others: a truncated password would lock the data away."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def write_env(path: Path, values: Mapping[str, str]) -> None:
    """NAME=value lines, as acmeweb.common.env.read_file reads them."""
    lines = ["# Written by `make up` at every start: how to reach the servers of this instance."]
    lines += [f"{name}={value}" for name, value in values.items()]
    write(path, "\n".join(lines) + "\n")
