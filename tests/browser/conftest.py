"""A real server on the test database, and a real browser."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from django.conf import settings
from django.db import connection
from django.test import Client
from playwright.sync_api import expect, sync_playwright

from acmeweb.loops.table import ALL_LOOPS
from jobs.models import Loop, TeamRole, clock
from tests import make
from tests.browser.chromium import CHROMIUM, FLAGS
from tests.patience import PATIENCE_S, until
from tests.scheduling.simulation.slurm.running import is_alive

expect.set_options(timeout=PATIENCE_S * 1000)

ROOT = Path(__file__).resolve().parents[2]
# Resolves when the frame after the next one is drawn
NEXT_FRAME = "new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))"


def database_url() -> str:
    """Return the URL of this process's test database, for another process."""
    to = connection.settings_dict
    login = f"{quote(to['USER'], safe='')}:{quote(to['PASSWORD'], safe='')}".rstrip(":")
    return f"postgresql://{login}@{quote(to['HOST'], safe='')}:{to['PORT']}/{quote(to['NAME'], safe='')}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(home: Path) -> dict[str, str]:
    return os.environ | {
        "DATABASE_URL": database_url(),
        "SECRET_KEY": settings.SECRET_KEY,
        "VALKEY_URL": settings.VALKEY_URL,
        "ACME_VAR": str(home),
        "ACME_DEBUG": "0",
        "ACME_TESTING": "0",
        "ACME_LOG_LEVEL": "WARNING",
    }


@pytest.fixture(scope="session")
def serving(django_db_setup, tmp_path_factory) -> Iterator[subprocess.Popen[str]]:
    """What all servers share: collected static files, and a process with all modules imported."""
    if not settings.VALKEY_URL:
        pytest.skip("VALKEY_URL is not set: nothing would carry live messages")
    known = environment(tmp_path_factory.mktemp("serving"))
    subprocess.run([sys.executable, "manage.py", "collectstatic", "--noinput", "-v0"], cwd=ROOT, env=known, check=True)
    words = [sys.executable, "-m", "tests.browser.serving"]
    with subprocess.Popen(
        words, cwd=ROOT, env=known, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


class Server:
    """The web server as in production: collected static files, several threads, a separate process."""

    def __init__(self, serving: subprocess.Popen[str], log: Path) -> None:
        self.serving, self.log, self.port, self.pid = serving, log, free_port(), 0
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        print("start", self.port, self.log, file=self.serving.stdin, flush=True)
        self.pid = int(self.serving.stdout.readline())
        until(self.answers, what=f"the server does not answer; {self.log}")

    def answers(self) -> bool:
        assert is_alive(self.pid), self.log.read_text()
        try:
            with urlopen(f"{self.url}/healthz", timeout=PATIENCE_S):
                return True
        except OSError:
            return False

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        until(lambda: not is_alive(self.pid), what=f"the server {self.pid} does not end")


@pytest.fixture
def server(serving, transactional_db, tmp_path):
    found = Server(serving, tmp_path / "web.log")
    try:
        found.start()
        yield found
    finally:
        found.kill()


# Not for the whole session: while Playwright is open its loop counts as running, and no asynchronous test could run
@pytest.fixture(scope="module")
def chromium():
    if not CHROMIUM:
        pytest.skip("Chromium is not installed")
    # Playwright runs an event loop in this thread; Django must not treat our queries as async
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


class Visitor:
    """A signed-in user's browser page, with the errors that it logged."""

    def __init__(self, context, server: Server, *, runs_scripts: bool = True) -> None:
        self.page, self.server, self.complaints = context.new_page(), server, []
        self.runs_scripts = runs_scripts
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def sign_in(self, name: str) -> None:
        """Open the home page with a new session. The login form, which has its own test, costs 0.8 s per visit."""
        make.team("pretraining", **{name: TeamRole.RESEARCHER})
        client = Client()
        client.force_login(make.user(name))
        cookie = settings.SESSION_COOKIE_NAME
        self.page.context.add_cookies([{"name": cookie, "value": client.cookies[cookie].value, "url": self.server.url}])
        self.open("/")

    def open(self, path: str) -> None:
        """Open a page, and wait for its first frame: Chromium drops keys that are pressed before it."""
        self.page.goto(self.server.url + path)
        if self.runs_scripts:
            self.page.evaluate(NEXT_FRAME)

    def open_live(self, path: str) -> None:
        """Open a page, and wait until its websocket is connected."""
        self.open(path)
        self.page.wait_for_selector("#live[data-state=live]")


@pytest.fixture(autouse=True)
def loops_in_time(transactional_db):
    """No workers run in these tests. A sentence on each page would say so."""
    Loop.add_missing(of_clusters=[], global_=[name for name, loop in ALL_LOOPS.items() if loop.run])
    Loop.objects.update(finished_at=clock.now() + timedelta(days=1))


@pytest.fixture
def visit(chromium, server):
    """visit("ada", color_scheme="dark", …): a browser window of ada."""
    contexts = []

    def opened(name: str, **options) -> Visitor:
        contexts.append(chromium.new_context(**options))
        contexts[-1].set_default_timeout(PATIENCE_S * 1000)
        visitor = Visitor(contexts[-1], server, runs_scripts=options.get("java_script_enabled", True))
        visitor.sign_in(name)
        return visitor

    yield opened
    for context in contexts:
        context.close()
