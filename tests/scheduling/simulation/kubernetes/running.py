"""A simulated Kubernetes cluster as a real process on a free port, which tests can kill and restart."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.patience import PATIENCE_S
from tests.simulator_process import SimulatorProcess


class KubernetesProcess(SimulatorProcess):
    """A simulated Kubernetes cluster."""

    MODULE = "scheduling.simulation.kubernetes.server"
    OPTIONS = ("--lease-s", "0.5", "--node-grace-s", "3", "--node-check-s", "0.2", "--container-start-s", "0.2")

    def __init__(self, state: Path, *arguments: str) -> None:
        super().__init__(state, *arguments)
        self._client: httpx.Client | None = None

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()
        super().__exit__()

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
