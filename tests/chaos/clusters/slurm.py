"""The bundled Slurm cluster of an instance. Its server is a program of the instance, which restarts it."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Self

import httpx

from tests.acceptance.instance import Instance
from tests.chaos.clusters.base import StormCluster
from tests.chaos.people import Caller
from tests.chaos.proxy import Proxy

PROGRAM = "cluster"


class SlurmCluster(StormCluster):
    name = "seren"

    def __init__(self, instance: Instance, seed: int) -> None:
        self._instance = instance
        self.proxy = Proxy(instance.cluster_url(), seed=seed)

    @classmethod
    def start(cls, instance: Instance, seed: int, home: Path) -> Self:
        return cls(instance, seed)

    @property
    def state(self) -> Path:
        return self._instance.place.var / "cluster"

    def join(self, instance: Instance, caller: Caller, over: threading.Event, *, direct: bool) -> None:
        words = ["--address", self._instance.cluster_url() if direct else self.proxy.address]
        if instance is not self._instance:
            words += [
                "--token-file",
                str(self._instance.place.cluster_token),
                "--log-root",
                str(self._instance.place.cluster_logs),
            ]
        instance.command("seed_demo", *words)
        if instance is not self._instance:
            instance.halt(PROGRAM)

    def kill(self, dice: Random) -> bool:
        pids = [pid for name, pid in self._instance.pids().items() if name == PROGRAM]
        with suppress(ProcessLookupError):
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            return bool(pids)
        return False

    def set_clock(self, offset_s: int) -> bool:
        """Offset its wall clock. False if the server does not respond."""
        token = {"X-SLURM-USER-TOKEN": self._instance.place.cluster_token.read_text().strip()}
        with suppress(httpx.HTTPError):
            address, body = f"{self._instance.cluster_url()}/clock", {"offset_s": offset_s}
            return httpx.post(address, json=body, headers=token, timeout=5, trust_env=False).is_success
        return False
