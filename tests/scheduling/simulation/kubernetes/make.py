"""Small clusters with defaults: "kalos" has four nodes with eight GPUs each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduling.simulation.kubernetes.api.authorization import ADMIN
from scheduling.simulation.kubernetes.api.errors import ApiError
from scheduling.simulation.kubernetes.api.requests import ApiRequest, parse_request
from scheduling.simulation.kubernetes.cluster import KubernetesCluster
from scheduling.simulation.kubernetes.objects import JsonObject, ObjectKey
from scheduling.simulation.kubernetes.values import ClusterSnapshot, ClusterTiming, Machine
from scheduling.simulation.machines.scripts.play import SimulatedExecutor
from scheduling.simulation.machines.values import build_nodes

NOW = 1_800_000_000.0
NODES = tuple(f"kalos-00{i}" for i in range(1, 5))


def snapshot(
    names: tuple[str, ...] = NODES, gpus: int = 8, mig_slices: Mapping[str, int] | None = None
) -> ClusterSnapshot:
    nodes = build_nodes(names, gpus=gpus, gpu_model="a100", now=NOW)
    return ClusterSnapshot(machines=tuple(Machine(node=node, mig_slices=mig_slices or {}) for node in nodes))


class Client:
    """Calls a cluster as a client does, without a network. Time moves with `after`."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        self.cluster, self.now, self.user = cluster, NOW, ADMIN

    def call(self, method: str, path: str, body: Any = None, *, patch_type: str = "", **query: str):
        """The body of the answer. Raises ApiError."""
        request = parse_request(method, path, query, self.cluster.api)
        request = ApiRequest(**{**vars(request), "body": body, "patch_type": patch_type, "user": self.user})
        answer = self.cluster.answer(request, self.now)
        return answer.body if answer.body is not None else json_of(answer.text)

    def refusal(self, method: str, path: str, body: Any = None, **more: str) -> ApiError:
        try:
            found = self.call(method, path, body, **more)
        except ApiError as error:
            return error
        raise AssertionError(f"not refused: {found}")

    def after(self, seconds: float) -> Client:
        self.now += seconds
        self.cluster.advance_to(self.now)
        return self

    def create_pod(self, name: str = "train", **more: Any) -> JsonObject:
        return self.call("POST", "/api/v1/namespaces/default/pods", pod(name, **more))

    def pod(self, name: str = "train") -> JsonObject | None:
        return self.cluster.store.get(ObjectKey("pods", "default", name))

    def pods(self) -> list[JsonObject]:
        return [found.object for found in self.cluster.store.objects("pods", "default")]

    def job(self, name: str = "sweep") -> JsonObject | None:
        return self.cluster.store.get(ObjectKey("jobs.batch", "default", name))

    def events(self) -> list[tuple[str, str]]:
        found = [one.object for one in self.cluster.store.objects("events", "default")]
        return [(one["reason"], one["message"]) for one in found]


def json_of(text: bytes) -> JsonObject:
    import json

    return json.loads(text)


def client(**more: Any) -> Client:
    timing = ClusterTiming(**more.pop("timing", {}))
    executor = more.pop("executor", None) or SimulatedExecutor()
    cluster = KubernetesCluster(more.pop("snapshot", snapshot()), executor, NOW, timing=timing, **more)
    cluster.begin(NOW)
    return Client(cluster).after(0)


def container(gpus: int = 8, seconds: float = 100.0, end: str = "COMPLETED", **more: Any) -> JsonObject:
    environment = {"SIM_DURATION_S": str(seconds), "SIM_END": end, "ACME_KIND": "pretrain", **more.pop("env", {})}
    return {
        "name": "main",
        "image": "registry.example/train:1",
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {},
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        **more,
    }


def pod(
    name: str = "train",
    *,
    node: str = "",
    gpus: int = 8,
    seconds: float = 100.0,
    end: str = "COMPLETED",
    env: dict[str, str] | None = None,
    metadata: JsonObject | None = None,
    image: str = "registry.example/train:1",
    **spec: Any,
) -> JsonObject:
    placed = {"nodeName": node} if node else {}
    main = container(gpus, seconds, end, env=env or {}, image=image)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **(metadata or {})},
        "spec": {"restartPolicy": "Never", **placed, "containers": [main], **spec},
    }


def job(
    name: str = "sweep",
    *,
    template: JsonObject | None = None,
    gpus: int = 8,
    seconds: float = 100.0,
    end: str = "COMPLETED",
    env: dict[str, str] | None = None,
    pod_spec: JsonObject | None = None,
    **spec: Any,
) -> JsonObject:
    main = container(gpus, seconds, end, env=env or {})
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "template": {"spec": {"restartPolicy": "Never", "containers": [main], **(pod_spec or {})}},
            **spec,
        },
    }
