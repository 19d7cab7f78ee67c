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
# Per node and day of the simulation, which passes 60 times as fast: one or two failures an hour, and a run of days on
# eight nodes is hit every few hours
DEMO_FAULTS = "0.01"
KALOS_NODES = "34"  # 302 in the study, where Seren has 286 and the demo 32
SOURCE_PATHS = (ROOT, Path(sys.prefix), Path(PYTHON))  # what Acme's own programs must be able to read


@dataclass(frozen=True, kw_only=True)
class SupervisedProgram:
    """One program: its command, and how it is stopped."""

    name: str
    words: Sequence[str]  # without the guard
    stop: str = "TERM"  # signal for an orderly stop
    orphaned: str = "KILL"  # signal from the kernel when Supervisor is gone
    patience_s: int = 5  # after this it is killed
    server: bool = False  # the others need it: starts before them, stops after them
    user: str = ""  # user to run as instead of root
    home: Path | None = None  # home of that user; with it the program keeps our environment
    reach: Sequence[Path] = ()  # paths that the user must be able to read
    low_port: bool = False  # it listens on a port below 1024
    module: str = ""  # the program exists only with this module or this command
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
    """What the table depends on. A port of 0 means that this instance does not run the server."""

    dirs: InstanceDirectories
    bind: str
    port: int
    demo: bool
    postgres_port: int
    valkey_port: int
    cluster_port: int
    kubernetes_port: int = 0  # 0: no simulated Kubernetes cluster
    cluster_min_job_age_s: int = 300
    cluster_accounting: bool = True
    web: int = 1  # processes on the one port
    users: ServiceUsers = field(default_factory=ServiceUsers)


def program_table(config: InstanceConfig) -> list[SupervisedProgram]:
    rows = [
        _workers_program(config),
        *(_web_program(config, number) for number in range(1, config.web + 1)),
    ]
    if config.cluster_port:
        rows.append(_cluster_program(config))
    if config.kubernetes_port:
        rows.append(_kubernetes_program(config))
    if config.postgres_port:
        rows.append(_postgres_program(config))
    if config.valkey_port:
        rows.append(_valkey_program(config))
    if config.demo:
        rows.append(_acme_program(config, name="demo", words=(PYTHON, "manage.py", "demo_users"), command="demo_users"))
    return [row for row in rows if row.is_available()]


def _acme_program(config: InstanceConfig, **row: Any) -> SupervisedProgram:
    """Return a program of Acme itself, with Acme's user and access to the sources."""
    return SupervisedProgram(user=config.users.acme, home=config.dirs.work, reach=SOURCE_PATHS, **row)


def _postgres_program(config: InstanceConfig) -> SupervisedProgram:
    home = config.dirs.postgres
    return SupervisedProgram(
        name="postgres",
        words=postgres.server_command(home, config.postgres_port),
        stop="INT",
        orphaned="INT",
        patience_s=8,
        server=True,
        user=config.users.postgres,
        reach=(postgres.binary("postgres"), home),
    )


def _valkey_program(config: InstanceConfig) -> SupervisedProgram:
    binary, home = valkey.binary(), config.dirs.valkey
    words = (str(binary), str(config.dirs.valkey_conf))
    reach = (binary, home)
    return SupervisedProgram(
        name="valkey", words=words, orphaned="TERM", server=True, user=config.users.valkey, reach=reach
    )


def _cluster_program(config: InstanceConfig) -> SupervisedProgram:
    module = "scheduling.simulation.slurm.server"
    words = [PYTHON, "-m", module, "--state", str(config.dirs.cluster), "--port", str(config.cluster_port)]
    words += ["--token-file", str(config.dirs.cluster_token), "--min-job-age", str(config.cluster_min_job_age_s)]
    words += [] if config.cluster_accounting else ["--no-accounting"]
    # Open requests get 3 s, jobs that ignore TERM 5 s, then their end is recorded
    row: dict[str, Any] = {"name": "cluster", "orphaned": "TERM", "patience_s": 14, "module": module}
    if config.demo:
        return _acme_program(config, words=[*words, "--faults", DEMO_FAULTS], **row)
    # It starts and stops jobs as other users, so it stays root if we are root
    users = ["--job-uids", config.users.jobs] if config.users.are_separate else []
    return SupervisedProgram(words=[*words, "--execute", *users], **row)


def _kubernetes_program(config: InstanceConfig) -> SupervisedProgram:
    module, dirs = "scheduling.simulation.kubernetes.server", config.dirs
    words = [PYTHON, "-m", module, "--state", str(dirs.kubernetes), "--port", str(config.kubernetes_port)]
    words += ["--token-file", str(dirs.kubernetes_token), "--nodes", KALOS_NODES, "--faults", DEMO_FAULTS]
    return _acme_program(config, name="kubernetes", words=words, orphaned="TERM", patience_s=14, module=module)


def _workers_program(config: InstanceConfig) -> SupervisedProgram:
    return _acme_program(config, name="workers", words=(PYTHON, "-m", "acmeweb.services.workers"), patience_s=8)


def _web_program(config: InstanceConfig, number: int) -> SupervisedProgram:
    words = (PYTHON, "-m", "acmeweb.services.web", "--host", config.bind, "--port", str(config.port))
    name = "web" if number == 1 else f"web-{number}"
    return _acme_program(config, name=name, words=words, low_port=config.port < 1024)
