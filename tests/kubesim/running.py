"""A simulated Kubernetes cluster as a real process on a free port, which tests can kill and restart."""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import httpx

from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
FAST = ("--lease-s", "0.5", "--node-grace-s", "3", "--node-check-s", "0.2", "--container-start-s", "0.2")


class KubernetesProcess:
    """`with` starts the server; `kill` and `start` keep its state directory, its port and its token."""

    def __init__(self, state: Path, *arguments: str) -> None:
        self.state, self.arguments, self.address = state, arguments, ""
        self.token, self.port = token_hex(8), "0"
        self._process: subprocess.Popen[str] | None = None
        self._client: httpx.Client | None = None

    def __enter__(self) -> KubernetesProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()
        self.end(signal.SIGTERM)

    def start(self) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        (self.state / "token").write_text(self.token)
        command = [sys.executable, "-m", "scheduling.kubesim.server", "--state", str(self.state), "--port", self.port]
        command += ["--token-file", str(self.state / "token"), *FAST, *self.arguments]
        with (self.state / "server.log").open("a") as errors:
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self._process.stdout is not None
        first_line = self._process.stdout.readline()
        if not first_line:
            self.end(signal.SIGKILL)
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

    # Requests

    @property
    def client(self) -> httpx.Client:
        """Requests of the administrator."""
        if self._client is None:
            authority = self.state / "pki" / "ca.crt"
            verify = ssl.create_default_context(cafile=str(authority)) if authority.exists() else True
            headers = {"Authorization": f"Bearer {self.token}"}
            self._client = httpx.Client(base_url=self.address, headers=headers, timeout=PATIENCE_S, verify=verify)
        return self._client

    def call(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        response = self.client.request(method, path, json=body, params=query)
        response.raise_for_status()
        return response.json()

    def get_or_none(self, path: str) -> Any:
        response = self.client.get(path)
        return None if response.status_code == 404 else response.raise_for_status().json()

    def watch(self, path: str, **query: str) -> Iterator[dict]:
        """The events of a watch until it ends."""
        with self.client.stream("GET", path, params={"watch": "1", **query}) as response:
            response.raise_for_status()
            for line in response.iter_lines():
                yield json.loads(line)


def kubectl() -> str | None:
    """The real kubectl: the one on the path, or that of a Kubernetes on this host."""
    home = os.environ.get("K8S_HOME")
    return shutil.which("kubectl") or (shutil.which("kubectl", path=f"{home}/bin") if home else None)
