"""The server of a simulated cluster as a real process on a free port, which tests can kill and restart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from secrets import token_hex
from typing import ClassVar, Self

from acmeweb.common.env import ROOT
from tests.patience import PATIENCE_S


class SimulatorProcess:
    """`with` starts the server; `kill` and `start` keep its state directory, its port and its token."""

    MODULE: ClassVar[str]
    OPTIONS: ClassVar[tuple[str, ...]] = ()

    def __init__(self, state: Path, *arguments: str) -> None:
        self.state, self.arguments, self.address = state, arguments, ""
        self.token, self.port = token_hex(8), "0"
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        (self.state / "token").write_text(self.token)
        command = [sys.executable, "-m", self.MODULE, "--state", str(self.state), "--port", self.port]
        command += ["--token-file", str(self.state / "token"), *self.OPTIONS, *self.arguments]
        with (self.state / "server.log").open("a") as errors:
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self._process.stdout is not None
        first_line = self._process.stdout.readline()
        if not first_line:
            self.kill()
        assert first_line, (self.state / "server.log").read_text()
        self.address = first_line.split()[-1]
        self.port = self.address.rpartition(":")[2]

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
