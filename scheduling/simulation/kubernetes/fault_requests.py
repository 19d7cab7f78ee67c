"""Requests that only a simulated cluster accepts: faults, and changes of machines. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.simulation.machines.faults import JOB_FAULTS, PROGRAM_FAULTS, FaultKind

from .api.errors import bad_request
from .objects import JsonObject

MACHINE_ACTIONS = ("stop-kubelet", "start-kubelet", "power-off", "repair")
MAX_GPU = 1024
MACHINE_FAULTS = tuple(kind for kind in FaultKind if kind != FaultKind.NO_WAKE)  # who repairs a machine also wakes it


@dataclass(frozen=True, kw_only=True)
class FaultRequest:
    kind: FaultKind
    node: str = ""
    gpu: int = -1  # drawn at random
    namespace: str = ""
    pod: str = ""


def parse_fault_request(body: object) -> FaultRequest:
    """Parse `{"kind": "ecc", "node": "kalos-003", "gpu": 2}` or `{"kind": "hang", "pod": "default/train-0"}`."""
    fields = _object(body)
    kind, pod = str(fields.get("kind", "")), str(fields.get("pod") or "")
    if kind not in MACHINE_FAULTS:
        raise bad_request(f"kind: {kind!r:.40} is not one of {', '.join(MACHINE_FAULTS)}")
    if pod and kind not in JOB_FAULTS:
        raise bad_request(f"pod: a fault of kind {kind} hits a node, not a pod")
    if not pod and kind in PROGRAM_FAULTS:
        raise bad_request(f"pod: a fault of kind {kind} needs a pod")
    namespace, _, name = pod.rpartition("/")
    return FaultRequest(
        kind=FaultKind(kind),
        node=str(fields.get("node") or ""),
        gpu=_gpu(fields.get("gpu")),
        namespace=namespace or "default",
        pod=name,
    )


def _gpu(value: object) -> int:
    if value is None:
        return -1
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MAX_GPU:
        raise bad_request(f"gpu: {value!r:.40} is not the index of a GPU")
    return value


def parse_machine_request(body: object) -> str:
    """Parse `{"action": "stop-kubelet"}`."""
    action = str(_object(body).get("action", ""))
    if action not in MACHINE_ACTIONS:
        raise bad_request(f"action: {action!r:.40} is not one of {', '.join(MACHINE_ACTIONS)}")
    return action


def _object(body: object) -> JsonObject:
    if not isinstance(body, dict):
        raise bad_request("the body must be a JSON object")
    return body
