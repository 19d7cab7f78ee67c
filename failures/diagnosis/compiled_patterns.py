"""A cache of the compiled signatures on disk: compiling takes seconds, loading a millisecond.

The cache is optional: if the file cannot be used, the table is compiled. A file is loaded only if no other user could
have written it, because its content is used as machine tables. Vectorscan checks its checksum and the processor type.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import hyperscan

MAX_DATABASE_BYTES = 64 << 20
MAX_CACHED_DATABASES = 8
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def load(table: str) -> hyperscan.Database | None:
    """The compiled database for a version of the signatures; None if it is not cached or not trusted."""
    with suppress(OSError, RuntimeError, ValueError, hyperscan.error):
        with _cache_path(table).open("rb") as file:
            info = os.fstat(file.fileno())
            if info.st_uid != os.geteuid() or info.st_mode & WRITABLE_BY_OTHERS or info.st_size > MAX_DATABASE_BYTES:
                return None
            database = hyperscan.loadb(file.read(), hyperscan.HS_MODE_BLOCK)
        database.scratch = hyperscan.Scratch(database)
        return database
    return None


def save(table: str, database: hyperscan.Database) -> None:
    """Write the database atomically; of two concurrent writers the last one wins."""
    with suppress(OSError, RuntimeError, hyperscan.error):
        place = _cache_path(table)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        raw = hyperscan.dumpb(database)
        handle, beside = tempfile.mkstemp(dir=place.parent, prefix=".table-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(raw)
            os.replace(beside, place)
        except OSError:
            os.unlink(beside)
            raise
        _delete_old_databases(place.parent)


def _delete_old_databases(directory: Path) -> None:
    """Delete all but the newest files. Several are kept for different versions and kinds of machines."""
    tables = sorted(directory.glob("table-*"), key=lambda path: path.stat().st_mtime)
    for old in tables[:-MAX_CACHED_DATABASES]:
        old.unlink(missing_ok=True)


def _cache_path(table: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
    return home / "acme" / f"table-{table}-{_platform_key()}"


def _platform_key() -> str:
    """A key for the library version and the processor type, because machines of several types may share a home."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        kind = "".join(sorted({line for line in file if line.startswith(("flags", "Features", "model name"))}))
        return hashlib.sha256(f"{version('hyperscan')} {sys.platform} {kind}".encode()).hexdigest()[:12]
    return f"{version('hyperscan')}-{sys.platform}"
