"""A separate PostgreSQL and Valkey for every test run; loaded before Django's settings (`-p` in addopts).

With DATABASE_URL given, that server is used. Under xdist the controller starts them once and the workers inherit their
addresses. They end with pytest, also when it is killed.

REQUIRE_ALL=1 turns every skip into a failure: where everything is installed, a test that did not run says nothing.
Only what no package index has may be missing.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from acmeweb.common.env import ROOT
from acmeweb.services import parent_guard, ports, postgres, secret_files, users, valkey
from tests import properties, schema_template
from tests.patience import PATIENCE_S

REQUIRE_ALL = os.environ.get("REQUIRE_ALL", "") not in ("", "0")
# Nobody needs the data of a test run after a crash
UNSAFE_SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "autovacuum": "off"}
NO_TORCH = "torch is not installed; `.ci/run system` installs its CPU build, where there is one"
NO_KUBERNETES = "there is no Kubernetes control plane on this host"  # no package index has one
NO_OFFICIAL_CLIENT = "KUBERNETES_CLIENT_PYTHON names no interpreter with the official client"  # it has 60 MB
MAY_BE_MISSING = (NO_TORCH, NO_KUBERNETES, NO_OFFICIAL_CLIENT)  # also where REQUIRE_ALL is set
# Settings need addresses; nothing listens there
NO_SERVERS = {"DATABASE_URL": "postgresql://none@127.0.0.1:1/none", "VALKEY_URL": "redis://127.0.0.1:1/0"}
SCHEMA_PASSWORD = "schema-password"
running = ExitStack()
properties.register_profiles()  # before Hypothesis reads the option that chooses one


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    """A wrapper runs before every plain hook, so before pytest-django touches the settings."""
    os.environ["ACME_TESTING"] = "1"
    os.environ.setdefault("SECRET_KEY", "only-for-tests-" + "x" * 40)
    if early_config.pluginmanager.hasplugin("tests.without_database"):
        os.environ |= NO_SERVERS
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        use_valkey_database(worker)
    else:
        with compiled_tests(workers=bool(getattr(early_config.known_args_namespace, "numprocesses", None))):
            start(running)
    try:
        yield
    except BaseException:
        running.close()
        raise


def use_valkey_database(worker: str) -> None:
    """Give a worker a database of its own in Valkey, because rows of different workers have the same numbers."""
    url, slash, number = os.environ["VALKEY_URL"].rpartition("/")
    if number == "0":
        os.environ["VALKEY_URL"] = f"{url}{slash}{1 + int(worker.removeprefix('gw')) % 15}"


def pytest_unconfigure() -> None:
    running.close()


@contextmanager
def compiled_tests(*, workers: bool) -> Iterator[None]:
    """Write the bytecode of all tests of a fresh clone, beside what the block does.

    Otherwise every worker compiles all tests and their libraries, which takes 11 of its first 20 s. A process that ends
    early costs nothing but this time.
    """
    cached = (ROOT / "tests/jobs/__pycache__").glob(f"*.{sys.implementation.cache_tag}*")  # other Pythons write others
    if not workers or sys.dont_write_bytecode or any(cached):
        yield
        return
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", "-p", "no:cacheprovider", "tests"]
    known, null = os.environ | NO_SERVERS, subprocess.DEVNULL
    with subprocess.Popen(words, cwd=ROOT, env=known, stdin=null, stdout=null, stderr=null):
        yield


def start(stack: ExitStack, settings: Mapping[str, str] = UNSAFE_SETTINGS) -> None:
    home = Path(tempfile.mkdtemp(prefix="acme-tests-"))
    stack.callback(shutil.rmtree, home, ignore_errors=True)
    os.environ["ACME_VAR"] = str(home)
    home.chmod(0o755)  # servers that do not run as root need access
    (home / "static").mkdir()  # for collected files; without it every request warns
    if not os.environ.get("DATABASE_URL"):
        os.environ["DATABASE_URL"] = start_migrated_postgres(home, stack, settings)
        os.environ[schema_template.VARIABLE] = schema_template.DATABASE
    if not (os.environ.get("VALKEY_URL") or os.environ.get("REDIS_URL")):
        os.environ["VALKEY_URL"] = start_valkey(home, stack)


def start_migrated_postgres(home: Path, stack: ExitStack, settings: Mapping[str, str]) -> str:
    """Start a server that also has the template database."""
    password = copy_schema_template(home / "postgres")
    return serve_postgres(home, password, stack, settings)[0]


def copy_schema_template(directory: Path) -> str:
    """Create a data directory with the template database; return its password."""
    schema_template.copy_or_build(directory, build_schema_template)
    file = directory / SCHEMA_PASSWORD
    password = file.read_text()
    file.unlink()
    return password


def build_schema_template(directory: Path) -> None:
    """Create a data directory with the template database, its password beside it."""
    with tempfile.TemporaryDirectory(prefix="acme-schema-") as temporary, ExitStack() as stack:
        home, password = Path(temporary), secret_files.random_secret()
        home.chmod(0o755)
        url, server = serve_postgres(home, password, stack)
        with psycopg.connect(url, autocommit=True) as session:
            session.execute(f"CREATE DATABASE {schema_template.DATABASE}")
        _migrate(url.removesuffix(postgres.DATABASE) + schema_template.DATABASE, home)
        server.send_signal(signal.SIGINT)
        if server.wait(timeout=PATIENCE_S) != 0:
            raise pytest.UsageError("PostgreSQL did not stop in order")
        shutil.copytree(home / "postgres", directory, dirs_exist_ok=True)
    secret_files.write(directory / SCHEMA_PASSWORD, password)


def _migrate(url: str, home: Path) -> None:
    words = [sys.executable, "manage.py", "migrate", "--no-input", "-v0"]
    subprocess.run(words, cwd=ROOT, env=os.environ | {"DATABASE_URL": url, "ACME_VAR": str(home)}, check=True)


def start_postgres(home: Path, stack: ExitStack) -> str:
    return serve_postgres(home, secret_files.random_secret(), stack)[0]


def serve_postgres(
    home: Path, password: str, stack: ExitStack, settings: Mapping[str, str] = UNSAFE_SETTINGS
) -> tuple[str, subprocess.Popen[bytes]]:
    """Start a server on `home / "postgres"`, which is created if it is missing; return its URL and process."""
    port, directory = ports.pick(), home / "postgres"
    user = users.default().postgres
    postgres.prepare_data_directory(directory, password, home / "initdb.log", user)
    words = postgres.server_command(directory, port, settings)
    process = _spawn(postgres.guarded_postgres_command(words, directory, user=user), home / "postgres.log", stack)
    _until(lambda: postgres.ensure_database(password, port), home / "postgres.log")
    return postgres.url(password, port), process


def start_valkey(home: Path, stack: ExitStack) -> str:
    password, port, directory = secret_files.random_secret(), ports.pick(), home / "valkey"
    directory.mkdir()
    text = valkey.configuration(directory, password, port).replace("appendonly yes", "appendonly no")
    secret_files.write(home / "valkey.conf", text)
    words = [str(valkey.binary()), str(home / "valkey.conf")]
    _spawn(parent_guard.guarded_command(words, parent=os.getpid()), home / "valkey.log", stack)
    url = valkey.url(password, port)
    _until(lambda: valkey.accepts_login(url), home / "valkey.log")
    return url


def _spawn(words: list[str], log: Path, stack: ExitStack) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the servers; their data is deleted anyway."""
    process.kill()
    process.wait()


def _until(answers: Callable[[], bool], log: Path, limit_s: float = PATIENCE_S) -> None:
    limit = time.monotonic() + limit_s
    while not answers():
        if time.monotonic() > limit:
            raise pytest.UsageError(f"no answer within {limit_s:.0f} s; {log} says:\n{log.read_text()[-2000:]}")
        time.sleep(0.02)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        _fail_if_required(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped:
        _fail_if_required(report)
    return report


def _fail_if_required(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not REQUIRE_ALL or any(reason in str(report.longrepr) for reason in MAY_BE_MISSING):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    report.outcome = "failed"
    report.longrepr = f"REQUIRE_ALL=1, but this was skipped: {reason}"
