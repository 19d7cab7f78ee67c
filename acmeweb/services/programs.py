"""The programs of an instance: one table, in the order they start.

Workers die with the process runner at once, because every turn of a loop may be cut off anywhere and the next turn
repairs it. Servers get a signal that lets them close their files.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.core.management import get_commands

from acmeweb.common.env import ROOT
from acmeweb.services import parent_guard, postgres, valkey
from acmeweb.services.directories import InstanceDirectories
from acmeweb.services.users import ServiceUsers

PYTHON = sys.executable
CELERY = (PYTHON, "-m", "celery", "-A", "acmeweb.celery:app")
SOURCE_PATHS = (ROOT, Path(sys.prefix), Path(PYTHON))  # what Acme's own programs must be able to read


@dataclass(frozen=True, kw_only=True)
class SupervisedProgram:
    """One row: what runs, and how it ends."""

    name: str
    words: Sequence[str]  # without the leash
    stop: str = "TERM"  # how it is asked to end
    orphaned: str = "KILL"  # what the kernel sends when the process runner is gone
    patience_s: int = 5  # after this it is killed
    server: bool = False  # the others need it: starts before them, stops after them
    user: str = ""  # who to be instead of root
    home: Path | None = None  # of that user; with it the program may know our environment
    reach: Sequence[Path] = ()  # what that user must get at
    low_port: bool = False  # it listens on a port below 1024
    module: str = ""  # without this module or this command there is nothing to start
    command: str = ""

    def is_available(self) -> bool:
        if self.command:
            return self.command in get_commands()
        return not self.module or find_spec(self.module) is not None

    def guarded_command_line(self, hold: Path) -> list[str]:
        return parent_guard.guarded_command(
            self.words,
            stop=self.orphaned,
            user=self.user,
            hold=hold,
            reach=self.reach,
            home=self.home,
            low_port=self.low_port,
        )


@dataclass(frozen=True, kw_only=True)
class InstanceConfig:
    """What the table depends on. A port of 0: somebody else's server is used."""

    place: InstanceDirectories
    bind: str
    port: int
    demo: bool
    postgres_port: int
    valkey_port: int
    cluster_port: int
    cluster_min_job_age_s: int = 300
    cluster_accounting: bool = True
    web: int = 1  # processes on the one port
    users: ServiceUsers = field(default_factory=ServiceUsers)


def program_table(wish: InstanceConfig) -> list[SupervisedProgram]:
    rows = [
        _cluster_program(wish),
        _workers_program(wish),
        _beat_program(wish),
        *(_web_program(wish, number) for number in range(1, wish.web + 1)),
    ]
    if wish.postgres_port:
        rows.append(_postgres_program(wish))
    if wish.valkey_port:
        rows.append(_valkey_program(wish))
    if wish.demo:
        rows.append(_acme_program(wish, name="demo", words=(PYTHON, "manage.py", "demo_users"), command="demo_users"))
    return [row for row in rows if row.is_available()]


def _acme_program(wish: InstanceConfig, **row: Any) -> SupervisedProgram:
    """A program of Acme itself."""
    return SupervisedProgram(user=wish.users.acme, home=wish.place.work, reach=SOURCE_PATHS, **row)


def _postgres_program(wish: InstanceConfig) -> SupervisedProgram:
    home = wish.place.postgres
    return SupervisedProgram(
        name="postgres",
        words=postgres.server_command(home, wish.postgres_port),
        stop="INT",
        orphaned="INT",
        patience_s=8,
        server=True,
        user=wish.users.postgres,
        reach=(postgres.binary("postgres"), home),
    )


def _valkey_program(wish: InstanceConfig) -> SupervisedProgram:
    binary, home = valkey.binary(), wish.place.valkey
    words = (str(binary), str(wish.place.valkey_conf))
    reach = (binary, home)
    return SupervisedProgram(
        name="valkey", words=words, orphaned="TERM", server=True, user=wish.users.valkey, reach=reach
    )


def _cluster_program(wish: InstanceConfig) -> SupervisedProgram:
    module = "scheduling.slurmsim.server"
    words = [PYTHON, "-m", module, "--state", str(wish.place.cluster), "--port", str(wish.cluster_port)]
    words += ["--token-file", str(wish.place.cluster_token), "--min-job-age", str(wish.cluster_min_job_age_s)]
    words += [] if wish.cluster_accounting else ["--no-accounting"]
    # Open requests get 3 s, jobs that do not hear TERM 5 s, and their end is written down
    row: dict[str, Any] = {"name": "cluster", "orphaned": "TERM", "patience_s": 14, "module": module}
    if wish.demo:
        # Ten times what large training runs report: with it the demo has something to show within the hour
        return _acme_program(wish, words=[*words, "--faults", "0.05"], **row)
    # It starts jobs as other users and stops them, so it stays root where we are
    users = ["--job-uids", wish.users.jobs] if wish.users.are_separate else []
    return SupervisedProgram(words=[*words, "--execute", *users], **row)


def _workers_program(wish: InstanceConfig) -> SupervisedProgram:
    return _acme_program(wish, name="workers", words=(PYTHON, "-m", "acmeweb.services.workers"), patience_s=8)


def _beat_program(wish: InstanceConfig) -> SupervisedProgram:
    words = (*CELERY, "beat", "-s", str(wish.place.work / "beat-schedule"), "--pidfile=")
    return _acme_program(wish, name="beat", words=words)


def _web_program(wish: InstanceConfig, number: int) -> SupervisedProgram:
    words = (PYTHON, "-m", "acmeweb.services.web", "--host", wish.bind, "--port", str(wish.port))
    name = "web" if number == 1 else f"web-{number}"
    return _acme_program(wish, name=name, words=words, low_port=wish.port < 1024)
