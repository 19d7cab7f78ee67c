"""A simulated Kubernetes cluster of a storm, with a service account for Acme and workloads of somebody else.

Acme gets what `manage.py kubernetes_manifest` says, no more, and a token file that rotates. The workloads of somebody
else are bare pods in a namespace of their own: they must run to their end as if Acme was not there.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any, Self

import httpx
import yaml

from scheduling.backends.kubernetes.ownership import KEY_LABEL
from scheduling.simulation.kubernetes.persistence import ClusterDatabase
from tests.acceptance.instance import Instance
from tests.chaos.clusters.base import StormCluster
from tests.chaos.effects import Effect
from tests.chaos.people import Caller
from tests.chaos.proxy import Proxy
from tests.patience import until
from tests.scheduling.simulation.kubernetes.running import KubernetesProcess

NAMESPACE, TENANTS = "acme-jobs", "tenants"
TOKEN_S = 86_400
GRACE_S = 5  # of the pods of jobs
WORKLOAD_PAUSE_S = 3.0
MOST_WORKLOADS = 6  # at the same time
ENDED_PHASES = ("Succeeded", "Failed")

Object = dict[str, Any]


class KubernetesCluster(StormCluster):
    name = "kalos"

    def __init__(self, home: Path, seed: int, manifest: str) -> None:
        """`manifest` is the YAML with Acme's permissions. `home` has the kubeconfig files and the token."""
        self.access, self._objects = home, [one for one in yaml.safe_load_all(manifest) if one]
        self._process = KubernetesProcess(self.state, "--seed", str(seed), "--name", self.name)
        self._restarting = threading.Lock()
        self._dice = Random(f"kubernetes:{seed}")
        self.disturbed: set[str] = set()  # workloads of somebody else that lost their node
        self.stopped_by_others: set[str] = set()
        self.out_of_sight: set[str] = set()
        self._process.start()
        self.proxy = Proxy(self._process.address, seed=seed)
        self._grant()

    @classmethod
    def start(cls, instance: Instance, seed: int, home: Path) -> Self:
        return cls(home, seed, instance.command("kubernetes_manifest", "--mode", "drive"))

    @property
    def state(self) -> Path:
        return self.access.parent / self.name

    def join(self, instance: Instance, caller: Caller, over: threading.Event, *, direct: bool) -> None:
        config = write_kubeconfig(self.access, self._process.address if direct else self.proxy.address)
        row = {
            "name": self.name,
            "address": f"kubernetes://{config}",
            "mode": "drive",
            "pod_template": {"image": "registry.example/train:1", "grace_s": GRACE_S},
            "max_exempt_minutes": 60,
            "checkpoint_clause": "optional",
            "min_preemptions_per_day": 1,
        }
        answer = caller.ask("clusters/", row, key=f"add-{self.name}-{instance.port}", over=over)
        if answer is not None:  # otherwise the storm ended first
            assert answer[1].is_success, answer[1].text

    def kill(self, dice: Random) -> bool:
        with self._restarting:
            self._process.kill()
            self._process.start()
        return True

    # Permissions and tokens

    def _grant(self) -> None:
        for namespace in (NAMESPACE, TENANTS):
            self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        for one in self._objects:
            self.create(one)
        self.write_new_token()

    def write_new_token(self) -> bool:
        """Replace the token atomically, as the kubelet does with projected tokens, once the server issues one."""
        fresh = self.access / "token.new"
        fresh.write_text(until(self._new_token, what="the API server issues no token"))
        fresh.chmod(0o644)
        fresh.rename(self.access / "token")
        return True

    def _new_token(self) -> str:
        path = f"{_path(self._account())}/{self._account()['metadata']['name']}/token"
        answer = self._call("POST", path, {"spec": {"expirationSeconds": TOKEN_S}})
        return str(answer["status"]["token"]) if answer else ""

    def revoke_tokens(self) -> bool:
        """Replace the service account: tokens of the old one are refused from now on."""
        account = self._account()
        if self._call("DELETE", f"{_path(account)}/{account['metadata']['name']}") is None:
            return False
        return until(lambda: self.create(account), what="the service account cannot be created")

    def _account(self) -> Object:
        return next(one for one in self._objects if one["kind"] == "ServiceAccount")

    # What somebody else does with the cluster

    def our_pods(self) -> list[Object]:
        """Pods of Acme's attempts that have not ended."""
        answer = self._call("GET", "/api/v1/pods", labelSelector=KEY_LABEL)
        pods = answer["items"] if answer else []
        return [pod for pod in pods if pod.get("status", {}).get("phase") not in ENDED_PHASES]

    def delete_pod(self, pod: Object, *, grace_s: int) -> bool:
        return self._disturb(pod, "DELETE", "", {"gracePeriodSeconds": grace_s})

    def evict_pod(self, pod: Object) -> bool:
        return self._disturb(pod, "POST", "/eviction", _eviction(pod))

    def _disturb(self, pod: Object, method: str, subresource: str, body: Object) -> bool:
        self.stopped_by_others.add(pod["metadata"]["labels"][KEY_LABEL])
        return self._call(method, f"{_pod_path(pod)}{subresource}", body) is not None

    def compact(self) -> bool:
        return self._call("POST", "/compact") is not None

    def nodes(self) -> list[str]:
        answer = self._call("GET", "/api/v1/nodes")
        return sorted(node["metadata"]["name"] for node in answer["items"]) if answer else []

    def delete_node(self, node: str) -> bool:
        """Delete the object of a node. Its pods are removed, and its kubelet does not come back by itself. A
        program that ends before its kubelet learns this has nobody to report its exit code to."""
        self._note_pods_on(node)
        self.out_of_sight |= self._attempts_on(node)
        return self._call("DELETE", f"/api/v1/nodes/{node}") is not None

    def lose_machine(self, node: str) -> bool:
        self._note_pods_on(node)
        return self._set_machine(node, "power-off")

    def silence(self, node: str) -> bool:
        """Stop the kubelet of a node. Its containers go on, and nobody can see or stop them."""
        silenced = self._set_machine(node, "stop-kubelet")
        self._note_pods_on(node)  # none is placed there any more
        self.out_of_sight |= self._attempts_on(node)
        return silenced

    def _attempts_on(self, node: str) -> set[str]:
        labels = [pod["metadata"].get("labels", {}) for pod in self._pods_on(node)]
        return {one[KEY_LABEL] for one in labels if KEY_LABEL in one}

    def _pods_on(self, node: str) -> list[Object]:
        answer = self._call("GET", "/api/v1/pods", fieldSelector=f"spec.nodeName={node}")
        return answer["items"] if answer else []

    def _set_machine(self, node: str, action: str) -> bool:
        return self._call("POST", f"/machines/{node}", {"action": action}) is not None

    def repair(self, node: str) -> None:
        """Start the machine and restart its kubelet, which registers the node if there is none."""
        actions = ("stop-kubelet", "repair")
        until(
            lambda: all(self._set_machine(node, action) for action in actions),
            what=f"the kubelet of {node} does not start",
        )

    def _note_pods_on(self, node: str) -> None:
        self.stopped_by_others |= self._attempts_on(node)
        theirs = [pod for pod in self._pods_on(node) if pod["metadata"]["namespace"] == TENANTS]
        self.disturbed |= {pod["metadata"]["name"] for pod in theirs}

    # Workloads of somebody else

    def act_until(self, over: threading.Event) -> None:
        """Create bare pods with GPUs, which the scheduler of the cluster places on nodes."""
        number = 0
        while not over.wait(WORKLOAD_PAUSE_S):
            answer = self._call("GET", f"/api/v1/namespaces/{TENANTS}/pods")
            pods = answer["items"] if answer else None
            if pods is not None and sum(_is_active(pod) for pod in pods) < MOST_WORKLOADS:
                number += 1
                self.create(_workload(number, self._dice))

    def violations(self) -> Iterable[str]:
        """(17) Workloads of somebody else end by themselves. (18) Nothing of Acme's jobs is left on the cluster."""
        yield from stopped_workloads(self.effects(), self.disturbed)
        yield from self._left_pods()

    def _left_pods(self) -> Iterable[str]:
        with closing(ClusterDatabase(self.state / "cluster.sqlite3")) as database:
            snapshot = database.load()
        objects = snapshot.objects if snapshot else ()
        yield from left_pods(body for key, body in objects if key.resource == "pods")

    # Requests of the administrator

    def create(self, one: Object) -> bool:
        return self._call("POST", _path(one), one) is not None

    def asked_as_acme(self, path: str) -> httpx.Response:
        """The response to a request with Acme's present token, through the proxy."""
        headers = {"Authorization": f"Bearer {(self.access / 'token').read_text()}"}
        return httpx.get(f"{self.proxy.address}{path}", headers=headers, timeout=10, trust_env=False)

    def _call(self, method: str, path: str, body: Object | None = None, **query: str) -> Any:
        """None if the server is down or refuses."""
        headers = {"Authorization": f"Bearer {self._process.token}"}
        address = f"{self._process.address}{path}"
        with suppress(httpx.HTTPError):
            answer = httpx.request(
                method, address, json=body, params=query, headers=headers, timeout=10, trust_env=False
            )
            return answer.json() if answer.is_success else None
        return None

    def close(self) -> None:
        super().close()
        with self._restarting:
            self._process.kill()


def stopped_workloads(effects: Iterable[Effect], disturbed: Iterable[str]) -> Iterable[str]:
    """Workloads of somebody else that did not end by themselves, although the storm did not stop them either."""
    spared = set(disturbed)
    for effect in effects:
        namespace, _, name = effect.key.partition("/")
        name = name.partition(":")[0]
        if namespace == TENANTS and effect.event == "end" and not effect.succeeded and name not in spared:
            yield f"the workload {name} of somebody else was stopped ({effect.exit_code or effect.signal})"


def left_pods(pods: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """Pods of attempts that still wait or run although all jobs have ended."""
    for pod in pods:
        key = pod["metadata"].get("labels", {}).get(KEY_LABEL, "")
        phase = pod.get("status", {}).get("phase", "Pending")
        if key and phase not in ENDED_PHASES:
            yield f"pod {pod['metadata']['name']} of attempt {key} is still {phase}"


def _is_active(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") not in ENDED_PHASES


def _path(one: Object) -> str:
    """The path of the collection that an object belongs to."""
    version, metadata = one["apiVersion"], one["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    scope = f"/namespaces/{metadata['namespace']}" if metadata.get("namespace") else ""
    return f"{root}{scope}/{one['kind'].lower()}s"


def _pod_path(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _eviction(pod: Object) -> Object:
    names = {name: pod["metadata"][name] for name in ("name", "namespace")}
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": names}


def _workload(number: int, dice: Random) -> Object:
    environment = {"SIM_DURATION_S": f"{dice.uniform(5, 40):.1f}", "SIM_END": "COMPLETED"}
    container = {
        "name": "main",
        "image": "registry.example/service:1",
        "resources": {"limits": {"nvidia.com/gpu": str(dice.choice((1, 2, 8)))}},
        "env": [{"name": name, "value": value} for name, value in environment.items()],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"service-{number}", "namespace": TENANTS},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }


def write_kubeconfig(directory: Path, server: str) -> Path:
    """Write a kubeconfig for the server, with the token beside it."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "storm",
        "contexts": [{"name": "storm", "context": {"cluster": "storm", "user": "acme"}}],
        "clusters": [{"name": "storm", "cluster": {"server": server}}],
        "users": [{"name": "acme", "user": {"tokenFile": "token"}}],
    }
    path = directory / f"{server.rpartition(':')[2]}.kubeconfig"
    path.write_text(json.dumps(config))
    return path
