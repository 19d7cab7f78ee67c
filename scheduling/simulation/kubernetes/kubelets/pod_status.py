"""The status of a pod, computed from its kubelet's knowledge. Pure."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from scheduling.simulation.kubernetes.objects import JsonObject, condition_of, timestamp, value_at, with_condition
from scheduling.simulation.kubernetes.values import ContainerEnd, PodRuntime, PodStep

REJECTED_PREFIX = "Pod was rejected: "


def pod_status(pod: JsonObject, runtime: PodRuntime, now: float, host_ip: str) -> JsonObject:
    """All fields of the status that a kubelet writes; None removes one."""
    phase = pod_phase(pod, runtime)
    if runtime.step == PodStep.REJECTED:
        started = timestamp(runtime.created_at)
        return {"phase": phase, "reason": runtime.reason, "message": runtime.message, "startTime": started}
    statuses = [_container_status(container, pod, runtime) for container in pod["spec"]["containers"]]
    return {
        "phase": phase,
        "reason": runtime.reason or None,
        "message": runtime.message or None,
        "conditions": _conditions(pod, runtime, phase, now),
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "startTime": timestamp(runtime.created_at),
        "containerStatuses": statuses,
        **_addresses(runtime),
    }


def pod_phase(pod: JsonObject, runtime: PodRuntime) -> str:
    if runtime.step == PodStep.REJECTED:
        return "Failed"
    if runtime.step == PodStep.ENDED:
        ended_well = runtime.end is not None and runtime.end.code == 0 and not runtime.reason
        return "Succeeded" if ended_well else "Failed"
    return "Running" if runtime.started_at else "Pending"


def _addresses(runtime: PodRuntime) -> JsonObject:
    if not runtime.started_at:
        return {}
    ip = pod_ip(runtime.uid)
    return {"podIP": ip, "podIPs": [{"ip": ip}]}


def pod_ip(uid: str) -> str:
    digest = blake2b(uid.encode(), digest_size=3).digest()
    return f"10.{digest[0]}.{digest[1]}.{max(digest[2] % 255, 1)}"


def container_id(uid: str, name: str, restarts: int) -> str:
    return "containerd://" + blake2b(f"{uid}:{name}:{restarts}".encode(), digest_size=32).hexdigest()


def _conditions(pod: JsonObject, runtime: PodRuntime, phase: str, now: float) -> list[JsonObject]:
    ready = runtime.step == PodStep.RUNNING
    conditions = value_at(pod, "status", "conditions", default=[])
    conditions = with_condition(conditions, "PodReadyToStartContainers", _flag(runtime.step == PodStep.RUNNING), now)
    conditions = with_condition(conditions, "Initialized", "True", now, **_reason_of_end(phase))
    for kind in ("Ready", "ContainersReady"):
        detail = {"reason": None, "message": None} if ready else _unready_reason(pod, phase)
        conditions = with_condition(conditions, kind, _flag(ready), now, **detail)
    scheduled = {} if condition_of(pod, "PodScheduled") else {"reason": None}
    return with_condition(conditions, "PodScheduled", "True", now, **{**scheduled, "reason": None, "message": None})


def _flag(value: bool) -> str:
    return "True" if value else "False"


def _reason_of_end(phase: str) -> JsonObject:
    return {"reason": "PodCompleted"} if phase == "Succeeded" else {}


def _unready_reason(pod: JsonObject, phase: str) -> JsonObject:
    if phase == "Succeeded":
        return {"reason": "PodCompleted", "message": None}
    if phase == "Failed":
        return {"reason": "PodFailed", "message": None}
    names = " ".join(container["name"] for container in pod["spec"]["containers"])
    return {"reason": "ContainersNotReady", "message": f"containers with unready status: [{names}]"}


def _container_status(container: JsonObject, pod: JsonObject, runtime: PodRuntime) -> JsonObject:
    running = runtime.step == PodStep.RUNNING
    name = container["name"]
    created = bool(runtime.started_at)
    status: JsonObject = {
        "name": name,
        "state": _container_state(container, runtime, pod),
        "lastState": _last_state(name, runtime),
        "ready": running,
        "restartCount": runtime.restarts,
        "image": container["image"],
        "imageID": f"{container['image']}@sha256:{_digest(container['image'])}" if created else "",
        "started": running,
    }
    if created:
        status["containerID"] = container_id(runtime.uid, name, runtime.restarts)
    return status


def _container_state(container: JsonObject, runtime: PodRuntime, pod: JsonObject) -> JsonObject:
    match runtime.step:
        case PodStep.RUNNING:
            return {"running": {"startedAt": timestamp(runtime.started_at)}}
        case PodStep.ENDED if runtime.end is not None:
            return {"terminated": _terminated(runtime.end, container["name"], runtime)}
        case PodStep.BACKOFF:
            text = (
                f"back-off {max(runtime.next_at - (runtime.end.finished_at if runtime.end else 0), 0):.0f}s restarting"
                f" failed container={container['name']} pod={runtime.name}_{runtime.namespace}({runtime.uid})"
            )
            return {"waiting": {"reason": "CrashLoopBackOff", "message": text}}
        case PodStep.PULL_FAILED:
            return {"waiting": _pull_state(str(container["image"]), runtime)}
    return {"waiting": {"reason": "ContainerCreating"}}


def _pull_state(image: str, runtime: PodRuntime) -> dict[str, Any]:
    """The kubelet alternates between the two reasons; here the first failure shows the first one."""
    if runtime.pull_failures <= 1:
        text = f'failed to pull and unpack image "{image}": failed to resolve reference "{image}": no such host'
        return {"reason": "ErrImagePull", "message": text}
    return {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{image}"'}


def _last_state(name: str, runtime: PodRuntime) -> JsonObject:
    if runtime.end is None or runtime.step == PodStep.ENDED:
        return {}
    return {"terminated": _terminated(runtime.end, name, runtime)}


def _terminated(end: ContainerEnd, name: str, runtime: PodRuntime) -> JsonObject:
    return {
        "exitCode": end.code,
        "reason": end.reason,
        "startedAt": timestamp(end.started_at),
        "finishedAt": timestamp(end.finished_at),
        "containerID": container_id(runtime.uid, name, max(runtime.restarts, 0)),
    }


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=32).hexdigest()
