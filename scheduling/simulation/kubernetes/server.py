"""A simulated Kubernetes cluster as a process: the API of Kubernetes over HTTP.

    python -m scheduling.simulation.kubernetes.server --state DIR --port 6443 --token-file FILE

One process with one event loop: all calls of the cluster run on it, so none overlap. An answer, and an event of a
watch, is sent only after what it shows is on disk; changes of concurrent requests are written together. With
--token-file, requests need the token of the administrator or that of a service account, and roles decide what it may do
(RBAC).

Beside the API there are, for administrators only:

| request | what happens |
|---|---|
| `POST /plans`, `GET /kernel/NODE` | as in the simulation of Slurm |
| `GET /faults` | the true faults |
| `POST /faults {"kind": "ecc", "node": NODE, "gpu": 2}` | a fault of a node or of the storage |
| `POST /faults {"kind": "hang", "pod": "NAMESPACE/NAME"}` | a fault of the program of a pod |
| `POST /machines/NODE {"action": "stop-kubelet"}`, `start-kubelet` | a kubelet is silent; its containers go on |
| `POST /machines/NODE {"action": "power-off"}`, `repair` | a machine goes down with all its containers, and boots |
| `POST /compact` | the history is forgotten, as by etcd: watches end with 410 |
| `DELETE /watches` | the connections of all watches break in the middle of an object |

Other faults are ordinary requests (somebody deletes a node or a pod, cordons or evicts) or signals: after kill -9 a
server with the same state directory continues where it was. `--clock-offset-s` makes the cluster's clock differ from
that of its clients. `/metrics` and `/metrics/NODE` are the pages of DCGM exporters; like those, they need no token.

With --execute, the commands of pods run as processes of this machine (processes.py).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from secrets import token_hex
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from scheduling.simulation.machines.clocks import lowered_clocks
from scheduling.simulation.machines.commits import CommitQueue
from scheduling.simulation.machines.effects import EffectsFile, PendingEffects
from scheduling.simulation.machines.faults import FaultModel
from scheduling.simulation.machines.requests import fault_body, parse_clocks, parse_job_plans
from scheduling.simulation.machines.scripts import kernel_log
from scheduling.simulation.machines.scripts.logs import KernelLogWriter
from scheduling.simulation.machines.serving import healthz, open_server, serve, stop_on_clock_error
from scheduling.simulation.machines.values import build_nodes

from . import http, pki
from .api import discovery
from .api.authorization import ADMIN, MASTERS, access_of
from .api.errors import bad_request, forbidden, unauthorized
from .api.requests import PATCH_TYPES, ApiRequest, User, is_unknown_group, parse_request
from .cluster import KubernetesCluster
from .exec_sessions import ExecSessions
from .fault_requests import parse_fault_request, parse_machine_request
from .log_requests import find_log, log_options
from .options import ServerOptions, divided_gpus, parse_options
from .persistence import ClusterDatabase
from .pod_logs import LoggedPod, LogOptions, LogReader
from .programs import Programs, process_programs, simulated_programs
from .telemetry import telemetry_page
from .values import ClusterChanges, ClusterSnapshot, Machine, PodRuntime
from .watching import VersionSignal, Watch, WatchCut

TICK_S = 0.1
OPENAPI_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
FOLLOW_S = 0.25


class KubernetesServer:
    """One running cluster: its state, its database, and the handlers of requests."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._database = ClusterDatabase(options.state / "cluster.sqlite3")
        seed = self._seed = int(self._database.setting_or_default("seed", str(options.seed)))
        secret = self._database.setting_or_default("token-secret", token_hex(32))
        self._effects, self._pending_effects = EffectsFile(options.state), PendingEffects()
        self._effects.append(self._database.newest_effects())
        self._kernel_logs = KernelLogWriter(options.log_root)
        programs = self._programs()
        now = self._time()
        self._known_pods: dict[str, PodRuntime] = {}
        self.cluster = KubernetesCluster(
            self._load_or_create_snapshot(now),
            programs.executor,
            now,
            seed=seed,
            faults=FaultModel(per_node_day=options.faults, seed=seed, speed=options.speed),
            timing=options.timing,
            plan_of=self._database.job_plan,
            secret=secret.encode(),
            tokens={options.token: ADMIN} if options.token else {},
            api=options.api,
            describe=programs.describe,
            gang_of=programs.gang_of,
        )
        self.cluster.begin(now)
        self._database.reserve_versions(self.cluster.store.version)
        self.cluster.advance_to(now)  # process what was due while the server was down
        self._commands = programs.commands(self.cluster, self._time)
        self._commits = CommitQueue(self, self, self._drop_deleted_pods)
        self._signal = VersionSignal(0)

    def _time(self) -> float:
        """The wall clock of the cluster, which may differ from that of its clients."""
        return time.time() + self._options.clock_offset_s

    def _programs(self) -> Programs:
        """What runs in pods: simulated programs, or processes of this machine."""
        options = self._options
        if options.execute:
            programs = process_programs(options, self._seed, self._effects, self._logged_pods)
        else:
            programs = simulated_programs(options, self._seed, self._pending_effects, self._logged_pods)
        self._pod_logs, self._run_of_job = programs.logs, programs.run_of_job
        return programs

    def app(self) -> Starlette:
        paths: list[tuple[str, list[str], http.Handler]] = [
            ("/version", ["GET"], self.version),
            ("/api", ["GET"], self.discovery),
            ("/apis", ["GET"], self.discovery),
            ("/openapi/v2", ["GET"], self.openapi),
            ("/openapi/v3", ["GET"], self.openapi),
            ("/openapi/v3/{path:path}", ["GET"], self.openapi),
            ("/faults", ["GET"], self.faults),
            ("/faults", ["POST"], self.inject_fault),
            ("/clocks", ["GET"], self.clocks),
            ("/clocks", ["POST"], self.set_clocks),
            ("/plans", ["POST"], self.plan_jobs),
            ("/machines/{name}", ["POST"], self.change_machine),
            ("/compact", ["POST"], self.compact),
            ("/watches", ["DELETE"], self.cut_watches),
            ("/kernel/{name}", ["GET"], self.kernel_log),
        ]
        methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        for root in ("/api", "/apis"):
            paths.append((f"{root}/{{path:path}}", methods, self.resource))
        routes: list[BaseRoute] = [
            Route(path, http.guard_handler(handler), methods=allowed) for path, allowed, handler in paths
        ]
        executions = ExecSessions(self.cluster, self._commands, self._user, self._exec_request, self._commit)
        routes += [WebSocketRoute("/api/v1/namespaces/{namespace}/pods/{name}/exec", executions.serve)]
        routes += [Route(path, http.guard_handler(self.metrics)) for path in ("/metrics", "/metrics/{node}")]
        routes += [Route(path, healthz) for path in ("/healthz", "/livez", "/readyz")]
        return Starlette(routes=routes, lifespan=self._lifespan)

    # Who asks

    def _user(self, request: Request | WebSocket) -> User:
        """The user of a request. Without --token-file, everybody is the administrator."""
        if not self._options.token:
            return ADMIN
        user = self.cluster.user_of(http.bearer_token(request.headers), self._time())
        if user is None:
            raise unauthorized()
        return user

    def _exec_request(self, websocket: WebSocket) -> ApiRequest:
        """The request of a WebSocket. Those of web pages are refused. Raises ApiError."""
        user = self._user(websocket)
        origin = websocket.headers.get("Origin", "").partition("://")[2]
        # Some clients name the server itself. Without a token, a page whose name was bound to this address could, too
        if "Origin" in websocket.headers and not (self._options.token and origin == websocket.headers.get("Host")):
            raise forbidden("pods", "", "requests from browsers are not accepted")
        asked = parse_request("GET", websocket.url.path, dict(websocket.query_params), self._options.api)
        return replace(asked, user=user)

    def _require_administrator(self, request: Request) -> None:
        user = self._user(request)
        if MASTERS not in user.groups:
            raise forbidden("machines", "", f'User "{user.name}" is not an administrator of the simulation')

    # Discovery

    async def version(self, request: Request) -> Response:
        return http.json_response(discovery.version_body(self._options.api))

    async def discovery(self, request: Request) -> Response:
        self._user(request)
        body = (
            discovery.core_versions_body() if request.url.path == "/api" else discovery.groups_body(self._options.api)
        )
        return http.json_response(body)

    async def openapi(self, request: Request) -> Response:
        self._user(request)
        if request.url.path == "/openapi/v2":
            # kubectl checks lists itself, with the schemas of this document. An empty document has no bytes and no
            # schemas, so kubectl checks nothing
            return Response(b"", media_type=OPENAPI_PROTOBUF)
        parts = request.path_params.get("path", "").split("/")
        if parts == [""]:
            return http.json_response(discovery.openapi_index_body(self._options.api))
        if parts[0] == "api":
            return http.found(discovery.openapi_body(self._options.api, "", parts[-1]))
        return http.found(discovery.openapi_body(self._options.api, parts[1] if len(parts) == 3 else "", parts[-1]))

    def _discovery_of(self, parts: list[str]) -> Response | None:
        """The document of a group or version; None if the path names a resource."""
        match parts:
            case ["api", version]:
                return http.found(discovery.resources_body(self._options.api, "", version))
            case ["apis", group]:
                return http.found(discovery.group_body(self._options.api, group))
            case ["apis", group, version]:
                return http.found(discovery.resources_body(self._options.api, group, version))
        return None

    # Resources

    async def resource(self, request: Request) -> Response:
        user = self._user(request)
        if is_unknown_group(request.url.path, self._options.api):
            return PlainTextResponse("404 page not found\n", 404)
        parts = [part for part in request.url.path.split("/") if part]
        if (document := self._discovery_of(parts)) is not None:
            return document
        query = dict(request.query_params)
        asked = replace(parse_request(request.method, request.url.path, query, self._options.api), user=user)
        asked = await self._with_body(asked, request)
        if asked.verb == "watch":
            return await self._watch(asked)
        if asked.subresource == "exec":
            self.cluster.authorizer.check(asked.user, access_of(asked))
            raise bad_request("Upgrade request required")  # SPDY, the protocol of kubectl before 1.31, is not served
        if asked.subresource == "log":
            return await self._log(asked)
        try:
            answer = self.cluster.answer(asked, self._time())
        finally:
            await self._commit()
        return http.answer_response(answer)

    async def _with_body(self, asked: ApiRequest, request: Request) -> ApiRequest:
        if asked.verb == "patch":
            body = await http.read_json_body(request, PATCH_TYPES)
            return replace(asked, body=body, patch_type=http.media_type(request.headers))
        if asked.verb in ("create", "update", "delete", "deletecollection"):
            return replace(asked, body=await http.read_json_body(request))
        return asked

    async def _watch(self, asked: ApiRequest) -> Response:
        self.cluster.authorizer.check(asked.user, access_of(asked))
        await self._commit()
        watch = Watch(self.cluster.store, asked, self._signal, self._time)
        return StreamingResponse(watch.lines(), media_type="application/json")

    async def _log(self, asked: ApiRequest) -> Response:
        self.cluster.authorizer.check(asked.user, access_of(asked))
        options = log_options(asked)
        path = find_log(self.cluster, asked, self._options.log_root / "pods")
        if path is None:
            return Response(status_code=204)
        reader = LogReader(path, options)
        if not options.follow:
            self._pod_logs.write(self._time())
            return PlainTextResponse(reader.read())
        return StreamingResponse(self._followed(reader, asked, options), media_type="text/plain")

    async def _followed(self, reader: LogReader, asked: ApiRequest, options: LogOptions) -> AsyncIterator[bytes]:
        """What the container prints, until it has ended."""
        key, restarts = asked.key, self._restarts(asked)
        while not reader.is_full:
            runtime = self.cluster.kubelets.runtimes.get(key)
            ended = runtime is None or not runtime.holds_resources or runtime.restarts != restarts
            if text := reader.read():
                yield text
            elif ended:
                return
            else:
                await asyncio.sleep(FOLLOW_S)

    def _restarts(self, asked: ApiRequest) -> int:
        runtime = self.cluster.kubelets.runtimes.get(asked.key)
        return runtime.restarts if runtime is not None else 0

    # The simulation

    async def faults(self, request: Request) -> Response:
        """The true faults, for measuring how well they are detected."""
        self._require_administrator(request)
        return http.json_response({"faults": [fault_body(one) for one in self.cluster.faults]})

    async def inject_fault(self, request: Request) -> Response:
        self._require_administrator(request)
        wanted, now = parse_fault_request(await http.read_json_body(request)), self._time()
        if wanted.pod:
            fault = self.cluster.inject_pod_fault(wanted.kind, wanted.namespace, wanted.pod, now)
        else:
            fault = self.cluster.inject_fault(wanted.kind, now, node=wanted.node, gpu=wanted.gpu)
        await self._commit()
        return http.json_response({"fault": fault_body(fault)})

    async def clocks(self, request: Request) -> Response:
        """The nodes whose GPUs have a lower clock than their highest."""
        self._require_administrator(request)
        return http.json_response({"clocks": lowered_clocks(one.node for one in self.cluster.machines)})

    async def set_clocks(self, request: Request) -> Response:
        """Set the clocks of GPUs, as a program on the nodes would."""
        self._require_administrator(request)
        self.cluster.set_clocks(parse_clocks(await http.read_json_body(request)), self._time())
        await self._commit()
        return http.json_response({"clocks": lowered_clocks(one.node for one in self.cluster.machines)})

    async def plan_jobs(self, request: Request) -> Response:
        """Decide how programs will go before their pods are created."""
        self._require_administrator(request)
        plans = parse_job_plans(await http.read_json_body(request))
        self._database.save_job_plans(plans)
        return http.json_response({"plans": len(plans)})

    async def change_machine(self, request: Request) -> Response:
        """Stop or start a kubelet, power a machine off, or repair it."""
        self._require_administrator(request)
        name, now = request.path_params["name"], self._time()
        action = parse_machine_request(await http.read_json_body(request))
        match action:
            case "repair":
                self.cluster.repair(name, now)
            case "power-off":
                self.cluster.power_off(name, now)
            case _:
                self.cluster.set_kubelet(name, action == "start-kubelet", now)
        await self._commit()
        return http.json_response({"machine": name, "action": action})

    async def compact(self, request: Request) -> Response:
        self._require_administrator(request)
        self.cluster.store.compact()
        return http.json_response({"version": self.cluster.store.version})

    async def cut_watches(self, request: Request) -> Response:
        """Break the connections of all watches in the middle of an object."""
        self._require_administrator(request)
        return http.json_response({"watches": self._signal.cut()})

    async def kernel_log(self, request: Request) -> Response:
        """The output of `journalctl -k` on the node."""
        self._require_administrator(request)
        node = self.cluster.machine(request.path_params["name"]).node
        lines = kernel_log.kernel_log_lines(node, self.cluster.faults, now=self._time())
        return PlainTextResponse("".join(f"{line}\n" for line in lines))

    async def metrics(self, request: Request) -> Response:
        """The telemetry of all nodes, or of one, as a DCGM exporter gives it; like exporters, without a token."""
        node = request.path_params.get("node", "")
        page = telemetry_page(self.cluster, self._run_of_job, seed=self._seed, now=self._time(), node=node)
        return PlainTextResponse(page)

    # Background work

    async def _run_clock(self) -> None:
        """Advance the cluster's time. Changes that were reported are written before anything follows from them."""
        while True:
            await self._commit()
            now = self._time()
            self.cluster.advance_to(now)
            self._pod_logs.write(now)
            nodes = [machine.node for machine in self.cluster.machines]
            self._kernel_logs.write(nodes, self.cluster.faults, now)
            await self._commit()
            await asyncio.sleep(TICK_S)

    async def _commit(self) -> None:
        """Return when everything that changed before the call is on disk, and tell the watches."""
        version = self.cluster.store.version
        self._database.reserve_versions(version)
        await self._commits.flush()
        self._signal.publish(version)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        life = asyncio.create_task(self._run_clock())
        life.add_done_callback(stop_on_clock_error)
        yield
        life.remove_done_callback(stop_on_clock_error)
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        await self._commits.flush()
        self._database.close()
        self._effects.close()

    def take_changes(self) -> ClusterChanges:
        """Everything that changed since the last call, for the database."""
        return replace(self.cluster.take_changes(), effects=self._pending_effects.take())

    def write(self, changes: ClusterChanges) -> None:
        """Write the changes to the database, then their effects to the file."""
        self._database.write(changes)
        self._effects.append(changes.effects)

    def _drop_deleted_pods(self, changes: ClusterChanges) -> None:
        """Delete the logs of pods that are gone."""
        for uid, runtime in changes.pods.items():
            if runtime is not None:
                self._known_pods[uid] = runtime
            elif (known := self._known_pods.pop(uid, None)) is not None:
                self._pod_logs.remove(known)

    def _logged_pods(self, number: int) -> list[LoggedPod]:
        return [LoggedPod(runtime=one, container=name) for one, name in self.cluster.execution_pods(number)]

    def _load_or_create_snapshot(self, now: float) -> ClusterSnapshot:
        """The stored state, or a new one. A stored cluster keeps the machines that it was created with."""
        stored = self._database.load()
        if stored is None:
            stored = ClusterSnapshot(machines=tuple(_initial_machines(self._options, now)))
            self._database.begin(stored)
        self._known_pods = {one.uid: one for one in stored.pods}
        return stored


def _initial_machines(options: ServerOptions, now: float) -> Iterator[Machine]:
    width = max(3, len(str(options.nodes)))
    names = [f"{options.name}-{number:0{width}d}" for number in range(1, options.nodes + 1)]
    nodes = build_nodes(names, gpus=options.gpus_per_node, gpu_model=options.gpu_model, now=now)
    for place, node in enumerate(nodes):
        if options.mig_slices and place >= options.nodes - options.mig_nodes:
            whole = replace(node, gpus=node.gpus - divided_gpus(options.mig_slices))
            yield Machine(node=whole, mig_slices=options.mig_slices)
        else:
            yield Machine(node=node)


def _is_no_cut(record: logging.LogRecord) -> bool:
    """Watches that are cut on request are no errors of the server."""
    return record.exc_info is None or not isinstance(record.exc_info[1], WatchCut)


def main(arguments: list[str]) -> None:
    options = parse_options(arguments)
    listening = open_server(options)
    (options.log_root / "pods").mkdir(exist_ok=True)
    app = KubernetesServer(options).app()
    address = f"{'https' if options.tls else 'http'}://{options.bind}:{listening.getsockname()[1]}"
    certificate: dict[str, Any] = {}
    if options.tls:
        files = pki.create_server_certificate(options.state / "pki", options.bind)
        certificate = {"ssl_certfile": files[0], "ssl_keyfile": files[1]}
        pki.write_kubeconfig(options.state, address, options.token)
    logging.getLogger("uvicorn.error").addFilter(_is_no_cut)
    serve(app, listening, address, timeout_graceful_shutdown=1, **certificate)


if __name__ == "__main__":
    main(sys.argv[1:])
