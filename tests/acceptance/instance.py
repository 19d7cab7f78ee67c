"""One instance of the product as `make up` starts it, on a directory and a port of its own."""

import configparser
import http.client
import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

from acmeweb.env import ROOT, read_file
from acmeweb.services import locks, ports
from acmeweb.services.place import Place
from acmeweb.services.supervisor import Runner, Silent
from tests.patience import PATIENCE_S, until

READY = re.compile(
    r"Acme is ready: (http://127\.0\.0\.1:\d+/)  user admin  (password: as you set it|password \w{20})  "
    r"\(Ctrl-C stops everything\)\n"
)
OURS = ("DATABASE_URL", "VALKEY_URL", "REDIS_URL", "SECRET_KEY", "ACME_TESTING", "ACME_VAR")


@contextmanager
def running(**environment):
    """An instance that is ready, on a directory of its own, until the block ends; and its password."""
    with tempfile.TemporaryDirectory(prefix="acme-instance-") as home:
        os.chmod(home, 0o755)  # the database is not run by root
        instance = Instance(Path(home) / "var")
        try:
            password = instance.start(**environment).ready().removeprefix("password ")
            yield instance, password
        finally:
            if instance.process and instance.process.poll() is None:
                instance.stop()


class Instance:
    """One `up` at a time, on a directory and a port of its own."""

    def __init__(self, var):
        self.place, self.port, self.process = Place(var), ports.pick(), None
        inherited = {name: value for name, value in os.environ.items() if name not in OURS}
        self.environment = {**inherited, "ACME_VAR": str(var), "ACME_PORT": str(self.port)}
        self.out = var.parent / "up.out"

    def start(self, **environment):
        with self.out.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up"],
                cwd=ROOT,
                env=self.environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def ready(self):
        """Wait for the line; its password part."""
        until(lambda: self.said().endswith("\n") or self.process.poll() is not None, what="it said nothing")
        match = READY.fullmatch(self.said())
        assert match, self.said()
        return match[2]

    def said(self):
        return self.out.read_text()

    def status(self, path="/readyz"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()

    def stop(self, number=signal.SIGINT):
        self.process.send_signal(number)
        return self.process.wait(timeout=PATIENCE_S)

    def gone(self):
        return locks.all_gone(self.place.alive) and self.status() == 0

    def pids(self):
        with suppress(Silent), self._runner() as runner:
            return {seen.name: seen.pid for seen in runner.programs() if seen.state == "RUNNING"}
        return {}

    def surroundings(self):
        """The environment of a further process of this instance."""
        return {**self.environment, **read_file(self.place.env)}

    def halt(self, name):
        """Stop one program for good; the runner does not start it again."""
        with self._runner() as runner:
            runner.stop(name)

    def end(self):
        """However it stands: nothing of it runs any more."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.place.run.exists():
            locks.wait_for_leftovers(self.place.alive)

    @contextmanager
    def _runner(self):
        written = configparser.RawConfigParser()
        written.read(self.place.run / "supervisord.conf")
        door = written["inet_http_server"]
        runner = Runner(int(door["port"].rpartition(":")[2]), door["password"])
        try:
            yield runner
        finally:
            runner.close()

    def sql(self, *words):
        with psycopg.connect(read_file(self.place.env)["DATABASE_URL"], autocommit=True) as session:
            return session.execute(*words)
