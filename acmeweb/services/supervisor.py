"""Supervisor, the process runner: its configuration, and the client that `up` uses.

`up` connects over TCP on the loopback with a password created for this run. A Unix socket would have to be in var/,
whose path may be longer than the 107 bytes allowed for a socket.
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


def configuration(dirs: InstanceDirectories, programs: Sequence[SupervisedProgram], port: int, password: str) -> str:
    """Return supervisord.conf. Each server is a group; the other programs are one group, which stops before them."""
    others = [program for program in programs if not program.server]
    blocks = [_supervisord_section(dirs), _rpc_section(port, password)]
    blocks += [_program_section(dirs, program, order) for order, program in enumerate(_start_order(programs), start=1)]
    blocks.append(_ini_section("group:acme", {"programs": ",".join(p.name for p in others), "priority": "900"}))
    return "\n".join(blocks)


def _start_order(programs: Sequence[SupervisedProgram]) -> list[SupervisedProgram]:
    return sorted(programs, key=lambda program: not program.server)


def _supervisord_section(dirs: InstanceDirectories) -> str:
    options = {
        "nodaemon": "true",
        "silent": "true",
        "logfile": _escape_percent(dirs.log / "supervisor.log"),
        "logfile_maxbytes": "5MB",
        "logfile_backups": "1",
        "pidfile": _escape_percent(dirs.run / "supervisord.pid"),
        "childlogdir": _escape_percent(dirs.log),
        "umask": "022",
    }
    if os.geteuid() == 0:
        options["user"] = "root"  # explicit, because Supervisor warns about an implicit root
    return _ini_section("supervisord", options)


def _rpc_section(port: int, password: str) -> str:
    server = _ini_section("inet_http_server", {"port": f"127.0.0.1:{port}", "username": RPC_USER, "password": password})
    rpc = "supervisor.rpcinterface:make_main_rpcinterface"
    return server + "\n" + _ini_section("rpcinterface:supervisor", {"supervisor.rpcinterface_factory": rpc})


def _program_section(dirs: InstanceDirectories, program: SupervisedProgram, order: int) -> str:
    options = {
        "command": _escape_percent(shlex.join(program.guarded_command_line(dirs.alive))),
        "directory": _escape_percent(ROOT),
        "priority": str(order),
        "autostart": str(program.server).lower(),
        "autorestart": "true",
        "startsecs": "1",
        "startretries": "8",
        "stopsignal": program.stop,
        "stopwaitsecs": str(program.patience_s),
        # PostgreSQL signals its own children, in an order that matters to it.
        "stopasgroup": str(program.name != "postgres").lower(),
        "killasgroup": "true",
        "redirect_stderr": "true",
        # Supervisor expands this option twice
        "stdout_logfile": _escape_percent(_escape_percent(dirs.log / f"{program.name}.log")),
        "stdout_logfile_maxbytes": "10MB",
        "stdout_logfile_backups": "3",
    }
    return _ini_section(f"program:{program.name}", options)


def _ini_section(name: str, options: Mapping[str, str]) -> str:
    return "\n".join([f"[{name}]", *(f"{key}={value}" for key, value in options.items())]) + "\n"


def _escape_percent(value: object) -> str:
    return str(value).replace("%", "%%")


def start(dirs: InstanceDirectories, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start Supervisor in its own session, so that Ctrl-C reaches only `up`, which then stops everything in order."""
    command = [sys.executable, "-m", "supervisor.supervisord", "-n", "-c", str(dirs.run / "supervisord.conf")]
    with (dirs.log / "supervisor.out").open("wb") as out:
        return subprocess.Popen(
            parent_guard.guarded_command(command, parent=os.getpid(), hold=dirs.alive),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=ROOT,
            env=dict(environment),
            start_new_session=True,
        )


def write_configuration(dirs: InstanceDirectories, text: str) -> None:
    secret_files.write(dirs.run / "supervisord.conf", text)


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
    description: str
    pid: int


class SupervisorClient:
    """Client of the running Supervisor. Every method may raise SupervisorUnavailable."""

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
        """Return the name with its group, as Supervisor expects it."""
        rows = self._rpc_call("getAllProcessInfo")
        return next((f"{row['group']}:{row['name']}" for row in rows if row["name"] == name), name)

    def _rpc_call(self, verb: str, *arguments: object) -> Any:
        try:
            return getattr(self._calls.supervisor, verb)(*arguments)
        except (OSError, http.client.HTTPException, xmlrpc.client.Error) as error:
            raise SupervisorUnavailable(str(error)) from None


class SupervisorUnavailable(Exception):
    """Supervisor did not answer: it is starting, stopping, or gone."""


def last_lines(log: Path, count: int = 8) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(f"    {line}" for line in lines[-count:])
