"""A real Kubernetes on this host for tests of the backend: four nodes whose containers are timers."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests import real_kubernetes
from tests.real_kubernetes import run_program

NODES, GPUS = 4, 8
GRACE_S, TOLERATION_S = 20, 5  # until a silent node is NotReady, and until its pods are evicted; for a busy machine


@contextmanager
def started_or_skipped() -> Iterator[RealKubernetes]:
    home = Path(tempfile.mkdtemp(prefix="acme-kubernetes-"))
    options = ("-n", str(NODES), "-g", str(GPUS), "-G", str(GRACE_S), "-t", str(TOLERATION_S))
    try:
        with real_kubernetes.started_or_skipped(home / "cluster", *options):
            yield RealKubernetes(home / "cluster")
    finally:
        shutil.rmtree(home, ignore_errors=True)


class RealKubernetes:
    def __init__(self, home: Path) -> None:
        self.home, self.kubeconfig = home, home / "kubeconfig"
        self.nodes = tuple(f"node{i}" for i in range(1, NODES + 1))

    def kubectl(self, *words: str, text: str | None = None) -> str:
        return run_program("kubectl", "--kubeconfig", str(self.kubeconfig), *words, text=text)

    def create(self, *objects: Mapping[str, Any]) -> None:
        self.kubectl("create", "--validate=false", "-f", "-", text=yaml.safe_dump_all(objects))

    def get(self, *words: str) -> Any:
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def node_pid(self, name: str) -> int:
        return int((self.home / "run" / f"{name}.pid").read_text())

    def restart_node(self, name: str) -> None:
        run_program("sh", str(self.home / "run" / f"{name}.sh"))


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
