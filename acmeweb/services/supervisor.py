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

from acmeweb.env import ROOT
from acmeweb.services import keys, leash
from acmeweb.services.place import Place
from acmeweb.services.programs import Program

USER = "up"


def configuration(place: Place, programs: Sequence[Program], port: int, password: str) -> str:
    """Servers are groups of their own; the rest is one group, so that it is stopped all at once and before them."""
    rest = [program for program in programs if not program.server]
    blocks = [_daemon(place), _door(port, password)]
    blocks += [_program(place, program, order) for order, program in enumerate(_by_start(programs), start=1)]
    blocks.append(_section("group:acme", {"programs": ",".join(p.name for p in rest), "priority": "900"}))
    return "\n".join(blocks)


def _by_start(programs: Sequence[Program]) -> list[Program]:
    return sorted(programs, key=lambda program: not program.server)


def _daemon(place: Place) -> str:
    options = {
        "nodaemon": "true",
        "silent": "true",
        "logfile": _safe(place.log / "supervisor.log"),
        "logfile_maxbytes": "5MB",
        "logfile_backups": "1",
        "pidfile": _safe(place.run / "supervisord.pid"),
        "childlogdir": _safe(place.log),
        "umask": "022",
    }
    if os.geteuid() == 0:
        options["user"] = "root"  # said, because it warns about a root nobody asked for
    return _section("supervisord", options)


def _door(port: int, password: str) -> str:
    server = _section("inet_http_server", {"port": f"127.0.0.1:{port}", "username": USER, "password": password})
    rpc = "supervisor.rpcinterface:make_main_rpcinterface"
    return server + "\n" + _section("rpcinterface:supervisor", {"supervisor.rpcinterface_factory": rpc})


def _program(place: Place, program: Program, order: int) -> str:
    options = {
        "command": _safe(shlex.join(program.leashed(place.alive))),
        "directory": _safe(ROOT),
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
        "stdout_logfile": _safe(_safe(place.log / f"{program.name}.log")),  # this one it expands twice
        "stdout_logfile_maxbytes": "10MB",
        "stdout_logfile_backups": "3",
    }
    return _section(f"program:{program.name}", options)


def _section(name: str, options: Mapping[str, str]) -> str:
    return "\n".join([f"[{name}]", *(f"{key}={value}" for key, value in options.items())]) + "\n"


def _safe(value: object) -> str:
    return str(value).replace("%", "%%")


def start(place: Place, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """In a session of its own, so that a Ctrl-C reaches `up` alone, which then stops everything in order."""
    words = [sys.executable, "-m", "supervisor.supervisord", "-n", "-c", str(place.run / "supervisord.conf")]
    with (place.log / "supervisor.out").open("wb") as out:
        return subprocess.Popen(
            leash.command(words, parent=os.getpid(), hold=place.alive),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=ROOT,
            env=dict(environment),
            start_new_session=True,
        )


def write(place: Place, text: str) -> None:
    keys.write(place.run / "supervisord.conf", text)


class _Impatient(xmlrpc.client.Transport):
    def make_connection(self, host: tuple[str, dict[str, str]] | str) -> http.client.HTTPConnection:
        connection = super().make_connection(host)
        connection.timeout = 10
        return connection


@dataclass(frozen=True)
class Seen:
    """A program as the runner reports it."""

    name: str
    state: str  # STOPPED STARTING RUNNING BACKOFF STOPPING EXITED FATAL
    said: str
    pid: int


class Runner:
    """The running Supervisor. Every verb may raise Silent: it is starting, stopping, or gone."""

    def __init__(self, port: int, password: str) -> None:
        address = f"http://{USER}:{password}@127.0.0.1:{port}/RPC2"
        self._calls = xmlrpc.client.ServerProxy(address, transport=_Impatient())

    def close(self) -> None:
        self._calls("close")()

    def programs(self) -> list[Seen]:
        rows = self._call("getAllProcessInfo")
        return [Seen(row["name"], row["statename"], row["description"], row["pid"]) for row in rows]

    def start_rest(self) -> None:
        self._call("startProcessGroup", "acme", False)

    def start(self, name: str) -> None:
        self._call("startProcess", self._full_name(name), False)

    def stop(self, name: str) -> None:
        self._call("stopProcess", self._full_name(name), True)

    def _full_name(self, name: str) -> str:
        """With the program's group: servers are groups of their own."""
        rows = self._call("getAllProcessInfo")
        return next((f"{row['group']}:{row['name']}" for row in rows if row["name"] == name), name)

    def _call(self, verb: str, *words: object) -> Any:
        try:
            return getattr(self._calls.supervisor, verb)(*words)
        except (OSError, http.client.HTTPException, xmlrpc.client.Error) as error:
            raise Silent(str(error)) from None


class Silent(Exception):
    """The runner did not answer."""


def last_lines(log: Path, count: int = 8) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(f"    {line}" for line in lines[-count:])
