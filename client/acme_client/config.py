"""Where the server is and what opens it: the environment, else $XDG_CONFIG_HOME/acme/config.toml (mode 0600)."""

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
        kept = tomllib.loads(path(environment).read_text())
    except (OSError, ValueError):
        kept = {}
    return Config(
        url=environment.get("ACME_URL") or str(kept.get("url", "")),
        token=environment.get("ACME_TOKEN") or str(kept.get("token", "")),
    )


def save(found: Config, environment: Mapping[str, str] = os.environ) -> Path:
    place = path(environment)
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Written beside it and moved: never readable for others, not even for a moment, and never half
    fresh = place.with_suffix(f".{os.getpid()}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"url = {json.dumps(found.url)}\ntoken = {json.dumps(found.token)}\n")
    fresh.replace(place)
    return place
