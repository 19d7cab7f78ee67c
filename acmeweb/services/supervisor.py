"""Supervisor, the process runner: its configuration, and the few questions `up` asks it.

`up` speaks to it over TCP on the loopback with a password made for this run. A Unix socket would have to lie in var/,
whose path may be longer than the 107 bytes a socket's name can have.
"""

from __future__ import annotations

import http.client
import os
import shlex
import subprocess
import sys
import xmlrpc.client
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acmeweb.common.env import ROOT
from acmeweb.services import parent_guard, secret_files
from acmeweb.services.directories import InstanceDirectories
from acmeweb.services.programs import SupervisedProgram

RPC_USER = "up"


def configuration(place: InstanceDirectories, programs: Sequence[SupervisedProgram], port: int, password: str) -> str:
    """Servers are groups of their own; the rest is one group, so that it is stopped all at once and before them."""
    rest = [program for program in programs if not program.server]
    blocks = [_supervisord_section(place), _rpc_section(port, password)]
    blocks += [_program_section(place, program, order) for order, program in enumerate(_start_order(programs), start=1)]
    blocks.append(_ini_section("group:acme", {"programs": ",".join(p.name for p in rest), "priority": "900"}))
    return "\n".join(blocks)


def _start_order(programs: Sequence[SupervisedProgram]) -> list[SupervisedProgram]:
    return sorted(programs, key=lambda program: not program.server)


def _supervisord_section(place: InstanceDirectories) -> str:
    options = {
        "nodaemon": "true",
        "silent": "true",
        "logfile": _escape_percent(place.log / "supervisor.log"),
        "logfile_maxbytes": "5MB",
        "logfile_backups": "1",
        "pidfile": _escape_percent(place.run / "supervisord.pid"),
        "childlogdir": _escape_percent(place.log),
        "umask": "022",
    }
    if os.geteuid() == 0:
        options["user"] = "root"  # said, because it warns about a root nobody asked for
    return _ini_section("supervisord", options)


def _rpc_section(port: int, password: str) -> str:
    server = _ini_section("inet_http_server", {"port": f"127.0.0.1:{port}", "username": RPC_USER, "password": password})
    rpc = "supervisor.rpcinterface:make_main_rpcinterface"
    return server + "\n" + _ini_section("rpcinterface:supervisor", {"supervisor.rpcinterface_factory": rpc})


def _program_section(place: InstanceDirectories, program: SupervisedProgram, order: int) -> str:
    options = {
        "command": _escape_percent(shlex.join(program.guarded_command_line(place.alive))),
        "directory": _escape_percent(ROOT),
        "priority": str(order),
        "autostart": str(program.server).lower(),
        "autorestart": "true",
        "startsecs": "1",
        "startretries": "8",
        "stopsignal": program.stop,
        "stopwaitsecs": str(program.patience_s),
        # PostgreSQL tells its own children, and in an order that matters to it.
        "stopasgroup": str(program.name != "postgres").lower(),
        "killasgroup": "true",
        "redirect_stderr": "true",
        "stdout_logfile": _escape_percent(
            _escape_percent(place.log / f"{program.name}.log")
        ),  # this one it expands twice
        "stdout_logfile_maxbytes": "10MB",
        "stdout_logfile_backups": "3",
    }
    return _ini_section(f"program:{program.name}", options)


def _ini_section(name: str, options: Mapping[str, str]) -> str:
    return "\n".join([f"[{name}]", *(f"{key}={value}" for key, value in options.items())]) + "\n"


def _escape_percent(value: object) -> str:
    return str(value).replace("%", "%%")


def start(place: InstanceDirectories, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """In a session of its own, so that a Ctrl-C reaches `up` alone, which then stops everything in order."""
    words = [sys.executable, "-m", "supervisor.supervisord", "-n", "-c", str(place.run / "supervisord.conf")]
    with (place.log / "supervisor.out").open("wb") as out:
        return subprocess.Popen(
            parent_guard.guarded_command(words, parent=os.getpid(), hold=place.alive),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=ROOT,
            env=dict(environment),
            start_new_session=True,
        )


def write_configuration(place: InstanceDirectories, text: str) -> None:
    secret_files.write(place.run / "supervisord.conf", text)


class _TimeoutTransport(xmlrpc.client.Transport):
    def make_connection(self, host: tuple[str, dict[str, str]] | str) -> http.client.HTTPConnection:
        connection = super().make_connection(host)
        connection.timeout = 10
        return connection


@dataclass(frozen=True)
class ProcessStatus:
    """A program as the runner reports it."""

    name: str
    state: str  # STOPPED STARTING RUNNING BACKOFF STOPPING EXITED FATAL
    said: str
    pid: int


class SupervisorClient:
    """The running Supervisor. Every verb may raise Silent: it is starting, stopping, or gone."""

    def __init__(self, port: int, password: str) -> None:
        address = f"http://{RPC_USER}:{password}@127.0.0.1:{port}/RPC2"
        self._calls = xmlrpc.client.ServerProxy(address, transport=_TimeoutTransport())

    def close(self) -> None:
        self._calls("close")()

    def programs(self) -> list[ProcessStatus]:
        rows = self._rpc_call("getAllProcessInfo")
        return [ProcessStatus(row["name"], row["statename"], row["description"], row["pid"]) for row in rows]

    def start_other_programs(self) -> None:
        self._rpc_call("startProcessGroup", "acme", False)

    def start(self, name: str) -> None:
        self._rpc_call("startProcess", self._full_name(name), False)

    def stop(self, name: str) -> None:
        self._rpc_call("stopProcess", self._full_name(name), True)

    def _full_name(self, name: str) -> str:
        """With the program's group: servers are groups of their own."""
        rows = self._rpc_call("getAllProcessInfo")
        return next((f"{row['group']}:{row['name']}" for row in rows if row["name"] == name), name)

    def _rpc_call(self, verb: str, *words: object) -> Any:
        try:
            return getattr(self._calls.supervisor, verb)(*words)
        except (OSError, http.client.HTTPException, xmlrpc.client.Error) as error:
            raise SupervisorUnavailable(str(error)) from None


class SupervisorUnavailable(Exception):
    """The runner did not answer."""


def last_lines(log: Path, count: int = 8) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(f"    {line}" for line in lines[-count:])
