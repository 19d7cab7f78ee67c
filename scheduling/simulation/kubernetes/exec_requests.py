"""Commands in containers: which one a request means, and how its result is told.

As the API server does, refusals before the command runs are answers of HTTP; afterwards the last message of the stream
has the exit status.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .api.errors import ApiError, bad_request
from .api.reading import find_object
from .api.requests import TRUE_TEXTS, ApiRequest
from .cluster import KubernetesCluster
from .kubelets.node_status import node_ip
from .log_requests import container_of
from .objects import JsonObject, value_at
from .values import PodRuntime, PodStep

# Newest first. The fifth version only adds a way to close stdin
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDOUT, STDERR, STATUS = 1, 2, 3
MAX_WORDS, MAX_COMMAND = 1_000, 256 * 1024


@dataclass(frozen=True, kw_only=True)
class ExecRequest:
    command: tuple[str, ...]
    container: str
    stdout: bool
    stderr: bool


def find_execution(
    cluster: KubernetesCluster, request: ApiRequest, words: Sequence[str]
) -> tuple[ExecRequest, PodRuntime]:
    """The command and the running pod that it is for. Raises ApiError."""
    pod = find_object(cluster.store, request.key).object
    query = request.query
    asked = ExecRequest(
        command=_command(words),
        container=container_of(pod, query.get("container", "")),
        stdout=query.get("stdout") in TRUE_TEXTS,
        stderr=query.get("stderr") in TRUE_TEXTS,
    )
    if not asked.stdout and not asked.stderr and query.get("stdin") not in TRUE_TEXTS:
        raise bad_request("you must specify at least 1 of stdin, stdout, stderr")
    return asked, _running(cluster, pod, request, asked.container)


def _command(words: Sequence[str]) -> tuple[str, ...]:
    if not words:
        raise bad_request("you must specify at least one command for the container")
    if len(words) > MAX_WORDS or sum(map(len, words)) > MAX_COMMAND:
        raise bad_request(f"command: more than {MAX_WORDS} words or {MAX_COMMAND} characters")
    return tuple(words)


def _running(cluster: KubernetesCluster, pod: JsonObject, request: ApiRequest, container: str) -> PodRuntime:
    node = str(pod["spec"].get("nodeName") or "")
    if not node:
        raise bad_request(f"pod {request.name} does not have a host assigned")
    machine = cluster.kubelets.machine(node)
    if machine is None or not machine.reports:
        address = f"{node_ip(node)}:10250"
        raise ApiError(500, "InternalError", f"error dialing backend: dial tcp {address}: connect: connection refused")
    runtime = cluster.kubelets.runtimes.get(request.key)
    if value_at(pod, "status", "phase") in ("Succeeded", "Failed"):
        phase = pod["status"]["phase"]
        raise bad_request(f"cannot exec into a container in a completed pod; current phase is {phase}")
    if runtime is None or runtime.step != PodStep.RUNNING:
        raise ApiError(404, "NotFound", f'container not found ("{container}")')
    return runtime


def chosen_protocol(offered: Sequence[str]) -> str | None:
    """The newest protocol that the client offers; None if there is no common one."""
    return next((name for name in PROTOCOLS if name in offered), None)


def messages(asked: ExecRequest, stdout: bytes, stderr: bytes, code: int) -> Iterator[bytes]:
    """What is sent after the command has ended."""
    if asked.stdout and stdout:
        yield bytes([STDOUT]) + stdout
    if asked.stderr and stderr:
        yield bytes([STDERR]) + stderr
    yield bytes([STATUS]) + json.dumps(exit_status(code)).encode()


def exit_status(code: int) -> JsonObject:
    if not code:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
