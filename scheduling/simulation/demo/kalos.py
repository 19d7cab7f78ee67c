"""What is in the demo's Kubernetes cluster beside Acme: namespaces, and the workloads of a team that does not use Acme.

All objects have fixed names, so creating them again changes nothing: the API server answers that they exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from jobs.core.lifecycle import JobKind
from jobs.models import Cluster
from scheduling.simulation import client

NAMESPACE, OTHER_NAMESPACE = "acme-jobs", "speech"
POD_TEMPLATE: dict[str, Any] = {
    "namespace": NAMESPACE,
    "namespaces": {OTHER_NAMESPACE: "observed"},
    "image": "registry.example/llm/train:2.7",
    "allowed_images": ["registry.example/llm/*"],
    "volumes": {
        "checkpoints": {"claim": "checkpoints", "mount_path": "/checkpoints", "always": True},
        "datasets": {"claim": "datasets", "mount_path": "/datasets", "read_only": True},
        "evaluations": {"claim": "evaluations", "mount_path": "/shared/evaluations"},
    },
    "shared_memory": "64Gi",
    "grace_s": 30,
}
# How users and teams of other people's workloads are found
WORKLOAD_OWNERS: dict[str, Any] = {"user_from": ["label:user"], "team_from": ["label:team", "namespace"]}
TRAINING_EVERY = timedelta(hours=1)
TRAINING_NODES, TRAINING_S = 2, 3000.0
SERVICE_GPUS = 2


def container_request(kind: JobKind) -> dict[str, Any]:
    """The image and the mounts of a job, as its user requests them."""
    if kind is JobKind.EVALUATION:
        return {"image": "registry.example/llm/evaluate:1.9", "mounts": ["evaluations"]}
    return {"mounts": ["datasets"]}


def create_other_workloads(cluster: Cluster, now: datetime) -> None:
    """Create what should be there now: a service, and a training that begins every hour. Raises SimulatorError."""
    for path, body in _objects(now):
        client.create_object(cluster, path, body)


def _objects(now: datetime) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in (NAMESPACE, OTHER_NAMESPACE):
        yield "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    service = _metadata("transcribe", "maryam")
    spec = {**_pod_spec("registry.example/speech/serve:0.9", SERVICE_GPUS, {}), "restartPolicy": "Always"}
    pods = f"/api/v1/namespaces/{OTHER_NAMESPACE}/pods"
    yield pods, {"apiVersion": "v1", "kind": "Pod", "metadata": service, "spec": spec}
    yield f"/apis/batch/v1/namespaces/{OTHER_NAMESPACE}/jobs", _training(now)


def _training(now: datetime) -> dict[str, Any]:
    number = int(now.timestamp() // TRAINING_EVERY.total_seconds())
    metadata = _metadata(f"asr-large-{number}", "tomas")
    environment = {"PET_NNODES": str(TRAINING_NODES), "SIM_DURATION_S": str(TRAINING_S), "SIM_END": "COMPLETED"}
    pod = {**_pod_spec("registry.example/speech/train:1.3", 8, environment), "restartPolicy": "Never"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "completions": TRAINING_NODES,
            "parallelism": TRAINING_NODES,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": 3600,
            "template": {"metadata": {"labels": metadata["labels"]}, "spec": pod},
        },
    }


def _metadata(name: str, user: str) -> dict[str, Any]:
    return {"name": name, "namespace": OTHER_NAMESPACE, "labels": {"user": user, "team": OTHER_NAMESPACE}}


def _pod_spec(image: str, gpus: int, environment: dict[str, str]) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": image,
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
    }
    return {"containers": [container]}
