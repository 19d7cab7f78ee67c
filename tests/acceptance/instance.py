"""One instance of the product as `make up` starts it, with a separate directory and port."""

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

import httpx
import psycopg

from acmeweb.common.env import ROOT, read_file
from acmeweb.services import locks, parent_guard, ports, programs
from acmeweb.services.directories import InstanceDirectories
from acmeweb.services.supervisor import SupervisorClient, SupervisorUnavailable
from tests.patience import PATIENCE_S, until

START_S = 2 * PATIENCE_S  # a program that fails ends the wait earlier
READY = re.compile(
    r"Acme is ready: (http://127\.0\.0\.1:\d+/)  user admin  (password: as you set it|password \w{20})  "
    r"\(Ctrl-C stops everything\)\n"
    r"(?:Not isolated: .+\n)?"  # for an ordinary user with DEMO=0
)
OURS = ("DATABASE_URL", "VALKEY_URL", "REDIS_URL", "SECRET_KEY", "ACME_TESTING", "ACME_VAR")


@contextmanager
def running(**environment):
    """Run an instance in a new directory until the block ends; yields it with its password."""
    with tempfile.TemporaryDirectory(prefix="acme-instance-") as home:
        os.chmod(home, 0o755)  # the database does not run as root
        instance = Instance(Path(home) / "var")
        try:
            password = instance.start(**environment).ready().removeprefix("password ")
            yield instance, password
        finally:
            if instance.process and instance.process.poll() is None:
                instance.stop()


class Instance:
    """One `up` at a time, with a separate directory and port."""

    def __init__(self, var):
        self.place, self.port, self.process = InstanceDirectories(var), ports.pick(), None
        inherited = {name: value for name, value in os.environ.items() if name not in OURS}
        # The history of the demo takes a minute of two cores, which only its own test needs. Many jobs end in a test
        demo = {"DEMO_CLUSTERS": "seren", "DEMO_HISTORY_DAYS": "0", "DEMO_SPEED": "20"}
        self.environment = {**inherited, **demo, "ACME_VAR": str(var), "ACME_PORT": str(self.port)}
        self.out = var.parent / "up.out"

    def start(self, user="", **environment):
        words = [sys.executable, "manage.py", "up"]
        if user:
            words = parent_guard.guarded_command(
                words, user=user, reach=programs.SOURCE_PATHS, home=self.place.var.parent
            )
        with self.out.open("w") as out:
            self.process = subprocess.Popen(
                words,
                cwd=ROOT,
                env=self.environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def ready(self):
        """Wait for the ready line; return its password part."""
        until(lambda: self._lines() or self.process.poll() is not None, START_S, what="it said nothing")
        match = READY.fullmatch("".join(self._lines()))
        assert match, self.said()
        return match[2]

    def _lines(self):
        """Return the output without reminders about the database, which appear on slow machines."""
        lines = self.said().splitlines(keepends=True)
        return [line for line in lines if line.endswith("\n") and not line.startswith("The database is still being")]

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
        return locks.no_process_left(self.place.alive) and self.status() == 0

    def job(self, script):
        """Return the output of a job on the local cluster, up to a line END."""
        seen = "SELECT c.address, n.name FROM jobs_cluster c, jobs_node n"
        address, node = until(lambda: self.sql(seen).fetchone(), what="the workers never saw the node")
        log = self.place.cluster_logs / "job.log"
        job = {
            "name": "job",
            "account": "vision",
            "script": f"#!/bin/bash\n{script}\n",
            "environment": ["PATH=/bin"],
            "current_working_directory": "/tmp",
            "required_nodes": [node],
            "standard_output": str(log),
        }
        token = {"X-SLURM-USER-TOKEN": self.place.cluster_token.read_text().strip()}
        with httpx.Client(base_url=f"{address}/slurm/v0.0.42", trust_env=False) as client:
            client.post("/job/submit", json={"job": job}, headers=token).raise_for_status()
        until(lambda: log.exists() and log.read_text().endswith("END\n"), what=script)
        return log.read_text()

    def pids(self):
        with suppress(SupervisorUnavailable), self._runner() as runner:
            return {seen.name: seen.pid for seen in runner.programs() if seen.state == "RUNNING"}
        return {}

    def surroundings(self):
        """Return the environment for another process of this instance."""
        return {**self.environment, **read_file(self.place.env)}

    def halt(self, name):
        """Stop one program; Supervisor does not restart it."""
        with self._runner() as runner:
            runner.stop(name)

    @contextmanager
    def without(self, name):
        """Stop one program inside the block and start it afterwards."""
        self.halt(name)
        try:
            yield
        finally:
            self.launch(name)

    def launch(self, name):
        """Start a program that was stopped."""
        with self._runner() as runner:
            runner.start(name)

    def cluster_url(self):
        """Return the URL of the bundled cluster, whatever address the database has for it."""
        return read_file(self.place.env)["SIMULATED_CLUSTER_URL"]

    def command(self, *words):
        """Run a management command of this instance; return its output."""
        done = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=ROOT,
            env=self.surroundings(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr[-2000:]}"
        return done.stdout.strip()

    def end(self):
        """Stop the instance in whatever state it is, with all its processes."""
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
        runner = SupervisorClient(int(door["port"].rpartition(":")[2]), door["password"])
        try:
            yield runner
        finally:
            runner.close()

    def sql(self, *words):
        with psycopg.connect(read_file(self.place.env)["DATABASE_URL"], autocommit=True) as session:
            return session.execute(*words)
