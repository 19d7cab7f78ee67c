"""The server's URL and token: from the environment, else from $XDG_CONFIG_HOME/acme/config.toml (mode 0600)."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Config:
    url: str = ""
    token: str = ""


def path(environment: Mapping[str, str] = os.environ) -> Path:
    home = environment.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "acme" / "config.toml"


def load(environment: Mapping[str, str] = os.environ) -> Config:
    try:
        stored = tomllib.loads(path(environment).read_text())
    except (OSError, ValueError):
        stored = {}
    return Config(
        url=environment.get("ACME_URL") or str(stored.get("url", "")),
        token=environment.get("ACME_TOKEN") or str(stored.get("token", "")),
    )


def save(config: Config, environment: Mapping[str, str] = os.environ) -> Path:
    """Write the configuration file atomically; it is never readable by other users. Return its path."""
    target = path(environment)
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = target.with_suffix(f".{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"url = {json.dumps(config.url)}\ntoken = {json.dumps(config.token)}\n")
    temporary.replace(target)
    return target
