"""A cluster server as a real process on a free port, which tests can kill and restart."""

from __future__ import annotations

from pathlib import Path

from scheduling.backends.base import Backend
from scheduling.backends.opening import open_backend
from scheduling.simulation.machines.execution import stepd
from tests.simulator_process import SimulatorProcess


def is_alive(pid: int) -> bool:
    try:
        return stepd.stat_fields(pid)[0] != "Z"
    except OSError:
        return False


class ClusterProcess(SimulatorProcess):
    """A simulated Slurm cluster."""

    MODULE = "scheduling.simulation.slurm.server"
    OPTIONS = ("--configure-s", "0.1")

    def __init__(self, state: Path, *arguments: str) -> None:
        super().__init__(state, *arguments)
        self._backends: list[Backend] = []

    def __exit__(self, *_: object) -> None:
        for backend in self._backends:
            backend.close()
        super().__exit__()

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
