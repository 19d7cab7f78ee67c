"""The directories and files of an instance, all below one directory, `var/`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class InstanceDirectories:
    var: Path

    @property
    def run(self) -> Path:
        """Files that describe the running instance; may be deleted while nothing runs."""
        return self.var / "run"

    @property
    def log(self) -> Path:
        return self.var / "log"

    @property
    def secrets(self) -> Path:
        return self.var / "secrets"

    @property
    def cluster_token(self) -> Path:
        """The token of the bundled cluster; its server and the workers read it."""
        return self.secrets / "cluster"

    @property
    def kubernetes_token(self) -> Path:
        """The administrator's token of the demo's Kubernetes cluster; its server and the kubeconfig contain it."""
        return self.secrets / "kubernetes"

    @property
    def kubeconfig(self) -> Path:
        """How the workers reach the demo's Kubernetes cluster."""
        return self.secrets / "kalos.kubeconfig"

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
        """The home directory of Acme's own processes: caches."""
        return self.var / "work"

    @property
    def static(self) -> Path:
        return self.var / "static"

    @property
    def cluster(self) -> Path:
        """The state of the bundled cluster, and the logs of its jobs."""
        return self.var / "cluster"

    @property
    def pod_logs(self) -> Path:
        """Logs that Acme copies from clusters without a log directory of their own."""
        return self.var / "pod-logs"

    @property
    def cluster_logs(self) -> Path:
        return self.cluster / "logs"

    @property
    def kubernetes(self) -> Path:
        """The state of the demo's Kubernetes cluster, and the logs of its containers."""
        return self.var / "kubernetes"

    @property
    def env(self) -> Path:
        """Addresses and passwords of the running servers, for a `manage.py` in another shell."""
        return self.run / "env"

    @property
    def lock(self) -> Path:
        """Lock file of the one `up` that may start processes here."""
        return self.run / "lock"

    @property
    def alive(self) -> Path:
        """Lock file shared by every process that was started here, until the last one ends (parent_guard --hold)."""
        return self.run / "alive"
