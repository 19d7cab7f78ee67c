"""A cluster as a process: slurmrestd's paths and GPU telemetry over HTTP, on a world that plays or really runs jobs.

    python -m scheduling.simulator.server --state DIR --port 6820            a simulated cluster
    python -m scheduling.simulator.server --state DIR --port 6820 --execute --token-file FILE
                                                                             this machine

One process, one event loop: every call of the world happens on it, so none ever meets another halfway. An answer that
says "done" leaves only when the change is on the disk; changes of requests that arrive together are written together.
Whoever speaks to it cannot tell which kind it is, and must not.

Jobs are commands, so with --token-file everything under /slurm asks for the token, and browsers are sent away: a page
from anywhere could otherwise post to the loopback. /metrics stays open, as a DCGM exporter's is; it only tells.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import getpass
import hmac
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from . import exporter, host, wire
from .execute import Account, ExecuteHands, account_for
from .logs import LogBook
from .play import BadHint, PlayHands, check_hints
from .store import Store
from .wire import API, BadBody, Cluster
from .world import Changes, Faults, Job, Picture, Refusal, Timing, World, plan_nodes

log = logging.getLogger("acme.cluster")

TICK_S = 0.1
GIVE_UP_S = 7.0  # to end all jobs: TERM, KILL after the world's kill_wait_s, and a moment for what KILL leaves
SHUT_DOWN = "the machine was shut down"
BODY_LIMIT = 4 * 1024 * 1024
SAMPLES_FOR_S = 2.0  # nvidia-smi takes a moment: its answer serves everyone who asks within this time
Handler = Callable[[Request], Awaitable[Response]]


class BadStart(SystemExit):
    """An option nobody can start with: one sentence."""


class Commits:
    """Writes the world's changes, many requests at a time, and tells each when its own are on the disk."""

    def __init__(self, world: World, store: Store, forget: Callable[[Changes], None]) -> None:
        self._world, self._store, self._forget = world, store, forget
        self._asked = self._done = 0
        self._turn = asyncio.Lock()

    async def flush(self) -> None:
        """Return when everything that changed before the call is on the disk."""
        self._asked += 1
        mine = self._asked
        async with self._turn:
            if self._done >= mine:
                return
            covered, changes = self._asked, self._world.take_changes()
            if changes:
                await self._write(changes)
            self._done = covered

    async def _write(self, changes: Changes) -> None:
        try:
            await run_in_threadpool(self._store.write, changes)
        except Exception:
            # What is in memory is now more than what is on the disk: going on would promise what a restart forgets.
            log.critical("the state cannot be written; the server stops", exc_info=True)
            os._exit(1)
        self._forget(changes)


@dataclass(frozen=True, kw_only=True)
class Options:
    state: Path
    port: int
    bind: str = "127.0.0.1"
    name: str = "seren"
    nodes: int = 32
    gpus_per_node: int = 8
    gpu_model: str = "a100"
    seed: int = 0
    speed: float = 60.0
    faults: float = 0.0
    configure_s: float = 1.0
    token: str = ""
    execute: bool = False
    log_root: Path = Path()
    account: Account | None = None  # as whom jobs run; nobody's where they are played


class Server:
    """One running cluster: its world, its store, and the answers to requests."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._cluster = Cluster(name=options.name, execute=options.execute)
        self._store = Store(options.state / "cluster.sqlite3")
        self._seed = int(self._store.setting("seed", str(options.seed)))
        self._book = LogBook(options.log_root)
        self._players = PlayHands(seed=self._seed, speed=options.speed, stage=self._book)
        jobs = options.state / "jobs"
        self._runners = ExecuteHands(state=jobs, log_root=options.log_root, account=options.account)
        hands = self._runners if options.execute else self._players
        now = time.time()
        faults = Faults(per_node_day=options.faults, seed=self._seed, speed=options.speed)
        timing = Timing(configure_s=options.configure_s)
        self._world = World(self._picture(now), hands, now, faults=faults, timing=timing)
        self._world.advance(now)  # what was due while nobody was here
        self._commits = Commits(self._world, self._store, self._forget)
        self._texts: dict[int, tuple[Job, bytes]] = {}
        self._samples: tuple[float, list[exporter.GpuSample]] = (0.0, [])
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
        routes = [Route(path, self._guarded(handler), methods=[method]) for method, path, handler in paths]
        routes += [Route("/metrics", self.metrics), Route("/healthz", healthz)]
        return Starlette(routes=routes, lifespan=self._lifespan)

    # Reading

    async def ping(self, request: Request) -> Response:
        return self._answer(wire.ping(self._cluster))

    async def diag(self, request: Request) -> Response:
        return self._answer(wire.diag(self._world, time.time()))

    async def partitions(self, request: Request) -> Response:
        return self._answer(wire.partitions(self._world))

    async def jobs(self, request: Request) -> Response:
        """All of them, or with ?update_time none at all when nothing moved since: Slurm's rule."""
        since = _since(request)
        if since is not None and self._world.last_job_change < since:
            warning = {"description": f"No job changes since update_time[{since}]", "source": "op_handler_jobs"}
            head = {"jobs": [], "last_backfill": wire.number(0), "last_update": wire.number(0)}
            return self._answer(head, warnings=[warning])
        return _json(self._jobs_text(self._world.jobs.values()))

    async def job_states(self, request: Request) -> Response:
        return self._answer(wire.job_states(self._world.jobs.values()))

    async def job(self, request: Request) -> Response:
        return _json(self._jobs_text([self._world.job(_job_id(request))]))

    async def nodes(self, request: Request) -> Response:
        return self._answer(wire.nodes(self._world, self._cluster, self._world.nodes.values()))

    async def node(self, request: Request) -> Response:
        one = self._world.node(request.path_params["name"])
        return self._answer(wire.nodes(self._world, self._cluster, [one]))

    async def metrics(self, request: Request) -> Response:
        samples = await self._host_samples() if self._options.execute else self._simulated_samples()
        return PlainTextResponse(exporter.page(samples), media_type="text/plain; version=0.0.4")

    # Doing

    async def submit(self, request: Request) -> Response:
        asked = wire.request_of(await _body(request), self._user_of(request))
        if not self._options.execute:
            _understood(asked.environment)
        job = self._world.submit(asked, time.time())
        await self._commits.flush()
        return self._answer({"job_id": job.id, "step_id": "batch", "job_submit_user_msg": ""})

    async def update_job(self, request: Request) -> Response:
        changed = wire.job_update_of(await _body(request))
        self._world.update(_job_id(request), changed, time.time())
        await self._commits.flush()
        return self._answer({"job_id": str(_job_id(request)), "step_id": "", "results": []})

    async def cancel(self, request: Request) -> Response:
        """A cancellation is answered with 200 and an outcome per job, even where there is nothing to cancel."""
        job_id, named = _job_id(request), request.query_params.get("signal", "")
        outcome: dict[str, Any] = {"string": "", "code": 0, "message": ""}
        try:
            if named:
                aim = wire.aim_of(request.query_params.get("flags", ""))
                self._world.signal(job_id, wire.signal_of(named), time.time(), aim)
            else:
                self._world.cancel(job_id, time.time())
        except Refusal as no:
            outcome = {"string": no.words, "code": no.number, "message": no.words}
        await self._commits.flush()
        status = {"error": outcome, "step_id": str(job_id), "job_id": wire.number(job_id)}
        return self._answer({"status": [status]})

    async def update_node(self, request: Request) -> Response:
        name, asked = request.path_params["name"], wire.node_update_of(await _body(request))
        self._change_node(name, asked, self._user_of(request), time.time())
        await self._commits.flush()
        return self._answer({})

    def _change_node(self, name: str, asked: wire.NodeUpdate, by: str, now: float) -> None:
        if asked.state in ("RESUME", "UNDRAIN"):
            self._world.resume(name, now)
        elif asked.state == "DOWN":
            self._world.set_down(name, asked.reason, by, now)
        elif asked.state == "DRAIN" and not asked.reason:
            raise BadBody(wire.BAD_FLAG, "You must specify a reason when DRAINING a node", "#/reason/")
        else:
            self._world.drain(name, asked.reason, by, now)

    # Between requests

    async def _live(self) -> None:
        """The cluster's own time. Everything told before is written before anything follows from it."""
        while True:
            await self._commits.flush()
            now = time.time()
            self._world.advance(now)
            self._book.write(now)
            await self._commits.flush()
            await asyncio.sleep(TICK_S)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        life = asyncio.create_task(self._live())
        life.add_done_callback(_stop_with)
        yield
        if self._options.execute:
            await self._end_jobs(life)
        life.remove_done_callback(_stop_with)
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        await self._commits.flush()
        self._store.close()

    async def _end_jobs(self, life: asyncio.Task[None]) -> None:
        """A clean stop leaves no process: without us nobody would keep a job's limit or be able to cancel it.

        After kill -9 they do run on, and the next server adopts them; so it does with what outlives even KILL.
        """
        self._world.shut_down(SHUT_DOWN, time.time())
        limit = time.monotonic() + GIVE_UP_S
        while not self._world.empty and not life.done() and time.monotonic() < limit:
            await asyncio.sleep(TICK_S / 2)

    def _forget(self, changes: Changes) -> None:
        for job_id in changes.forgotten:
            self._texts.pop(job_id, None)
        if changes.forgotten and self._options.execute:
            self._runners.prune(self._world.jobs.keys())

    # Pieces

    def _picture(self, now: float) -> Picture:
        """The world as it was left; a new one where there is none. Its nodes are those it was made with."""
        stored = self._store.load()
        fresh = Picture(nodes=tuple(_nodes(self._options, now)))
        if stored is None:
            self._store.begin(fresh)
            return fresh
        if not self._options.execute:
            return stored
        return _on_this_machine(stored, fresh)

    def _jobs_text(self, jobs: Iterable[Job]) -> bytes:
        """Jobs are many and move seldom: each one's text is made once per move."""
        entries = b",".join(self._text_of(job) for job in jobs)
        head = {"last_backfill": wire.number(0), "last_update": wire.number(self._world.last_job_change)}
        rest = json.dumps(wire.envelope(self._cluster, head)).encode()
        return b'{"jobs":[' + entries + b"]," + rest[1:]

    def _text_of(self, job: Job) -> bytes:
        known = self._texts.get(job.id)
        if known is not None and known[0] is job:
            return known[1]
        text = json.dumps(wire.job(self._cluster, job), separators=(",", ":")).encode()
        self._texts[job.id] = (job, text)
        return text

    def _answer(self, content: wire.Plain, *, status: int = 200, **rest: Any) -> Response:
        return _json(json.dumps(wire.envelope(self._cluster, content, **rest)).encode(), status)

    def _simulated_samples(self) -> Iterable[exporter.GpuSample]:
        return exporter.simulated(self._world, self._players.play, seed=self._seed, now=time.time())

    async def _host_samples(self) -> list[exporter.GpuSample]:
        at, known = self._samples
        if time.time() - at > SAMPLES_FOR_S:
            known = await run_in_threadpool(lambda: list(host.gpu_samples()))
            self._samples = (time.time(), known)
        return known

    def _user_of(self, request: Request) -> str:
        return request.headers.get("X-SLURM-USER-NAME", "") or self._user

    def _guarded(self, handler: Handler) -> Handler:
        """Who asks comes before what is asked; then every no becomes errors[] in Slurm's words."""

        async def answer(request: Request) -> Response:
            if "Origin" in request.headers:
                return PlainTextResponse("A browser has no business here.", 403)
            if not self._admitted(request):
                return PlainTextResponse("Authentication failure", 401)
            if _has_foreign_body(request):
                no = BadBody(wire.UNPARSED, "Unable to parse query", "the body must be application/json")
                return self._answer({}, status=415, errors=[wire.error(no, handler.__name__)])
            try:
                return await handler(request)
            except (Refusal, BadBody) as no:
                return self._answer({}, status=wire.status_of(no), errors=[wire.error(no, handler.__name__)])
            except TooLarge:
                return PlainTextResponse("the body is larger than 4 MB", 413)
            except NotJson:
                return PlainTextResponse("Unable to parse query.", 400)
            except ClientDisconnect:
                return PlainTextResponse("", 400)

        return answer

    def _admitted(self, request: Request) -> bool:
        if not self._options.token:
            return True
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        given = request.headers.get("X-SLURM-USER-TOKEN", "") or bearer
        return hmac.compare_digest(given.encode(), self._options.token.encode())


class TooLarge(Exception):
    pass


class NotJson(Exception):
    pass


async def healthz(request: Request) -> Response:
    return PlainTextResponse("ok")


def _has_foreign_body(request: Request) -> bool:
    """A body that does not say it is JSON: what a browser may send to another's server without asking it first."""
    if request.headers.get("Content-Length", "0") == "0" and "Transfer-Encoding" not in request.headers:
        return False
    return request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json"


def _understood(environment: Mapping[str, str]) -> None:
    """A hint with a slip in it would otherwise be played as if it were not there, and nobody would know why."""
    try:
        check_hints(environment)
    except BadHint as bad:
        raise BadBody(wire.BAD_TYPE, str(bad), "#/job/environment/") from None


async def _body(request: Request) -> object:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > BODY_LIMIT:
            raise TooLarge
        parts.append(part)
    try:
        return json.loads(b"".join(parts))
    except (ValueError, RecursionError):
        raise NotJson from None


def _json(text: bytes, status: int = 200) -> Response:
    return Response(text, status, media_type="application/json")


def _job_id(request: Request) -> int:
    text = request.path_params["id"]
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise BadBody(wire.EMPTY_QUERY, "Query empty or not RFC7320 compliant", f"job id {text:.20}")
    return int(text)


def _since(request: Request) -> int | None:
    text = request.query_params.get("update_time", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else None


def _stop_with(life: asyncio.Task[None]) -> None:
    """A cluster whose time stands still must not go on answering."""
    if not life.cancelled() and (error := life.exception()):
        log.critical("the cluster's time stands still; the server stops", exc_info=error)
        os.kill(os.getpid(), signal.SIGTERM)


def _nodes(options: Options, now: float) -> Iterable[Any]:
    if options.execute:
        return [host.this_node(now)]
    width = max(3, len(str(options.nodes)))
    names = (f"{options.name}-{i:0{width}d}" for i in range(1, options.nodes + 1))
    return plan_nodes(names, gpus=options.gpus_per_node, gpu_model=options.gpu_model, now=now)


def _on_this_machine(stored: Picture, fresh: Picture) -> Picture:
    """What an operator said of the node stays; what the machine has is looked at again."""
    (was,), (found,) = stored.nodes, fresh.nodes
    if was.name != found.name:
        raise BadStart(f"--state: it belongs to {was.name}, and this machine is {found.name}")
    kept = replace(
        found, drained=was.drained, down=was.down, reason=was.reason, reason_by=was.reason_by, reason_at=was.reason_at
    )
    return replace(stored, nodes=(kept,))


# Starting


def options_of(arguments: list[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m scheduling.simulator.server", description=__doc__.split("\n")[0])
    parser.add_argument("--state", type=Path, required=True, help="directory that outlives the process")
    parser.add_argument("--port", type=int, required=True, help="0 takes a free one and prints it")
    parser.add_argument("--bind", default="127.0.0.1")
    parser.add_argument("--name", default="seren", help="of the cluster, and the beginning of its nodes' names")
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--gpus-per-node", type=int, default=8)
    parser.add_argument("--gpu-model", default="a100")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--speed", type=float, default=60.0, help="divides durations that the cluster draws itself")
    parser.add_argument("--faults", type=float, default=0.0, help="deaths per node and day, before --speed")
    parser.add_argument("--configure-s", type=float, default=1.0, help="from allocation to the start of the command")
    parser.add_argument("--token-file", type=Path, help="only who sends what it holds is answered; needed to --execute")
    parser.add_argument("--execute", action="store_true", help="run jobs on this machine")
    parser.add_argument("--job-user", default="nobody", help="as whom jobs run when root runs the server")
    parser.add_argument("--log-root", type=Path, help="jobs may write their output beneath it (default STATE/logs)")
    given = parser.parse_args(arguments)
    if given.execute and given.token_file is None:
        raise BadStart("--execute: whoever reaches the port could run commands here; name a --token-file")
    state = given.state.absolute()
    return Options(
        state=state,
        port=given.port,
        bind=given.bind,
        name=given.name,
        nodes=given.nodes,
        gpus_per_node=given.gpus_per_node,
        gpu_model=given.gpu_model,
        seed=given.seed,
        speed=_positive("--speed", given.speed),
        faults=given.faults,
        configure_s=given.configure_s,
        token=_token(given.token_file),
        execute=given.execute,
        account=_account(given.job_user) if given.execute else None,
        log_root=(given.log_root or state / "logs").absolute(),
    )


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise BadStart(f"{name}: {value} is not above 0")
    return value


def _token(path: Path | None) -> str:
    """An empty token file would open the door to everyone, so it is an error."""
    if path is None:
        return ""
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise BadStart(f"--token-file: {path} cannot be read ({error.strerror})") from None
    if not token:
        raise BadStart(f"--token-file: {path} is empty")
    return token


def _account(name: str) -> Account:
    try:
        return account_for(name)
    except KeyError:
        raise BadStart(f"--job-user: this machine has no user {name}") from None


def _sole_owner(state: Path) -> int:
    """Two servers on one state would tell two stories: the second one does not start."""
    lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BadStart(f"--state: another server is at work in {state}") from None
    return lock


def _listen(bind: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((bind, port))
        listening.listen(2048)  # whoever reads our line may connect at once; it waits until we are ready
    except OSError as error:
        raise BadStart(f"--port: {bind}:{port} cannot be used ({error.strerror})") from None
    return listening


def main(arguments: list[str]) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    options = options_of(arguments)
    os.umask(0o027)  # what jobs ask for and say is for the group at most
    options.state.mkdir(parents=True, exist_ok=True)
    with suppress(PermissionError):  # a directory of somebody else stays as they left it
        options.state.chmod(0o750)
    options.log_root.mkdir(parents=True, exist_ok=True)
    _sole_owner(options.state)
    listening = _listen(options.bind, options.port)
    app = Server(options).app()
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=3)
    server = uvicorn.Server(config)
    # uvicorn stops cleanly, then raises the signal again: with this the exit is 0, and a TERM before it listens counts
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.handle_exit)
    print(f"listening on http://{options.bind}:{listening.getsockname()[1]}", flush=True)
    server.run(sockets=[listening])


if __name__ == "__main__":
    main(sys.argv[1:])
