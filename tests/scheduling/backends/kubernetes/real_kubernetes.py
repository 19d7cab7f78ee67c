"""A real Kubernetes on this host for tests of the backend: four nodes whose containers are timers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from jobs.core.gpu_shares import MIG_RESOURCE_PREFIX
from tests import real_kubernetes
from tests.patience import until
from tests.real_kubernetes import run_program

NODES, GPUS = 4, 8
GRACE_S, TOLERATION_S = 20, 5  # until a silent node is NotReady, and until its pods are evicted; for a busy machine


@contextmanager
def started_or_skipped() -> Iterator[RealKubernetes]:
    home = Path(tempfile.mkdtemp(prefix="acme-kubernetes-"))
    options = ("-n", str(NODES), "-g", str(GPUS), "-G", str(GRACE_S), "-t", str(TOLERATION_S))
    try:
        with real_kubernetes.started_or_skipped(home / "cluster", *options):
            cluster = RealKubernetes(home / "cluster")
            yield cluster
        cluster.reap()
    finally:
        shutil.rmtree(home, ignore_errors=True)


class RealKubernetes:
    def __init__(self, home: Path) -> None:
        self.home, self.kubeconfig = home, home / "kubeconfig"
        self.nodes = tuple(f"node{i}" for i in range(1, NODES + 1))
        self._api_server_pid = home / "run" / "kube-apiserver.pid"
        self._api_server: list[str] = []
        self._started: list[subprocess.Popen[bytes]] = []

    def kubectl(self, *words: str, text: str | None = None) -> str:
        return run_program("kubectl", "--kubeconfig", str(self.kubeconfig), *words, text=text)

    def create(self, *objects: Mapping[str, Any]) -> None:
        self.kubectl("create", "--validate=false", "-f", "-", text=yaml.safe_dump_all(objects))

    def get(self, *words: str) -> Any:
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def offer_slices(self, node: str, slices: Mapping[str, int]) -> None:
        """Let the node offer MIG slices, as extended resources that no device plugin stands behind."""
        amounts = {f"{MIG_RESOURCE_PREFIX}{profile}": str(count) for profile, count in slices.items()}
        patch = json.dumps({"status": {"capacity": amounts, "allocatable": amounts}})
        self.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", patch)
        names = amounts.keys()
        until(lambda: names <= self.get("node", node)["status"]["allocatable"].keys(), what="the slices")

    def node_pid(self, name: str) -> int:
        return int((self.home / "run" / f"{name}.pid").read_text())

    def kill_api_server(self) -> None:
        pid = int(self._api_server_pid.read_text())
        self._api_server = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
        os.kill(pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid), what="the API server is gone")

    def start_api_server(self) -> None:
        with (self.home / "log" / "kube-apiserver-again.log").open("a") as log:
            started = subprocess.Popen(
                self._api_server,
                cwd=self.home,  # its arguments have relative paths
                env=os.environ | {"K8S_LAB_DIR": str(self.home)},  # by which `k8s_down.sh` recognizes it
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._api_server_pid.write_text(str(started.pid))
        self._started.append(started)
        until(self._answers, what="the API server is back")

    def _answers(self) -> bool:
        words = ("kubectl", "--kubeconfig", str(self.kubeconfig), "get", "--raw", "/readyz")
        return subprocess.run(words, capture_output=True, check=False).returncode == 0

    def reap(self) -> None:
        """Wait for the API servers that this process started, after the cluster was stopped."""
        for started in self._started:
            started.wait(timeout=60)

    def restart_node(self, name: str) -> None:
        run_program("sh", str(self.home / "run" / f"{name}.sh"))


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def pod_spec(gpus: int, node: str = "") -> dict[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": gpus}} if gpus else {}
    containers = [{"name": "main", "image": "example/train:1", "resources": resources}]
    return {"restartPolicy": "Never", "containers": containers, **({"nodeName": node} if node else {})}


def pod(name: str, *, gpus: int = 2, node: str = "", annotations: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A pod that runs for ever; with annotations such as k8s-lab/seconds it ends."""
    metadata = {"name": name, "annotations": dict(annotations or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec(gpus, node)}


def job(name: str, *, pods: int = 2, gpus: int = 8, annotations: Mapping[str, str] | None = None) -> dict[str, Any]:
    template = {"metadata": {"annotations": dict(annotations or {})}, "spec": pod_spec(gpus)}
    spec = {"parallelism": pods, "completions": pods, "backoffLimit": 0, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
