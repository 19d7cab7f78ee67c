"""Where an instance keeps what: one directory, `var/`, and a name for everything in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class InstanceDirectories:
    var: Path

    @property
    def run(self) -> Path:
        """What describes the running instance; may be deleted while nothing runs."""
        return self.var / "run"

    @property
    def log(self) -> Path:
        return self.var / "log"

    @property
    def secrets(self) -> Path:
        return self.var / "secrets"

    @property
    def cluster_token(self) -> Path:
        """What opens the cluster that comes along; its server and the workers read it."""
        return self.secrets / "cluster"

    @property
    def postgres(self) -> Path:
        return self.var / "postgres"

    @property
    def valkey(self) -> Path:
        return self.var / "valkey"

    @property
    def valkey_conf(self) -> Path:
        return self.run / "valkey.conf"

    @property
    def work(self) -> Path:
        """The home of Acme's own processes: caches, and the time table of beat."""
        return self.var / "work"

    @property
    def static(self) -> Path:
        return self.var / "static"

    @property
    def cluster(self) -> Path:
        """The state of the cluster that comes along, and the logs of its jobs."""
        return self.var / "cluster"

    @property
    def cluster_logs(self) -> Path:
        return self.cluster / "logs"

    @property
    def env(self) -> Path:
        """Addresses and passwords of the running servers, for a `manage.py` in another shell."""
        return self.run / "env"

    @property
    def lock(self) -> Path:
        """Held by the one `up` that may start things here."""
        return self.run / "lock"

    @property
    def alive(self) -> Path:
        """Shared by every process that was started here, until the last is gone (leash --hold)."""
        return self.run / "alive"
