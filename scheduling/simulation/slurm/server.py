"""A cluster as a process: slurmrestd's API and GPU telemetry over HTTP, with simulated or real jobs.

    python -m scheduling.simulation.slurm.server --state DIR --port 6820            a simulated cluster
    python -m scheduling.simulation.slurm.server --state DIR --port 6820 --execute --token-file FILE
                                                                             this machine

One process with one event loop: all calls of the controller run on it, so none overlap. A response that confirms a
change is sent only after the change is on disk; changes of concurrent requests are written together. Clients cannot
tell the two kinds of clusters apart.

Jobs are commands, so with --token-file everything below /slurm requires the token, and requests from browsers are
rejected, because any web page could otherwise post to the loopback interface. /metrics needs no token, like a DCGM
exporter; it is read-only.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from acmeweb.common.errors import InvalidInput
from jobs.core.gpu_shares import MPS
from scheduling.simulation.machines import dcgm_exporter
from scheduling.simulation.machines.clocks import lowered_clocks
from scheduling.simulation.machines.commits import CommitQueue
from scheduling.simulation.machines.effects import EffectsFile
from scheduling.simulation.machines.execution import host
from scheduling.simulation.machines.execution.attempt_records import AttemptRecords
from scheduling.simulation.machines.execution.runner import ProcessExecutor
from scheduling.simulation.machines.faults import FaultModel
from scheduling.simulation.machines.log_paths import InvalidLogPath
from scheduling.simulation.machines.power_meters import PowerMeters, node_power_w
from scheduling.simulation.machines.requests import fault_body, parse_clocks, parse_job_plans
from scheduling.simulation.machines.scripts import kernel_log
from scheduling.simulation.machines.scripts.logs import JobLogWriter, KernelLogWriter, write_whole_logs
from scheduling.simulation.machines.scripts.play import SimulatedExecutor, check_hints
from scheduling.simulation.machines.serving import healthz, open_server, serve, stop_on_clock_error
from scheduling.simulation.machines.values import SimulatedJob, SimulatedJobRequest, build_nodes

from . import accounting, http, request_bodies, wire
from .controller import ClusterController
from .http import Handler
from .options import ServerOptions, parse_options
from .store import StateStore
from .values import ControllerTiming, SimulatorSnapshot, SlurmError, StateChanges
from .wire import API, ClusterInfo, InvalidRequest

TICK_S = 0.1
MPS_PER_GPU = 100  # Slurm's default
METER_INTERVAL_S = 15.0
SHUTDOWN_TIMEOUT_S = 7.0  # for ending all jobs: TERM, KILL after kill_wait_s, and some time for cleanup
SHUTDOWN_REASON = "the machine was shut down"
SAMPLES_MAX_AGE_S = 2.0  # nvidia-smi is slow, so its output is reused for this time


class ClusterServer:
    """One running cluster: its controller, its store, and the handlers of requests."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._cluster = ClusterInfo(name=options.name, execute=options.execute, accounting=options.accounting)
        self._store = StateStore(options.state / "cluster.sqlite3", accounting=options.accounting)
        self._seed = int(self._store.setting_or_default("seed", str(options.seed)))
        self._effects = EffectsFile(options.state)
        records = AttemptRecords(options.log_root, clock_offset_s=lambda: self._controller.clock_offset_s)
        self._job_logs = JobLogWriter(options.log_root, records)
        self._kernel_logs = KernelLogWriter(options.log_root)
        self._simulator = SimulatedExecutor(
            seed=self._seed,
            speed=options.speed,
            trial_speed=options.trial_speed,
            stage=self._job_logs,
            effects=self._effects,
        )
        jobs = options.state / "jobs"
        self._process_executor = ProcessExecutor(
            state=jobs, log_root=options.log_root, accounts=options.accounts, effects=self._effects
        )
        executor = self._process_executor if options.execute else self._simulator
        now = time.time()
        faults = FaultModel(per_node_day=options.faults, seed=self._seed, speed=options.speed)
        timing = ControllerTiming(
            configure_s=options.configure_s,
            min_job_age_s=options.min_job_age_s,
            suspend_s=options.suspend_s,
            boot_s=options.boot_s,
            resume_timeout_s=options.resume_timeout_s,
        )
        snapshot = self._load_or_create_snapshot(now)
        self._controller = ClusterController(snapshot, executor, now, faults=faults, timing=timing)
        self._controller.advance_to(now)  # process what was due while the server was down
        self._commits = CommitQueue(self._controller, self._store, self._drop_purged_jobs)
        self._texts: dict[int, tuple[SimulatedJob, bytes]] = {}
        self._samples: tuple[float, list[dcgm_exporter.GpuSample]] = (0.0, [])
        self._meters, self._meters_read_at = PowerMeters(), 0.0
        self._user = getpass.getuser()

    def app(self) -> Starlette:
        slurm = f"/slurm/{API}"
        paths: list[tuple[str, str, Handler]] = [
            ("GET", f"{slurm}/ping", self.ping),
            ("GET", f"{slurm}/ping/", self.ping),
            ("GET", f"{slurm}/diag", self.diag),
            ("GET", f"{slurm}/diag/", self.diag),
            ("GET", f"{slurm}/partitions", self.partitions),
            ("GET", f"{slurm}/partitions/", self.partitions),
            ("GET", f"{slurm}/reservations", self.reservations),
            ("GET", f"{slurm}/reservations/", self.reservations),
            ("GET", f"{slurm}/jobs", self.jobs),
            ("GET", f"{slurm}/jobs/", self.jobs),
            ("GET", f"{slurm}/jobs/state/", self.job_states),
            ("POST", f"{slurm}/job/submit", self.submit),
            ("GET", f"{slurm}/job/{{id}}", self.job),
            ("POST", f"{slurm}/job/{{id}}", self.update_job),
            ("DELETE", f"{slurm}/job/{{id}}", self.cancel),
            ("GET", f"{slurm}/nodes", self.nodes),
            ("GET", f"{slurm}/nodes/", self.nodes),
            ("GET", f"{slurm}/node/{{name}}", self.node),
            ("POST", f"{slurm}/node/{{name}}", self.update_node),
        ]
        slurmdb = f"/slurmdb/{API}"
        if self._options.accounting:
            paths += [
                ("GET", f"{slurmdb}/jobs", self.accounted_jobs),
                ("GET", f"{slurmdb}/job/{{id}}", self.accounted_job),
                ("GET", f"{slurmdb}/accounts", self.accounts),
                ("GET", f"{slurmdb}/associations", self.associations),
                ("GET", f"{slurmdb}/qos", self.qos),
            ]
        if not self._options.execute:
            paths += [
                ("GET", "/kernel/{name}", self.kernel_log),
                ("GET", "/faults", self.faults),
                ("POST", "/faults", self.inject_fault),
                ("GET", "/clocks", self.clocks),
                ("POST", "/clocks", self.set_clocks),
                ("POST", "/plans", self.plan_jobs),
                ("POST", "/logs", self.store_logs),
                ("GET", "/clock", self.clock),
                ("POST", "/clock", self.set_clock),
            ]
        routes = [
            Route(path, http.guard_handler(handler, self._options.token, self._json_answer), methods=[method])
            for method, path, handler in paths
        ]
        routes += [Route("/metrics", self.metrics), Route("/healthz", healthz)]
        return Starlette(routes=routes, lifespan=self._lifespan)

    # Reading

    async def ping(self, request: Request) -> Response:
        return self._json_answer(wire.ping_body(self._cluster))

    async def diag(self, request: Request) -> Response:
        return self._json_answer(wire.diag_body(self._controller, time.time()))

    async def partitions(self, request: Request) -> Response:
        return self._json_answer(wire.partitions_body(self._controller))

    async def reservations(self, request: Request) -> Response:
        return self._json_answer(wire.reservations_body(self._controller))

    async def jobs(self, request: Request) -> Response:
        """All jobs; with ?update_time no jobs if none changed since then, as in Slurm."""
        since = http.update_time_from_query(request)
        if since is not None and self._last_job_change() < since:
            warning = {"description": f"No job changes since update_time[{since}]", "source": "op_handler_jobs"}
            head = {"jobs": [], "last_backfill": wire.number_struct(0), "last_update": wire.number_struct(0)}
            return self._json_answer(head, warnings=[warning])
        return http.json_response(self._jobs_json(self._controller.jobs.values()))

    async def job_states(self, request: Request) -> Response:
        return self._json_answer(wire.job_states_body(self._controller.jobs.values()))

    async def job(self, request: Request) -> Response:
        return http.json_response(self._jobs_json([self._controller.job(http.job_id_from_path(request))]))

    async def accounted_jobs(self, request: Request) -> Response:
        """Jobs that the controller remembers, and jobs that it has forgotten."""
        query = accounting.parse_accounting_query(request.query_params)
        remembered = dict(self._controller.jobs)
        await self._commits.flush()  # so that all forgotten jobs are in the store
        return await run_in_threadpool(self._accounting_response, query, remembered)

    def _accounting_response(
        self, query: accounting.AccountingQuery, remembered: Mapping[int, SimulatedJob]
    ) -> Response:
        forgotten = {job.id: job for job in self._store.accounting_jobs_since(query.start_time)}
        jobs = sorted({**forgotten, **remembered}.values(), key=lambda job: job.id)
        return self._slurmdb_answer(
            accounting.accounting_jobs_body(self._cluster, filter(query.matches, jobs), time.time())
        )

    async def accounted_job(self, request: Request) -> Response:
        """A job by id. As in Slurm, accounting returns an empty list for an unknown job; only the controller fails."""
        job_id = http.job_id_from_path(request)
        remembered = self._controller.jobs.get(job_id)
        await self._commits.flush()
        jobs = [remembered] if remembered else await run_in_threadpool(self._store.accounting_jobs, job_id)
        return self._slurmdb_answer(accounting.accounting_jobs_body(self._cluster, jobs, time.time()))

    async def accounts(self, request: Request) -> Response:
        return self._slurmdb_answer(accounting.accounts_body(self._controller.jobs.values()))

    async def associations(self, request: Request) -> Response:
        return self._slurmdb_answer(accounting.associations_body(self._cluster, self._controller.jobs.values()))

    async def qos(self, request: Request) -> Response:
        return self._slurmdb_answer(accounting.qos_body())

    async def nodes(self, request: Request) -> Response:
        return self._json_answer(wire.nodes_body(self._controller, self._cluster, self._controller.nodes.values()))

    async def node(self, request: Request) -> Response:
        name = request.path_params["name"]
        try:
            node_row = self._controller.node(name)
        except SlurmError as error:  # Slurm-web recognizes a missing node by Slurm's message
            raise InvalidRequest(error.number, error.words, f"Failure to query node {name:.80}") from None
        return self._json_answer(wire.nodes_body(self._controller, self._cluster, [node_row]))

    async def metrics(self, request: Request) -> Response:
        now, real = time.time(), self._options.execute
        samples = await self._host_samples() if real else self._read_meters(now)
        ports = () if real else dcgm_exporter.nic_ports(self._controller, now=now)
        page = dcgm_exporter.exporter_page(samples, ports, {} if real else node_power_w(samples))
        return PlainTextResponse(page, media_type="text/plain; version=0.0.4")

    # Doing

    async def submit(self, request: Request) -> Response:
        submission = request_bodies.parse_job_request(await http.read_json_body(request), self._user_of(request))
        if not self._options.execute:
            submission = self._with_plan(submission)
            _check_environment_hints(submission.environment)
        job = self._controller.submit(submission, time.time())
        await self._commits.flush()
        return self._json_answer({"job_id": job.id, "step_id": "batch", "job_submit_user_msg": ""})

    async def update_job(self, request: Request) -> Response:
        changed = request_bodies.parse_job_update(await http.read_json_body(request))
        self._controller.update(http.job_id_from_path(request), changed, time.time())
        await self._commits.flush()
        return self._json_answer({"job_id": str(http.job_id_from_path(request)), "step_id": "", "results": []})

    async def cancel(self, request: Request) -> Response:
        """Cancel or signal a job. The status is 200 with an error per job, even if there is nothing to cancel."""
        job_id, signal_name = http.job_id_from_path(request), request.query_params.get("signal", "")
        outcome: dict[str, Any] = {"string": "", "code": 0, "message": ""}
        try:
            if signal_name:
                aim = request_bodies.parse_signal_target(request.query_params.get("flags", ""))
                self._controller.signal(job_id, request_bodies.parse_signal(signal_name), time.time(), aim)
            else:
                self._controller.cancel(job_id, time.time())
        except SlurmError as error:
            outcome = {"string": error.words, "code": error.number, "message": error.words}
        await self._commits.flush()
        status = {"error": outcome, "step_id": str(job_id), "job_id": wire.number_struct(job_id)}
        return self._json_answer({"status": [status]})

    async def update_node(self, request: Request) -> Response:
        name, body = request.path_params["name"], await http.read_json_body(request)
        update = request_bodies.parse_node_update(body)
        self._change_node(name, update, self._user_of(request), time.time())
        await self._commits.flush()
        return self._json_answer({})

    def _change_node(self, name: str, update: request_bodies.NodeUpdate, by: str, now: float) -> None:
        if update.state in ("RESUME", "UNDRAIN"):
            self._controller.resume(name, now)
        elif update.state == "DOWN":
            self._controller.set_down(name, update.reason, by, now)
        elif update.state in ("POWER_DOWN", "POWER_UP"):
            (self._controller.power_down if update.state == "POWER_DOWN" else self._controller.power_up)(name, now)
        elif update.state == "DRAIN" and not update.reason:
            raise InvalidRequest(wire.BAD_FLAG, "You must specify a reason when DRAINING a node", "#/reason/")
        else:
            self._controller.drain(name, update.reason, by, now)

    # Simulated clusters only

    async def kernel_log(self, request: Request) -> Response:
        """The output of `journalctl -k` on the node; kernel/NODE.log below the log root contains the same lines."""
        node = self._controller.node(request.path_params["name"])
        lines = kernel_log.kernel_log_lines(
            node, self._controller.faults, now=time.time(), offset_s=self._controller.clock_offset_s
        )
        return PlainTextResponse("".join(f"{line}\n" for line in lines))

    async def faults(self, request: Request) -> Response:
        """The true faults, for measuring how well they are detected."""
        return self._json_answer({"faults": [fault_body(one) for one in self._controller.faults]})

    async def inject_fault(self, request: Request) -> Response:
        wanted, now = request_bodies.parse_fault(await http.read_json_body(request)), time.time()
        if wanted.job is None:
            fault = self._controller.inject_fault(wanted.kind, now, node=wanted.node, gpu=wanted.gpu)
        else:
            fault = self._controller.inject_job_fault(wanted.kind, wanted.job, now)
        await self._commits.flush()
        return self._json_answer({"fault": fault_body(fault)})

    async def clocks(self, request: Request) -> Response:
        """The nodes whose GPUs have a lower clock than their highest."""
        return self._json_answer({"clocks": lowered_clocks(self._controller.nodes.values())})

    async def set_clocks(self, request: Request) -> Response:
        """Set the clocks of GPUs, as a program on the nodes would."""
        clocks, now = parse_clocks(await http.read_json_body(request)), time.time()
        self._read_meters(now)  # their energy so far is that of the clocks before
        self._controller.set_clocks(clocks, now)
        await self._commits.flush()
        return self._json_answer({"clocks": lowered_clocks(self._controller.nodes.values())})

    async def plan_jobs(self, request: Request) -> Response:
        """Decide how jobs will go before they are submitted, so that their requests need not say it."""
        plans = parse_job_plans(await http.read_json_body(request))
        self._store.save_job_plans(plans)
        return self._json_answer({"plans": len(plans)})

    async def store_logs(self, request: Request) -> Response:
        """Write whole logs of jobs that ran before the cluster was started, in the history of a demo."""
        logs = request_bodies.parse_job_logs(await http.read_json_body(request))
        try:
            await run_in_threadpool(write_whole_logs, self._options.log_root, logs)
        except InvalidLogPath as error:
            raise InvalidRequest(wire.BAD_FLAG, str(error), "#/logs/") from None
        return self._json_answer({"logs": len(logs)})

    def _with_plan(self, submission: SimulatedJobRequest) -> SimulatedJobRequest:
        """The request with the SIM_ variables of the job's plan. Those of the request itself take precedence."""
        key = submission.comment.rpartition(".")[0].rpartition(":")[2]
        if not key:
            return submission
        return replace(submission, environment={**self._store.job_plan(key), **submission.environment})

    async def clock(self, request: Request) -> Response:
        return self._json_answer({"offset_s": self._controller.clock_offset_s})

    async def set_clock(self, request: Request) -> Response:
        """Set the wall clock of the whole cluster, as an administrator or a wrong time server might."""
        self._controller.set_clock_offset(request_bodies.parse_clock_offset(await http.read_json_body(request)))
        await self._commits.flush()
        return self._json_answer({"offset_s": self._controller.clock_offset_s})

    # Background work

    async def _run_clock(self) -> None:
        """Advance the cluster's time. Changes that were reported are written before anything follows from them."""
        while True:
            await self._commits.flush()
            now = time.time()
            self._controller.advance_to(now)
            self._job_logs.write(now)
            controller = self._controller
            self._kernel_logs.write(controller.nodes.values(), controller.faults, now, controller.clock_offset_s)
            if not self._options.execute and now - self._meters_read_at >= METER_INTERVAL_S:
                self._read_meters(now)
            await self._commits.flush()
            await asyncio.sleep(TICK_S)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        life = asyncio.create_task(self._run_clock())
        life.add_done_callback(stop_on_clock_error)
        yield
        if self._options.execute:
            await self._end_jobs(life)
        life.remove_done_callback(stop_on_clock_error)
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        await self._commits.flush()
        self._store.close()
        self._effects.close()

    async def _end_jobs(self, life: asyncio.Task[None]) -> None:
        """End all jobs on a clean stop: without the server, their limits are not enforced and they cannot be cancelled.

        After kill -9 they continue, and the next server adopts them, as it adopts processes that survive KILL.
        """
        self._controller.shut_down(SHUTDOWN_REASON, time.time())
        limit = time.monotonic() + SHUTDOWN_TIMEOUT_S
        while not self._controller.empty and not life.done() and time.monotonic() < limit:
            await asyncio.sleep(TICK_S / 2)

    def _drop_purged_jobs(self, changes: StateChanges) -> None:
        for job in changes.forgotten:
            self._texts.pop(job.id, None)
        if changes.forgotten and self._options.execute:
            self._process_executor.prune(self._controller.jobs.keys())

    # Helpers

    def _load_or_create_snapshot(self, now: float) -> SimulatorSnapshot:
        """The stored state, or a new one. A stored simulated cluster keeps the nodes that it was created with."""
        stored = self._store.load()
        fresh = SimulatorSnapshot(nodes=tuple(_initial_nodes(self._options, now)))
        if stored is None:
            self._store.begin(fresh)
            return fresh
        _check_same_cluster(stored, fresh)
        return _with_current_hardware(stored, fresh) if self._options.execute else stored

    def _jobs_json(self, jobs: Iterable[SimulatedJob]) -> bytes:
        """The JSON of all jobs. There are many and few change, so each job's text is cached until it changes."""
        entries = b",".join(self._job_json(job) for job in jobs)
        head = {"last_backfill": wire.number_struct(0), "last_update": wire.number_struct(self._last_job_change())}
        rest = json.dumps(wire.envelope(self._cluster, head)).encode()
        return b'{"jobs":[' + entries + b"]," + rest[1:]

    def _last_job_change(self) -> float:
        return self._controller.last_job_change + self._controller.clock_offset_s

    def _job_json(self, job: SimulatedJob) -> bytes:
        cached = self._texts.get(job.id)
        if cached is not None and cached[0] is job:
            return cached[1]
        text = json.dumps(wire.job_body(self._cluster, job), separators=(",", ":")).encode()
        self._texts[job.id] = (job, text)
        return text

    def _json_answer(self, content: wire.JsonObject, *, status: int = 200, **more: Any) -> Response:
        return http.json_response(json.dumps(wire.envelope(self._cluster, content, **more)).encode(), status)

    def _slurmdb_answer(self, content: wire.JsonObject) -> Response:
        return self._json_answer(content, plugin="slurmdbd")

    def _read_meters(self, now: float) -> list[dcgm_exporter.GpuSample]:
        run, nodes = self._simulator.run_of_job, self._controller.nodes.values()
        samples = dcgm_exporter.simulated_samples(self._controller, run, seed=self._seed, now=now)
        self._meters_read_at = now
        return self._meters.read(samples, {node.name: node.boot_at for node in nodes}, now)

    async def _host_samples(self) -> list[dcgm_exporter.GpuSample]:
        at, known = self._samples
        if time.time() - at > SAMPLES_MAX_AGE_S:
            known = await run_in_threadpool(lambda: list(host.gpu_samples()))
            self._samples = (time.time(), known)
        return known

    def _user_of(self, request: Request) -> str:
        return request.headers.get("X-SLURM-USER-NAME", "") or self._user


def _check_environment_hints(environment: Mapping[str, str]) -> None:
    """Reject invalid hints at submission; otherwise a typo would be ignored without notice."""
    try:
        check_hints(environment)
    except InvalidInput as error:
        raise InvalidRequest(wire.BAD_TYPE, str(error), "#/job/environment/") from None


def _initial_nodes(options: ServerOptions, now: float) -> Iterable[Any]:
    if options.execute:
        yield host.this_node(now)
        return
    width = max(3, len(str(options.nodes)))
    names = (f"{options.name}-{i:0{width}d}" for i in range(1, options.nodes + 1))
    nodes = build_nodes(
        names,
        gpus=options.gpus_per_node,
        gpu_model=options.gpu_model,
        shards_per_gpu=options.shards_per_gpu,
        now=now,
    )
    for node in nodes:
        offers_mps = node.name in options.mps_nodes
        yield replace(node, share_gres=MPS, shards_per_gpu=MPS_PER_GPU) if offers_mps else node


def _check_same_cluster(stored: SimulatorSnapshot, fresh: SimulatorSnapshot) -> None:
    """Raise SystemExit if the state belongs to another cluster, for example one of another machine."""
    before, now = ({node.name for node in snapshot.nodes} for snapshot in (stored, fresh))
    if not before & now:
        raise SystemExit(
            f"--state: this directory belongs to the cluster of {min(before)}, but this is the cluster of {min(now)}"
        )


def _with_current_hardware(stored: SimulatorSnapshot, fresh: SimulatorSnapshot) -> SimulatorSnapshot:
    """Keep what operators set on the node, and update its hardware."""
    (old,), (new,) = stored.nodes, fresh.nodes
    node = replace(
        new, drained=old.drained, down=old.down, reason=old.reason, reason_by=old.reason_by, reason_at=old.reason_at
    )
    return replace(stored, nodes=(node,))


def main(arguments: list[str]) -> None:
    options = parse_options(arguments)
    listening = open_server(options)
    app = ClusterServer(options).app()
    address = f"http://{options.bind}:{listening.getsockname()[1]}"
    serve(app, listening, address, timeout_graceful_shutdown=3)


if __name__ == "__main__":
    main(sys.argv[1:])
