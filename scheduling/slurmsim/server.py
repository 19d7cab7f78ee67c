"""A cluster as a process: slurmrestd's paths and GPU telemetry over HTTP, on a world that plays or really runs jobs.

    python -m scheduling.slurmsim.server --state DIR --port 6820            a simulated cluster
    python -m scheduling.slurmsim.server --state DIR --port 6820 --execute --token-file FILE
                                                                             this machine

One process, one event loop: every call of the world happens on it, so none ever meets another halfway. An answer that
says "done" leaves only when the change is on the disk; changes of requests that arrive together are written together.
Whoever speaks to it cannot tell which kind it is, and must not.

Jobs are commands, so with --token-file everything under /slurm asks for the token, and browsers are sent away: a page
from anywhere could otherwise post to the loopback. /metrics stays open, as a DCGM exporter's is; it only tells.
"""

from __future__ import annotations

import asyncio
import fcntl
import getpass
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from . import accounting, dcgm_exporter, http, request_bodies, wire
from .commits import CommitQueue
from .controller import ClusterController
from .effects import EffectsFile
from .execution import host
from .execution.attempt_records import AttemptRecords
from .execution.runner import ProcessExecutor
from .faults import FaultModel
from .http import Handler
from .options import InvalidOption, ServerOptions, parse_options
from .scripts import kernel_log as kernellog
from .scripts.logs import JobLogWriter, KernelLogWriter
from .scripts.play import InvalidSimHint, SimulatedExecutor, check_hints
from .store import StateStore
from .values import ControllerTiming, SimulatorSnapshot, SlurmError, SlurmJob, StateChanges, build_nodes
from .wire import API, ClusterInfo, InvalidRequest

log = logging.getLogger("acme.cluster")

TICK_S = 0.1
SHUTDOWN_TIMEOUT_S = 7.0  # to end all jobs: TERM, KILL after the world's kill_wait_s, and a moment for what KILL leaves
SHUTDOWN_REASON = "the machine was shut down"
SAMPLES_MAX_AGE_S = 2.0  # nvidia-smi takes a moment: its answer serves everyone who asks within this time


class ClusterServer:
    """One running cluster: its world, its store, and the answers to requests."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._cluster = ClusterInfo(name=options.name, execute=options.execute, accounting=options.accounting)
        self._store = StateStore(options.state / "cluster.sqlite3", accounting=options.accounting)
        self._seed = int(self._store.setting_or_default("seed", str(options.seed)))
        self._effects = EffectsFile(options.state)
        records = AttemptRecords(options.log_root, clock_offset_s=lambda: self._world.clock_offset_s)
        self._book = JobLogWriter(options.log_root, records)
        self._kernels = KernelLogWriter(options.log_root)
        self._players = SimulatedExecutor(
            seed=self._seed,
            speed=options.speed,
            trial_speed=options.trial_speed,
            stage=self._book,
            effects=self._effects,
        )
        jobs = options.state / "jobs"
        self._runners = ProcessExecutor(
            state=jobs, log_root=options.log_root, accounts=options.accounts, effects=self._effects
        )
        hands = self._runners if options.execute else self._players
        now = time.time()
        faults = FaultModel(per_node_day=options.faults, seed=self._seed, speed=options.speed)
        timing = ControllerTiming(configure_s=options.configure_s, min_job_age_s=options.min_job_age_s)
        self._world = ClusterController(self._load_or_create_snapshot(now), hands, now, faults=faults, timing=timing)
        self._world.advance_to(now)  # what was due while nobody was here
        self._commits = CommitQueue(self._world, self._store, self._drop_purged_jobs)
        self._texts: dict[int, tuple[SlurmJob, bytes]] = {}
        self._samples: tuple[float, list[dcgm_exporter.GpuSample]] = (0.0, [])
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
                ("GET", "/troubles", self.troubles),
                ("POST", "/troubles", self.inject_fault),
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
        return self._json_answer(wire.diag_body(self._world, time.time()))

    async def partitions(self, request: Request) -> Response:
        return self._json_answer(wire.partitions_body(self._world))

    async def reservations(self, request: Request) -> Response:
        return self._json_answer(wire.reservations_body(self._world))

    async def jobs(self, request: Request) -> Response:
        """All of them, or with ?update_time none at all when nothing moved since: Slurm's rule."""
        since = http.update_time_from_query(request)
        if since is not None and self._last_job_change() < since:
            warning = {"description": f"No job changes since update_time[{since}]", "source": "op_handler_jobs"}
            head = {"jobs": [], "last_backfill": wire.number_struct(0), "last_update": wire.number_struct(0)}
            return self._json_answer(head, warnings=[warning])
        return http.json_response(self._jobs_json(self._world.jobs.values()))

    async def job_states(self, request: Request) -> Response:
        return self._json_answer(wire.job_states_body(self._world.jobs.values()))

    async def job(self, request: Request) -> Response:
        return http.json_response(self._jobs_json([self._world.job(http.job_id_from_path(request))]))

    async def accounted_jobs(self, request: Request) -> Response:
        """Those that the controller remembers, and those that it has forgotten."""
        query = accounting.parse_accounting_query(request.query_params)
        remembered = dict(self._world.jobs)
        await self._commits.flush()  # so that a job which was forgotten before is in the store by now
        return await run_in_threadpool(self._accounting_response, query, remembered)

    def _accounting_response(self, query: accounting.AccountingQuery, remembered: Mapping[int, SlurmJob]) -> Response:
        forgotten = {job.id: job for job in self._store.accounted_since(query.start_time)}
        found = sorted({**forgotten, **remembered}.values(), key=lambda job: job.id)
        return self._slurmdb_answer(
            accounting.accounting_jobs_body(self._cluster, filter(query.matches, found), time.time())
        )

    async def accounted_job(self, request: Request) -> Response:
        """A job that nobody knows is an empty answer here, and an error only at the controller: Slurm's rule."""
        job_id = http.job_id_from_path(request)
        known = self._world.jobs.get(job_id)
        await self._commits.flush()
        found = [known] if known else await run_in_threadpool(self._store.accounted, job_id)
        return self._slurmdb_answer(accounting.accounting_jobs_body(self._cluster, found, time.time()))

    async def accounts(self, request: Request) -> Response:
        return self._slurmdb_answer(accounting.accounts_body(self._world.jobs.values()))

    async def associations(self, request: Request) -> Response:
        return self._slurmdb_answer(accounting.associations_body(self._cluster, self._world.jobs.values()))

    async def qos(self, request: Request) -> Response:
        return self._slurmdb_answer(accounting.qos_body())

    async def nodes(self, request: Request) -> Response:
        return self._json_answer(wire.nodes_body(self._world, self._cluster, self._world.nodes.values()))

    async def node(self, request: Request) -> Response:
        name = request.path_params["name"]
        try:
            one = self._world.node(name)
        except SlurmError as no:  # Slurm's words for it, by which Slurm-web tells a node that is not there from trouble
            raise InvalidRequest(no.number, no.words, f"Failure to query node {name:.80}") from None
        return self._json_answer(wire.nodes_body(self._world, self._cluster, [one]))

    async def metrics(self, request: Request) -> Response:
        now, real = time.time(), self._options.execute
        samples = await self._host_samples() if real else self._simulated_samples()
        ports = () if real else dcgm_exporter.nic_ports(self._world, now=now)
        return PlainTextResponse(dcgm_exporter.exporter_page(samples, ports), media_type="text/plain; version=0.0.4")

    # Doing

    async def submit(self, request: Request) -> Response:
        asked = request_bodies.parse_job_request(await http.read_json_body(request), self._user_of(request))
        if not self._options.execute:
            _check_environment_hints(asked.environment)
        job = self._world.submit(asked, time.time())
        await self._commits.flush()
        return self._json_answer({"job_id": job.id, "step_id": "batch", "job_submit_user_msg": ""})

    async def update_job(self, request: Request) -> Response:
        changed = request_bodies.parse_job_update(await http.read_json_body(request))
        self._world.update(http.job_id_from_path(request), changed, time.time())
        await self._commits.flush()
        return self._json_answer({"job_id": str(http.job_id_from_path(request)), "step_id": "", "results": []})

    async def cancel(self, request: Request) -> Response:
        """A cancellation is answered with 200 and an outcome per job, even where there is nothing to cancel."""
        job_id, named = http.job_id_from_path(request), request.query_params.get("signal", "")
        outcome: dict[str, Any] = {"string": "", "code": 0, "message": ""}
        try:
            if named:
                aim = request_bodies.parse_signal_target(request.query_params.get("flags", ""))
                self._world.signal(job_id, request_bodies.parse_signal(named), time.time(), aim)
            else:
                self._world.cancel(job_id, time.time())
        except SlurmError as no:
            outcome = {"string": no.words, "code": no.number, "message": no.words}
        await self._commits.flush()
        status = {"error": outcome, "step_id": str(job_id), "job_id": wire.number_struct(job_id)}
        return self._json_answer({"status": [status]})

    async def update_node(self, request: Request) -> Response:
        name, asked = request.path_params["name"], request_bodies.parse_node_update(await http.read_json_body(request))
        self._change_node(name, asked, self._user_of(request), time.time())
        await self._commits.flush()
        return self._json_answer({})

    def _change_node(self, name: str, asked: request_bodies.NodeUpdate, by: str, now: float) -> None:
        if asked.state in ("RESUME", "UNDRAIN"):
            self._world.resume(name, now)
        elif asked.state == "DOWN":
            self._world.set_down(name, asked.reason, by, now)
        elif asked.state == "DRAIN" and not asked.reason:
            raise InvalidRequest(wire.BAD_FLAG, "You must specify a reason when DRAINING a node", "#/reason/")
        else:
            self._world.drain(name, asked.reason, by, now)

    # What only a simulated cluster has

    async def kernel_log(self, request: Request) -> Response:
        """What `journalctl -k` on the node would print; the same lines lie in kernel/NODE.log beneath the log root."""
        node = self._world.node(request.path_params["name"])
        said = kernellog.kernel_log_lines(
            node, self._world.troubles, now=time.time(), offset_s=self._world.clock_offset_s
        )
        return PlainTextResponse("".join(f"{line}\n" for line in said))

    async def troubles(self, request: Request) -> Response:
        """The truth, for whoever measures how well it was found out."""
        return self._json_answer({"troubles": [wire.fault_body(one) for one in self._world.troubles]})

    async def inject_fault(self, request: Request) -> Response:
        kind, node, gpu = request_bodies.parse_fault(await http.read_json_body(request))
        begun = self._world.inject_fault(kind, time.time(), node=node, gpu=gpu)
        await self._commits.flush()
        return self._json_answer({"trouble": wire.fault_body(begun)})

    async def clock(self, request: Request) -> Response:
        return self._json_answer({"offset_s": self._world.clock_offset_s})

    async def set_clock(self, request: Request) -> Response:
        """Set the wall clock of the whole cluster ahead or back, as an administrator or a bad time server might."""
        self._world.set_clock_offset(request_bodies.parse_clock_offset(await http.read_json_body(request)))
        await self._commits.flush()
        return self._json_answer({"offset_s": self._world.clock_offset_s})

    # Between requests

    async def _run_clock(self) -> None:
        """The cluster's own time. Everything told before is written before anything follows from it."""
        while True:
            await self._commits.flush()
            now = time.time()
            self._world.advance_to(now)
            self._book.write(now)
            world = self._world
            self._kernels.write(world.nodes.values(), world.troubles, now, world.clock_offset_s)
            await self._commits.flush()
            await asyncio.sleep(TICK_S)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        life = asyncio.create_task(self._run_clock())
        life.add_done_callback(_stop_on_clock_error)
        yield
        if self._options.execute:
            await self._end_jobs(life)
        life.remove_done_callback(_stop_on_clock_error)
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        await self._commits.flush()
        self._store.close()
        self._effects.close()

    async def _end_jobs(self, life: asyncio.Task[None]) -> None:
        """A clean stop leaves no process: without us nobody would keep a job's limit or be able to cancel it.

        After kill -9 they do run on, and the next server adopts them; so it does with what outlives even KILL.
        """
        self._world.shut_down(SHUTDOWN_REASON, time.time())
        limit = time.monotonic() + SHUTDOWN_TIMEOUT_S
        while not self._world.empty and not life.done() and time.monotonic() < limit:
            await asyncio.sleep(TICK_S / 2)

    def _drop_purged_jobs(self, changes: StateChanges) -> None:
        for job in changes.forgotten:
            self._texts.pop(job.id, None)
        if changes.forgotten and self._options.execute:
            self._runners.prune(self._world.jobs.keys())

    # Pieces

    def _load_or_create_snapshot(self, now: float) -> SimulatorSnapshot:
        """The world as it was left; a new one where there is none. Its nodes are those it was made with."""
        stored = self._store.load()
        fresh = SimulatorSnapshot(nodes=tuple(_initial_nodes(self._options, now)))
        if stored is None:
            self._store.begin(fresh)
            return fresh
        _check_same_cluster(stored, fresh)
        return _with_current_hardware(stored, fresh) if self._options.execute else stored

    def _jobs_json(self, jobs: Iterable[SlurmJob]) -> bytes:
        """Jobs are many and move seldom: each one's text is made once per move."""
        entries = b",".join(self._job_json(job) for job in jobs)
        head = {"last_backfill": wire.number_struct(0), "last_update": wire.number_struct(self._last_job_change())}
        rest = json.dumps(wire.envelope(self._cluster, head)).encode()
        return b'{"jobs":[' + entries + b"]," + rest[1:]

    def _last_job_change(self) -> float:
        return self._world.last_job_change + self._world.clock_offset_s

    def _job_json(self, job: SlurmJob) -> bytes:
        known = self._texts.get(job.id)
        if known is not None and known[0] is job:
            return known[1]
        text = json.dumps(wire.job_body(self._cluster, job), separators=(",", ":")).encode()
        self._texts[job.id] = (job, text)
        return text

    def _json_answer(self, content: wire.JsonObject, *, status: int = 200, **rest: Any) -> Response:
        return http.json_response(json.dumps(wire.envelope(self._cluster, content, **rest)).encode(), status)

    def _slurmdb_answer(self, content: wire.JsonObject) -> Response:
        return self._json_answer(content, plugin="slurmdbd")

    def _simulated_samples(self) -> Iterable[dcgm_exporter.GpuSample]:
        return dcgm_exporter.simulated_samples(self._world, self._players.run_of_job, seed=self._seed, now=time.time())

    async def _host_samples(self) -> list[dcgm_exporter.GpuSample]:
        at, known = self._samples
        if time.time() - at > SAMPLES_MAX_AGE_S:
            known = await run_in_threadpool(lambda: list(host.gpu_samples()))
            self._samples = (time.time(), known)
        return known

    def _user_of(self, request: Request) -> str:
        return request.headers.get("X-SLURM-USER-NAME", "") or self._user


async def healthz(request: Request) -> Response:
    return PlainTextResponse("ok")


def _check_environment_hints(environment: Mapping[str, str]) -> None:
    """A hint with a slip in it would otherwise be played as if it were not there, and nobody would know why."""
    try:
        check_hints(environment)
    except InvalidSimHint as bad:
        raise InvalidRequest(wire.BAD_TYPE, str(bad), "#/job/environment/") from None


def _stop_on_clock_error(life: asyncio.Task[None]) -> None:
    """A cluster whose time stands still must not go on answering."""
    if not life.cancelled() and (error := life.exception()):
        log.critical("the cluster's time stands still; the server stops", exc_info=error)
        os.kill(os.getpid(), signal.SIGTERM)


def _initial_nodes(options: ServerOptions, now: float) -> Iterable[Any]:
    if options.execute:
        return [host.this_node(now)]
    width = max(3, len(str(options.nodes)))
    names = (f"{options.name}-{i:0{width}d}" for i in range(1, options.nodes + 1))
    return build_nodes(names, gpus=options.gpus_per_node, gpu_model=options.gpu_model, now=now)


def _check_same_cluster(stored: SimulatorSnapshot, fresh: SimulatorSnapshot) -> None:
    """`make up` with and without the demo, or on another machine, needs a state directory for each."""
    before, now = ({node.name for node in picture.nodes} for picture in (stored, fresh))
    if not before & now:
        raise InvalidOption(
            f"--state: it belongs to the cluster of {min(before)}, and this is the cluster of {min(now)}"
        )


def _with_current_hardware(stored: SimulatorSnapshot, fresh: SimulatorSnapshot) -> SimulatorSnapshot:
    """What an operator said of the node stays; what the machine has is looked at again."""
    (was,), (found,) = stored.nodes, fresh.nodes
    kept = replace(
        found, drained=was.drained, down=was.down, reason=was.reason, reason_by=was.reason_by, reason_at=was.reason_at
    )
    return replace(stored, nodes=(kept,))


# Starting


def _lock_state_directory(state: Path) -> int:
    """Two servers on one state would tell two stories: the second one does not start."""
    lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidOption(f"--state: another server is at work in {state}") from None
    return lock


def _open_listening_socket(bind: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((bind, port))
        listening.listen(2048)  # whoever reads our line may connect at once; it waits until we are ready
    except OSError as error:
        raise InvalidOption(f"--port: {bind}:{port} cannot be used ({error.strerror})") from None
    return listening


def main(arguments: list[str]) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    options = parse_options(arguments)
    os.umask(0o027)  # what jobs ask for and say is for the group at most
    options.state.mkdir(parents=True, exist_ok=True)
    with suppress(PermissionError):  # a directory of somebody else stays as they left it
        options.state.chmod(0o750)
    options.log_root.mkdir(parents=True, exist_ok=True)
    _lock_state_directory(options.state)
    listening = _open_listening_socket(options.bind, options.port)
    app = ClusterServer(options).app()
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=3)
    server = uvicorn.Server(config)
    # uvicorn stops cleanly, then raises the signal again: with this the exit is 0, and a TERM before it listens counts
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.handle_exit)
    print(f"listening on http://{options.bind}:{listening.getsockname()[1]}", flush=True)
    server.run(sockets=[listening])
    # All is stopped and stored. Threads that still wait for something would meet a half dismantled interpreter, which
    # was seen to end in a segmentation fault
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
