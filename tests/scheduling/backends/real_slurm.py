"""A real Slurm on one host for tests: controller, four nodes with fake GPUs (links to /dev/null), and slurmrestd.

Works for root and for an ordinary user. Everything is in one temporary directory, every daemon is a child process in
the foreground, and only those children are stopped. The host's own Slurm configuration is neither read nor changed.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.patience import PATIENCE_S, until

PROGRAMS = ("munged", "slurmctld", "slurmd", "slurmrestd", "scontrol", "sbatch", "scancel")
PACKAGES = "apt packages slurmctld slurmd slurm-client munge slurmrestd slurm-wlm-jwt-plugin"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
REST = {"SLURMRESTD_SECURITY": "disable_user_check"}
UP = ("IDLE", "MIXED", "ALLOCATED")
NODES, GPUS, CPUS, MEMORY_MB = 4, 8, 64, 512_000
SHARDS_PER_GPU = 4
MPS_PER_GPU = 100


def missing_programs() -> str:
    """The missing programs; empty if all are installed."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    return f"{PACKAGES}; missing: {', '.join(missing)}" if missing else ""


@contextmanager
def started_or_skipped(**settings: Any) -> Iterator[RealSlurm]:
    """Start a Slurm for a test, or skip the test if its programs are not installed."""
    if missing := missing_programs():
        pytest.skip(f"Slurm is not installed ({missing})")
    with RealSlurm(**settings) as slurm:
        yield slurm


def free_ports(count: int) -> list[int]:
    """Free ports, held open together while they are chosen so that none is chosen twice."""
    sockets = [socket.socket() for _ in range(count)]
    for candidate in sockets:
        candidate.bind(("127.0.0.1", 0))
    ports = [candidate.getsockname()[1] for candidate in sockets]
    for candidate in sockets:
        candidate.close()
    return ports


class RealSlurm:
    def __init__(self, min_job_age_s: int = 300, *, saves_power: bool = False) -> None:
        self._min_job_age_s, self._saves_power = min_job_age_s, saves_power
        self.home = Path(tempfile.mkdtemp(prefix="acme-slurm-"))
        self.home.chmod(0o755)  # munged refuses a socket that not everyone can reach
        self.user, self.host = getpass.getuser(), socket.gethostname().partition(".")[0]
        self.nodes = tuple(f"node{i}" for i in range(1, NODES + 1))
        self.mps_node = self.nodes[2]
        self.output, self._orders = self._directory("out"), self._directory("power")
        self.suspended: list[str] = []
        self.resumed: list[str] = []
        self._etc, self._run, self._log = (self._directory(name) for name in ("etc", "run", "log"))
        self.address = f"unix://{self._run}/rest.sock"
        self._controller_port, self._rest_port, *self._node_ports = free_ports(NODES + 2)
        self.tcp_address = f"http://127.0.0.1:{self._rest_port}"
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._by_role: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> RealSlurm:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._run_command(["scancel", "--user", self.user], check=False)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(timeout=30)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    def sbatch(self) -> str:
        """Submit a job without Acme and return its id."""
        command = ["sbatch", "--parsable", "--output=/dev/null", "--wrap=true"]
        return self._run_command(command).split(";")[0]

    def token(self, user: str = "") -> str:
        return self._run_command(["scontrol", "token", f"username={user or self.user}"]).partition("=")[2]

    # Power saving: the programs of Slurm leave orders, which the test carries out as the site's machines would

    def power(self, name: str, *, up: bool) -> None:
        """What an operator types; this version of slurmrestd cannot change nodes. A node that does not sleep, or boots
        for a job already, stays as it is: Slurm would wait for another boot.
        """
        if up and "POWERED_DOWN" not in self._node_flags(name):
            return
        self._run_command(["scontrol", "update", f"NodeName={name}", f"State=POWER_{'UP' if up else 'DOWN'}"])

    def _node_flags(self, name: str) -> list[str]:
        shown = self._run_command(["scontrol", "-o", "show", "node", name])
        return dict(word.partition("=")[::2] for word in shown.split())["State"].split("+")

    def carry_out_power_orders(self) -> None:
        """Turn machines off and on: each one is a slurmd. `-b` makes it report a boot. A machine that is on is turned
        off first, because Slurm waits for a boot after each order.
        """
        for order in sorted(self._orders.glob("*.off")):
            order.unlink()
            for name in self._names_in(order.stem):
                self.suspended.append(name)
                self._kill(name)
        for order in sorted(self._orders.glob("*.on")):
            order.unlink()
            for name in self._names_in(order.stem):
                self.resumed.append(name)
                if name in self._by_role:
                    self._kill(name)
                self._by_role[name] = self._launch("slurmd", "-D", "-b", "-N", name)

    def _names_in(self, hostlist: str) -> list[str]:
        return self._run_command(["scontrol", "show", "hostnames", hostlist]).split()

    def _power_settings(self) -> dict[str, object]:
        programs = {}
        for name, ending in (("SuspendProgram", "off"), ("ResumeProgram", "on")):
            program = self._etc / name
            program.write_text(f'#!/bin/sh\n: > "{self._orders}/$1.{ending}"\n')
            program.chmod(0o755)
            programs[name] = program
        # The site lets Acme decide: nodes sleep by themselves only after a day. The interval is 0 to 1 s
        return {**programs, "SuspendTime": 86_400, "SuspendTimeout": 1, "ResumeTimeout": 120}

    # Disruptions (Hazards)

    def kill_node(self, name: str) -> None:
        self._kill(name)

    def revive_node(self, name: str) -> None:
        self._by_role[name] = self._launch("slurmd", "-D", "-N", name)

    def restart_controller(self) -> None:
        daemon = self._by_role.pop("controller")
        daemon.terminate()
        daemon.wait(timeout=PATIENCE_S)
        self._start_controller()
        until(lambda: self._answering_nodes() == NODES, what="nodes")

    def cut(self) -> None:
        self._kill("rest")

    def mend(self) -> None:
        (self._run / "rest.sock").unlink(missing_ok=True)
        self._start_local_rest()
        until(self._rest_answers, what="slurmrestd")

    def _kill(self, role: str) -> None:
        daemon = self._by_role.pop(role)
        daemon.kill()
        daemon.wait()

    def _start(self) -> None:
        self._write_configuration()
        munge_socket = self._run / "munge.sock"
        self._launch(
            "munged",
            "--foreground",
            f"--key-file={self._secret('munge.key', 1024)}",
            f"--socket={munge_socket}",
            f"--pid-file={self._run}/munged.pid",
            f"--log-file={self._log}/munged.log",
            f"--seed-file={self._run}/munge.seed",
        )
        until(munge_socket.exists, what="munged")
        self._start_controller()
        for node in self.nodes:
            self.revive_node(node)
        self._start_rest()
        until(lambda: self._idle_nodes() == NODES, what="nodes")

    def _start_controller(self) -> None:
        self._by_role["controller"] = self._launch("slurmctld", "-D")
        until(lambda: "UP" in self._run_command(["scontrol", "ping"], check=False), what="slurmctld")

    def _start_rest(self) -> None:
        """Start two servers, because one with token authentication cannot also trust a local socket."""
        self._start_local_rest()
        address = f"127.0.0.1:{self._rest_port}"
        self._launch("slurmrestd", "-a", "rest_auth/jwt", "-s", self._plugin(), address, **REST, SLURM_JWT="daemon")
        until(self._rest_answers, what="slurmrestd")

    def _start_local_rest(self) -> None:
        socket_path = f"unix:{self._run}/rest.sock"
        words = ("-a", "rest_auth/local", "-s", self._plugin(), socket_path)
        self._by_role["rest"] = self._launch("slurmrestd", *words, **REST)

    def _plugin(self) -> str:
        """The plugin's name: up to 22.05 it includes the version; later there is one plugin for all versions."""
        release = self._run_command(["slurmctld", "-V"]).split()[-1]
        return "openapi/v0.0.38" if release.startswith("22.") else "slurmctld"

    def _rest_answers(self) -> bool:
        transport = httpx.HTTPTransport(uds=f"{self._run}/rest.sock")
        try:
            with httpx.Client(transport=transport) as client:
                client.get("http://slurm/openapi/v3")
                socket.create_connection(("127.0.0.1", self._rest_port), timeout=PATIENCE_S).close()
        except (httpx.HTTPError, OSError):
            return False
        return True

    def _idle_nodes(self) -> int:
        shown = self._run_command(["scontrol", "-o", "show", "nodes"], check=False)
        return sum("State=IDLE " in line for line in shown.splitlines())

    def _answering_nodes(self) -> int:
        shown = self._run_command(["scontrol", "-o", "show", "nodes"], check=False)
        return sum(any(f"State={state} " in line for state in UP) for line in shown.splitlines())

    def _launch(self, program: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        found = shutil.which(program, path=PATH)
        with (self._log / f"{program}-{len(self._daemons)}.out").open("wb") as output:
            daemon = subprocess.Popen(
                [found, *arguments],
                env={**self._environment(), **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._daemons.append(daemon)
        return daemon

    def _run_command(self, command: list[str], *, check: bool = True) -> str:
        done = subprocess.run(
            command, env=self._environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=check
        )
        return (done.stdout + ("" if check else done.stderr)).strip()

    def _environment(self) -> dict[str, str]:
        return {"PATH": PATH, "HOME": os.environ.get("HOME", "/"), "SLURM_CONF": str(self._etc / "slurm.conf")}

    def _directory(self, name: str) -> Path:
        path = self.home / name
        path.mkdir(parents=True)
        return path

    def _secret(self, name: str, length: int) -> Path:
        path = self._etc / name
        path.touch(mode=0o600)
        path.write_bytes(secrets.token_bytes(length))
        return path

    def _write_configuration(self) -> None:
        devices = self._directory("dev")
        for i in range(GPUS):  # Slurm requires an existing device and takes the index from its name
            (devices / f"nvidia{i}").symlink_to("/dev/null")
        gres = f"NodeName=node[1-{NODES}] Name=gpu Type=a100 File={devices}/nvidia[0-{GPUS - 1}]\n"
        for node in self.nodes:
            gres += f"NodeName={node} Name={self._shares_of(node).replace(':', ' Count=')}\n"
        (self._etc / "gres.conf").write_text(gres)
        (self._etc / "cgroup.conf").write_text("")
        settings = "".join(f"{name}={value}\n" for name, value in self._settings().items())
        (self._etc / "slurm.conf").write_text(settings + self._hardware())

    def _shares_of(self, node: str) -> str:
        if node == self.mps_node:
            return f"mps:{GPUS * MPS_PER_GPU}"
        return f"shard:{GPUS * SHARDS_PER_GPU}"

    def _settings(self) -> dict[str, object]:
        spool, state = self._directory("spool"), self._directory("state")
        for node in self.nodes:
            (spool / node).mkdir()
        return {
            "ClusterName": "contract",
            "SlurmctldHost": f"{self.host}(127.0.0.1)",
            "SlurmctldPort": self._controller_port,
            "SlurmUser": self.user,
            "SlurmdUser": self.user,
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self._run}/munge.sock,cred_expire=5",
            "AuthAltTypes": "auth/jwt",
            "AuthAltParameters": f"jwt_key={self._secret('jwt.key', 32)}",
            "StateSaveLocation": state,
            "SlurmdSpoolDir": f"{spool}/%n",
            "SlurmctldPidFile": f"{self._run}/slurmctld.pid",
            "SlurmdPidFile": f"{self._run}/slurmd-%n.pid",
            "SlurmctldLogFile": f"{self._log}/slurmctld.log",
            "SlurmdLogFile": f"{self._log}/slurmd-%n.log",
            "ProctrackType": "proctrack/linuxproc",
            "MpiDefault": "none",
            "MailProg": "/bin/true",
            "ReturnToService": 2,
            "KillWait": 3,
            "MinJobAge": self._min_job_age_s,
            "SlurmdTimeout": 15,  # the default of five minutes is too long for a test
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core_Memory",
            "SlurmdParameters": "config_overrides",  # the host is smaller than the four nodes that it simulates
            # in microseconds; the default of one pass every two seconds is too slow for a test
            "SchedulerParameters": "sched_min_interval=50000,batch_sched_delay=0,bf_interval=1",
            "GresTypes": "gpu,shard,mps",
            "DefCpuPerGPU": CPUS // GPUS,  # without these two, a job with one GPU takes the node
            "DefMemPerGPU": MEMORY_MB // GPUS,
            "DefMemPerCPU": 100,
            **(self._power_settings() if self._saves_power else {}),
        }

    def _hardware(self) -> str:
        size = f"CPUs={CPUS} RealMemory={MEMORY_MB} State=UNKNOWN Gres=gpu:a100:{GPUS}"
        lines = [
            f"NodeName={node} NodeHostname={self.host} NodeAddr=127.0.0.1 Port={port} {size},{self._shares_of(node)}"
            for node, port in zip(self.nodes, self._node_ports, strict=True)
        ]
        return "\n".join([*lines, "PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP", ""])
