"""The programs of an instance: one table, in the order they start.

Workers die with the process runner at once, because every turn of a loop may be cut off anywhere and the next turn
repairs it. Servers get a signal that lets them close their files.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from django.core.management import get_commands

from acmeweb.services import leash, postgres, valkey
from acmeweb.services.place import Place

PYTHON = sys.executable
CELERY = (PYTHON, "-m", "celery", "-A", "acmeweb.celery:app")


@dataclass(frozen=True, kw_only=True)
class Program:
    """One row: what runs, and how it ends."""

    name: str
    words: Sequence[str]  # without the leash
    stop: str = "TERM"  # how it is asked to end
    orphaned: str = "KILL"  # what the kernel sends when the process runner is gone
    patience_s: int = 5  # after this it is killed
    server: bool = False  # the others need it: starts before them, stops after them
    user: str = ""  # who to be instead of root
    reach: Sequence[Path] = ()  # what that user must get at
    module: str = ""  # without this module or this command there is nothing to start
    command: str = ""

    def exists(self) -> bool:
        if self.command:
            return self.command in get_commands()
        return not self.module or find_spec(self.module) is not None

    def leashed(self, hold: Path) -> list[str]:
        return leash.command(self.words, stop=self.orphaned, user=self.user, hold=hold, reach=self.reach)


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the table depends on. A port of 0: somebody else's server is used."""

    place: Place
    bind: str
    port: int
    demo: bool
    postgres_port: int
    valkey_port: int
    cluster_port: int
    web: int = 1  # processes on the one port


def table(wish: Wish) -> list[Program]:
    rows = [_cluster(wish), _worker(), _beat(wish), *(_web(wish, number) for number in range(1, wish.web + 1))]
    if wish.postgres_port:
        rows.append(_postgres(wish))
    if wish.valkey_port:
        rows.append(_valkey(wish))
    if wish.demo:
        rows.append(Program(name="demo", words=(PYTHON, "manage.py", "demo_users"), command="demo_users"))
    return [row for row in rows if row.exists()]


def _postgres(wish: Wish) -> Program:
    home = wish.place.postgres
    return Program(
        name="postgres",
        words=postgres.server(home, wish.postgres_port),
        stop="INT",
        orphaned="INT",
        patience_s=8,
        server=True,
        user=leash.unprivileged(),
        reach=(postgres.binary("postgres"), home),
    )


def _valkey(wish: Wish) -> Program:
    words = (str(valkey.binary()), str(wish.place.run / "valkey.conf"))
    return Program(name="valkey", words=words, orphaned="TERM", server=True)


def _cluster(wish: Wish) -> Program:
    module = "scheduling.simulator.server"
    words = [PYTHON, "-m", module, "--state", str(wish.place.var / "cluster"), "--port", str(wish.cluster_port)]
    words += ["--token-file", str(wish.place.cluster_token)]
    # Ten times what large training runs report: with it the demo has something to show within the hour
    words += ["--faults", "0.05"] if wish.demo else ["--execute"]
    # Open requests get 3 s, jobs that do not hear TERM 5 s, and their end is written down
    return Program(name="cluster", words=words, orphaned="TERM", patience_s=14, module=module)


def _worker() -> Program:
    words = (*CELERY, "worker", "-c", "2", "--without-gossip", "--without-mingle", "-n", "worker@acme")
    return Program(name="worker", words=words, patience_s=8)


def _beat(wish: Wish) -> Program:
    return Program(name="beat", words=(*CELERY, "beat", "-s", str(wish.place.run / "beat-schedule"), "--pidfile="))


def _web(wish: Wish, number: int) -> Program:
    words = (PYTHON, "-m", "acmeweb.services.web", "--host", wish.bind, "--port", str(wish.port))
    return Program(name="web" if number == 1 else f"web-{number}", words=words)
