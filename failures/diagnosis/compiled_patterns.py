"""The compiled table of signatures, kept between processes: compiling takes seconds, and loading a millisecond.

Never needed: whatever is wrong with the file or its place, the table is compiled. A file is believed only where nobody
else could have written it, for it is loaded as machine tables; Vectorscan checks its checksum and the processor.
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
    """`table` is the version of the signatures."""
    with suppress(OSError, RuntimeError, ValueError, hyperscan.error):
        with _cache_path(table).open("rb") as file:
            about = os.fstat(file.fileno())
            if about.st_uid != os.geteuid() or about.st_mode & WRITABLE_BY_OTHERS or about.st_size > MAX_DATABASE_BYTES:
                return None
            database = hyperscan.loadb(file.read(), hyperscan.HS_MODE_BLOCK)
        database.scratch = hyperscan.Scratch(database)
        return database
    return None


def save(table: str, database: hyperscan.Database) -> None:
    """Whole or not at all; of two at once the last one stays."""
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
    """The newest stay: several versions may be in use, on several kinds of machines."""
    tables = sorted(directory.glob("table-*"), key=lambda path: path.stat().st_mtime)
    for old in tables[:-MAX_CACHED_DATABASES]:
        old.unlink(missing_ok=True)


def _cache_path(table: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
    return home / "acme" / f"table-{table}-{_platform_key()}"


def _platform_key() -> str:
    """A table fits one version of the library and one kind of processor; homes are shared by machines of several."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        kind = "".join(sorted({line for line in file if line.startswith(("flags", "Features", "model name"))}))
        return hashlib.sha256(f"{version('hyperscan')} {sys.platform} {kind}".encode()).hexdigest()[:12]
    return f"{version('hyperscan')}-{sys.platform}"
