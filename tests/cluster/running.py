"""A cluster server as a real process on a free port, which tests can kill and restart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from secrets import token_hex

from scheduling.backends.base import Backend
from scheduling.backends.opening import open_backend
from scheduling.slurmsim.execution import stepd
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


def is_alive(pid: int) -> bool:
    try:
        return stepd.stat_fields(pid)[0] != "Z"
    except OSError:
        return False


class ClusterProcess:
    """`with` starts the server; `kill` and `start` keep its state directory."""

    def __init__(self, state: Path, *arguments: str) -> None:
        self.state, self.arguments, self.address = state, arguments, ""
        self._process: subprocess.Popen[str] | None = None
        self.token, self.port = token_hex(8), "0"
        self._backends: list[Backend] = []

    def __enter__(self) -> ClusterProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for backend in self._backends:
            backend.close()
        self.stop()

    def start(self) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "scheduling.slurmsim.server", "--state", str(self.state)]
        command += ["--port", self.port]
        (self.state / "token").write_text(self.token)
        command += ["--configure-s", "0.1", "--token-file", str(self.state / "token")]
        with (self.state / "server.log").open("a") as errors:
            self._process = subprocess.Popen(
                [*command, *self.arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self._process.stdout is not None
        first_line = self._process.stdout.readline()
        if not first_line:
            self.end(signal.SIGKILL)
        assert first_line, (self.state / "server.log").read_text()
        self.address = first_line.split()[-1]
        self.port = self.address.rpartition(":")[2]  # a restarted server keeps its address

    def end(self, number: int) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        os.kill(process.pid, number)
        try:
            code = process.wait(timeout=PATIENCE_S)
        finally:
            process.kill()  # no effect if it has ended
        assert process.stdout is not None
        process.stdout.close()
        return code

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def stop(self) -> int:
        return self.end(signal.SIGTERM)

    def backend(self) -> Backend:
        """A backend that is closed with the cluster, because an open socket causes a warning in a later test."""
        self._backends.append(open_backend(self.address, user="acme", token=self.token))
        return self._backends[-1]

    @property
    def headers(self) -> dict[str, str]:
        return {"X-SLURM-USER-TOKEN": self.token}

    @property
    def log_root(self) -> Path:
        return self.state / "logs"
