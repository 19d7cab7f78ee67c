"""Secrets of an instance: made once, kept in files that only their owner reads."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path


def read_or_create(path: Path, length: int = 48) -> str:
    """The secret in this file; on the first call one is made up. Letters and digits only: it goes into URLs."""
    try:
        if kept := path.read_text().strip():
            return kept
    except FileNotFoundError:
        pass
    made = random_secret(length)
    write(path, made + "\n")
    return made


def random_secret(length: int = 48) -> str:
    return secrets.token_hex(length // 2)


def write(path: Path, text: str) -> None:
    """Whole or not at all, and never readable by others for a moment: a torn password would lock the data away."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    opened = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(opened, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def write_env(path: Path, values: Mapping[str, str]) -> None:
    """NAME=value lines, as acmeweb.common.env.read_file reads them."""
    lines = ["# Written by `make up` at every start: how to reach the servers of this instance."]
    lines += [f"{name}={value}" for name, value in values.items()]
    write(path, "\n".join(lines) + "\n")
