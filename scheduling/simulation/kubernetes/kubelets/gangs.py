"""Which pods run one program together, and how that program is described to the executor. Pure.

Pods of one controller whose environment names more than one node are a gang: their program begins when the containers
of all of them run, and it ends for all of them. Every other pod runs alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduling.simulation.kubernetes.objects import JsonObject, annotations_of, controller_of, labels_of, value_at
from scheduling.simulation.kubernetes.values import GPU_RESOURCE, PodRuntime
from scheduling.simulation.machines.values import SimulatedJob, SimulatedJobRequest

# Variables with the number of nodes of a distributed program, as launchers define them
NODE_COUNT_VARIABLES = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES", "PET_NNODES", "NNODES")
KEY_NAMES = ("acme/attempt", "acme/key", "acme.attempt", "acme-attempt")  # where a client names its attempt
INSTALLATION = "acme/installation"
MAX_GANG = 10_000
SLEEP = re.compile(r"\bsleep (\d{1,9})\b")
KEYED_FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")
REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][\w.-]*)\)")


@dataclass(frozen=True, kw_only=True)
class Gang:
    key: str
    size: int


def gang_of_one(pod: JsonObject) -> Gang:
    """Every pod for itself: real processes find each other, or do not."""
    return Gang(key=str(pod["metadata"]["uid"]), size=1)


def gang_of(pod: JsonObject) -> Gang:
    """The gang of a pod. One that runs alone is a gang of its own."""
    uid = str(pod["metadata"]["uid"])
    owner = controller_of(pod)
    size = node_count(environment_of(pod))
    if size <= 1:
        return Gang(key=uid, size=1)
    if owner is not None:
        return Gang(key=str(owner.get("uid")), size=size)
    key = attempt_key(pod)
    return Gang(key=f"key:{key}", size=size) if key else Gang(key=uid, size=1)


def node_count(environment: Mapping[str, str]) -> int:
    for name in NODE_COUNT_VARIABLES:
        text = environment.get(name, "")
        if text.isascii() and text.isdigit() and 0 < int(text[:6]) <= MAX_GANG:
            return int(text[:6])
    return 1


def attempt_key(pod: JsonObject) -> str:
    """The client's key of an attempt, from an annotation or a label: `INSTALLATION:JOB.NUMBER`, as on Slurm."""
    found = {**labels_of(pod), **annotations_of(pod)}
    key = next((found[name] for name in KEY_NAMES if found.get(name)), "")
    installation = found.get(INSTALLATION, "")
    return f"{installation}:{key}" if key and installation and ":" not in key else key


def main_container(pod: JsonObject) -> JsonObject:
    """The container that runs the program: the first one with GPUs, otherwise the first one."""
    containers: list[JsonObject] = pod["spec"]["containers"]
    with_gpus = (one for one in containers if value_at(one, "resources", "limits", GPU_RESOURCE))
    return next(with_gpus, containers[0])


def pre_stop_s(pod: JsonObject) -> float:
    """How long the hook before TERM takes: `sleep`, the only one that a simulated container can have."""
    hook = value_at(main_container(pod), "lifecycle", "preStop", default={})
    words = value_at(hook, "exec", "command", default=[])
    found = SLEEP.search(" ".join(map(str, words))) if isinstance(words, list) else None
    seconds = value_at(hook, "sleep", "seconds", default=float(found[1]) if found else 0)
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else 0.0


def environment_of(pod: JsonObject) -> dict[str, str]:
    """The variables of the main container, as its kubelet sets them: plain values, and fields of the pod."""
    found: dict[str, str] = {}
    for one in main_container(pod).get("env") or []:
        path = value_at(one, "valueFrom", "fieldRef", "fieldPath")
        if path is not None:
            found[str(one["name"])] = field_text(pod, str(path))
        elif "valueFrom" not in one:
            found[str(one["name"])] = expand_references(str(one.get("value") or ""), found)
    return found


def field_text(pod: JsonObject, path: str) -> str:
    """The field of a pod that a container may refer to, such as `spec.nodeName` or `metadata.labels['team']`."""
    if keyed := KEYED_FIELD.fullmatch(path):
        return str(value_at(pod, "metadata", keyed[1], keyed[2], default=""))
    return str(value_at(pod, *path.split("."), default=""))


def expand_references(text: str, variables: Mapping[str, str]) -> str:
    """The text with `$(NAME)` replaced by the variable if there is one, and `$$` by `$`, as kubelets do."""
    return REFERENCE.sub(lambda found: _expanded(found, variables), text)


def _expanded(found: re.Match[str], variables: Mapping[str, str]) -> str:
    return "$" if found[0] == "$$" else variables.get(found[1], found[0])


def rank_of(pod: JsonObject) -> tuple[int, str]:
    """The order of the pods of a gang: their completion index, then their name."""
    index = environment_of(pod).get("JOB_COMPLETION_INDEX", "")
    return (int(index) if index.isdigit() else 0, str(pod["metadata"]["name"]))


def execution_job(
    number: int, pods: Sequence[tuple[JsonObject, PodRuntime]], plan: Mapping[str, str], now: float
) -> SimulatedJob:
    """The program of these pods for the executor. Variables of the pods take precedence over those of the plan."""
    first, runtime = pods[0]
    environment = {**_endless_service(first), **plan, **environment_of(first)}
    gpus = {one.node: one.gpus for _, one in pods}
    request = SimulatedJobRequest(
        name=_program_name(first),
        user="",
        comment=_comment(first, runtime),
        environment=environment,
        node_count=len(pods),
        gpus_per_node=max(map(len, gpus.values()), default=0),
        cpus_per_node=0,  # a container shares the CPUs of its machine
    )
    return SimulatedJob(
        id=number,
        request=request,
        submitted_at=now,
        nodes=tuple(one.node for _, one in pods),
        gpus=gpus,
        started_at=now,
        began_at=now,
    )


def _comment(pod: JsonObject, runtime: PodRuntime) -> str:
    """What the course of the program is drawn from: its attempt, otherwise its pod and restart."""
    key = attempt_key(pod)
    name = f"{runtime.namespace}/{runtime.name}"
    return f"acme:{key}" if key else f"{name}:{runtime.restarts}"


def _program_name(pod: JsonObject) -> str:
    owner = controller_of(pod)
    return str(owner["name"] if owner else pod["metadata"]["name"])


def _endless_service(pod: JsonObject) -> dict[str, str]:
    """Pods that are always restarted are services: they end only if their environment says so."""
    return {"SIM_END": "TIMEOUT"} if pod["spec"].get("restartPolicy") == "Always" else {}
