"""A real Kubernetes on this host for tests: a control plane and four nodes whose containers are timers.

The programs that start it are not part of this repository. Tests are skipped where they are missing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from acmeweb.common.env import ROOT
from tests.servers import NO_KUBERNETES

PROGRAMS = (ROOT / "../shared/bin", ROOT / "../../shared/bin")  # the latter for a work tree beside the repository
DEFAULT_HOME = "/var/tmp/acme-k8s"
NODES, GPUS = 4, 8
GRACE_S, TOLERATION_S = 20, 5  # until a silent node is NotReady, and until its pods are evicted; for a busy machine
START_TIMEOUT_S = 240


def programs() -> Path | None:
    """The directory of the programs that start a cluster, if they and what they start are there."""
    built = (Path(os.environ.get("K8S_HOME", DEFAULT_HOME)) / "bin" / ".built").exists()
    return next((path for path in PROGRAMS if built and (path / "k8s_up.sh").exists()), None)


@contextmanager
def started_or_skipped() -> Iterator[RealKubernetes]:
    found = programs()
    if found is None:
        pytest.skip(f"{NO_KUBERNETES} (K8S_HOME, k8s_up.sh)")
    home = Path(tempfile.mkdtemp(prefix="acme-kubernetes-"))
    size = ["-n", str(NODES), "-g", str(GPUS), "-G", str(GRACE_S), "-t", str(TOLERATION_S)]
    try:
        _run(str(found / "k8s_up.sh"), *size, "-d", str(home / "cluster"))
        yield RealKubernetes(home / "cluster")
    finally:
        _run(str(found / "k8s_down.sh"), "-d", str(home / "cluster"))
        shutil.rmtree(home, ignore_errors=True)


def _run(*words: str, text: str | None = None) -> str:
    done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=START_TIMEOUT_S)
    assert done.returncode == 0, f"{words}: {done.stdout[-500:]}{done.stderr[-500:]}"
    return done.stdout


class RealKubernetes:
    def __init__(self, home: Path) -> None:
        self.home, self.kubeconfig = home, home / "kubeconfig"
        self.nodes = tuple(f"node{i}" for i in range(1, NODES + 1))

    def kubectl(self, *words: str, text: str | None = None) -> str:
        return _run("kubectl", "--kubeconfig", str(self.kubeconfig), *words, text=text)

    def create(self, *objects: Mapping[str, Any]) -> None:
        self.kubectl("create", "--validate=false", "-f", "-", text=yaml.safe_dump_all(objects))

    def get(self, *words: str) -> Any:
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def node_pid(self, name: str) -> int:
        return int((self.home / "run" / f"{name}.pid").read_text())

    def restart_node(self, name: str) -> None:
        _run("sh", str(self.home / "run" / f"{name}.sh"))


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
