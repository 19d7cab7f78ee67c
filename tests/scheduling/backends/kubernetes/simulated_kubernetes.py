"""A simulated Kubernetes cluster for tests of the backend, with a namespace for the jobs of Acme."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scheduling.backends.base import Backend
from scheduling.backends.opening import open_backend
from tests.scheduling.simulation.kubernetes.running import KubernetesProcess

NAMESPACE = "acme-jobs"
TEMPLATE = {"namespace": NAMESPACE, "image": "registry.example/train:1"}


def read_file(path: str) -> str:
    return Path(path).read_text()


def open_kubernetes(kubeconfig: Path, *, template: Any = None, **options: Any) -> Backend:
    return open_backend(f"kubernetes://{kubeconfig}", read_file=read_file, pod_template=template or TEMPLATE, **options)


def write_kubeconfig(path: Path, server: str, user: dict[str, str], authority: str = "") -> Path:
    cluster = {"server": server, **({"certificate-authority-data": authority} if authority else {})}
    config = {
        "kind": "Config",
        "current-context": "acme",
        "contexts": [{"name": "acme", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(json.dumps(config))
    return path


def prepare(cluster: KubernetesProcess, **labels: str) -> Path:
    """Create the namespace. Return a kubeconfig of the administrator."""
    names = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
    cluster.call("POST", "/api/v1/namespaces", names)
    return write_kubeconfig(cluster.state / "acme.kubeconfig", cluster.address, {"token": cluster.token})
