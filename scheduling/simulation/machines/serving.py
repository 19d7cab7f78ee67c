"""The servers of simulated clusters as processes: directories, port, and a stop that leaves everything stored."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from .options import SimulatorOptions

log = logging.getLogger("acme.cluster")


def open_server(options: SimulatorOptions) -> socket.socket:
    """Create the directories and open the port. Raises SystemExit if another server uses one of them."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    os.umask(0o027)  # job scripts and output are readable by the group at most
    options.state.mkdir(parents=True, exist_ok=True)
    with suppress(PermissionError):  # another user's directory keeps its mode
        options.state.chmod(0o750)
    options.log_root.mkdir(parents=True, exist_ok=True)
    _lock_state_directory(options.state)
    return _open_listening_socket(options.bind, options.port)


def _lock_state_directory(state: Path) -> None:
    """Lock the state directory until the process ends, so that a second server on the same state does not start."""
    lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit(f"--state: another server uses {state}") from None


def _open_listening_socket(bind: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((bind, port))
        listening.listen(2048)  # clients may connect as soon as the address is printed
    except OSError as error:
        raise SystemExit(f"--port: {bind}:{port} cannot be used ({error.strerror})") from None
    return listening


def serve(app: Starlette, listening: socket.socket, address: str, **config: Any) -> NoReturn:
    """Serve until a signal stops the process."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, **config))
    # uvicorn stops cleanly, then raises the signal again. This handler makes the exit code 0, also for an early TERM
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.handle_exit)
    print(f"listening on {address}", flush=True)
    server.run(sockets=[listening])
    # Everything is stopped and stored. Skip the interpreter's shutdown: threads that still wait have been seen to cause
    # a segmentation fault during it
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)


def stop_on_clock_error(life: asyncio.Task[None]) -> None:
    """Stop the server if the clock task failed: a cluster whose time does not advance must not respond."""
    if not life.cancelled() and (error := life.exception()):
        log.critical("the clock task failed; stopping the server", exc_info=error)
        os.kill(os.getpid(), signal.SIGTERM)


async def healthz(request: Request) -> Response:
    return PlainTextResponse("ok")
