"""Commands in containers over WebSockets, as `kubectl exec` sends them.

A command of a simulated container takes no time, so a session is one answer: output, exit status, end. A client that
goes away before loses only the answer; the signals that the command sent stay sent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect

from scheduling.simulation.machines.values import SimulatedNode

from .api.authorization import access_of
from .api.errors import ApiError, bad_request
from .api.requests import ApiRequest, User
from .cluster import KubernetesCluster
from .exec_requests import STDOUT, ExecRequest, chosen_protocol, find_execution, messages
from .http import json_response
from .kubelets.commands import CommandResult, ContainerView, run_command
from .kubelets.gangs import environment_of
from .values import PodRuntime

Parse = Callable[[WebSocket], ApiRequest]


class ContainerCommands(Protocol):
    """Runs commands in the container of a pod."""

    async def run(self, runtime: PodRuntime, asked: ExecRequest) -> CommandResult: ...


class SimulatedCommands:
    """Commands in containers without processes; signals reach the simulated program."""

    def __init__(
        self, cluster: KubernetesCluster, uuid_of: Callable[[str, int], str], clock: Callable[[], float]
    ) -> None:
        self._cluster, self._uuid_of, self._clock = cluster, uuid_of, clock

    async def run(self, runtime: PodRuntime, asked: ExecRequest) -> CommandResult:
        result = run_command(asked.command, self._view(runtime))
        for number, target in result.signals:
            self._cluster.signal_pod(runtime, number, target, self._clock())
        return result

    def _view(self, runtime: PodRuntime) -> ContainerView:
        pod, node = self._cluster.store.get(runtime.key), self._node(runtime)
        gpus = [(gpu, self._uuid_of(runtime.node, gpu)) for gpu in runtime.gpus]
        return ContainerView(
            hostname=str(pod["spec"].get("hostname") or runtime.name) if pod else runtime.name,
            environment=environment_of(pod) if pod else {},
            gpus=gpus,
            model=node.gpu_model if node else "",
        )

    def _node(self, runtime: PodRuntime) -> SimulatedNode | None:
        machine = self._cluster.kubelets.machine(runtime.node)
        return machine.node if machine is not None else None


class ExecSessions:
    """Answers WebSockets to `pods/NAME/exec`."""

    def __init__(
        self,
        cluster: KubernetesCluster,
        commands: ContainerCommands,
        user_of: Callable[[WebSocket], User],
        parse: Parse,
        commit: Callable[[], Awaitable[None]],
    ) -> None:
        self._cluster, self._commands, self._user_of = cluster, commands, user_of
        self._parse, self._commit = parse, commit

    async def serve(self, websocket: WebSocket) -> None:
        try:
            protocol, runtime, asked = self._accepted(websocket)
        except ApiError as error:
            await websocket.send_denial_response(json_response(error.body(), error.code))
            return
        with suppress(WebSocketDisconnect):
            await websocket.accept(subprotocol=protocol)
            await websocket.send_bytes(bytes([STDOUT]))  # tells the client that the streams are open
            result = await self._commands.run(runtime, asked)
            await self._commit()
            for message in messages(asked, result.stdout.encode(), result.stderr.encode(), result.code):
                await websocket.send_bytes(message)
            await websocket.close()

    def _accepted(self, websocket: WebSocket) -> tuple[str, PodRuntime, ExecRequest]:
        """The protocol, the pod and the command. Raises ApiError."""
        request = self._parse(websocket)
        self._cluster.authorizer.check(request.user, access_of(request))
        offered = websocket.scope.get("subprotocols") or []
        protocol = chosen_protocol(offered)
        if protocol is None:
            raise bad_request(f"unable to upgrade: unable to negotiate protocol: client supports {offered!s:.200}")
        asked, runtime = find_execution(self._cluster, request, websocket.query_params.getlist("command"))
        return protocol, runtime, asked
