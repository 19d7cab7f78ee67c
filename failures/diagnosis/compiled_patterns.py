"""Compiled patterns on disk: compiling the signatures takes seconds, minutes on a busy machine; loading a millisecond.

`make up` and the build of the image write the files into the virtual environment, before any program starts. Without
them, the first process that needs the patterns compiles them and saves them there or in the user's cache. A file is
loaded only if nobody but this user and the owner of the program could have written it, because its content is used as
machine tables. Vectorscan checks its checksum and the processor type.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import hyperscan

MAX_DATABASE_BYTES = 64 << 20
MAX_STORED_DATABASES = 8
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def directories() -> tuple[Path, ...]:
    """Where files may be, in this order: the virtual environment, the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
    is_virtual = sys.prefix != sys.base_prefix
    return (*((Path(sys.prefix) / "acme-patterns",) if is_virtual else ()), home / "acme")


def load(table: str, places: Sequence[Path] | None = None) -> hyperscan.Database | None:
    """The compiled database for a version of the patterns; None if there is no file, or none that is trusted."""
    name = _file_name(table)
    loaded = (_load_file(place / name) for place in (directories() if places is None else places))
    return next((database for database in loaded if database is not None), None)


def _load_file(path: Path) -> hyperscan.Database | None:
    with suppress(OSError, RuntimeError, ValueError, hyperscan.error):
        with path.open("rb") as file:
            if not _is_trusted(os.fstat(file.fileno())):
                return None
            database = hyperscan.loadb(file.read(), hyperscan.HS_MODE_BLOCK)
        database.scratch = hyperscan.Scratch(database)
        return database
    return None


def _is_trusted(file: os.stat_result) -> bool:
    owners = {os.geteuid(), os.stat(__file__).st_uid}  # the owner of the program can do anything in this process
    return file.st_uid in owners and not file.st_mode & WRITABLE_BY_OTHERS and file.st_size <= MAX_DATABASE_BYTES


def save(table: str, database: hyperscan.Database, places: Sequence[Path] | None = None) -> None:
    """Write the database to the first directory that allows it. Atomic: of two concurrent writers the last one wins."""
    name = _file_name(table)
    for place in directories() if places is None else places:
        with suppress(OSError, RuntimeError, hyperscan.error):
            _write_file(place / name, hyperscan.dumpb(database))
            return


def _write_file(path: Path, raw: bytes) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=".table-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            os.fchmod(file.fileno(), 0o644)  # programs may run as other users than the set-up
        os.replace(beside, path)
    except OSError:
        os.unlink(beside)
        raise
    _delete_old_files(path.parent)


def _delete_old_files(directory: Path) -> None:
    """Delete all but the newest files. Several are kept for different versions and kinds of machines."""
    tables = sorted(directory.glob("table-*"), key=lambda path: path.stat().st_mtime)
    for old in tables[:-MAX_STORED_DATABASES]:
        old.unlink(missing_ok=True)


def _file_name(table: str) -> str:
    return f"table-{table}-{_platform_key()}"


def _platform_key() -> str:
    """A key for the library version and the processor type, because machines of several types may share a directory."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        kind = "".join(sorted({line for line in file if line.startswith(("flags", "Features", "model name"))}))
        return hashlib.sha256(f"{version('hyperscan')} {sys.platform} {kind}".encode()).hexdigest()[:12]
    return f"{version('hyperscan')}-{sys.platform}"
