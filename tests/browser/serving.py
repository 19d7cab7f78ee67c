"""The web server of the browser tests: modules are imported once, and each server is a fork.

Nearly all of a start is imports, and each test wants a server that knows nothing of the test before it. A line
`start PORT LOG` is answered with the number of the process that will serve there; when the input ends, so do they all.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from importlib import import_module

import uvicorn

from acmeweb.asgi import application


def serve(port: int, log: str) -> None:
    said = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream, to in ((0, os.open(os.devnull, os.O_RDONLY)), (1, said), (2, said)):
        os.dup2(to, stream)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    uvicorn.run(application, port=port, lifespan="off")


def main() -> None:
    import_module("acmeweb.urls")  # all pages and the API: the first request of each server would import them
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps ended children
    started = []
    for line in sys.stdin:
        _, port, log = line.rstrip("\n").split(" ", 2)
        if not (child := os.fork()):
            try:
                serve(int(port), log)
            finally:
                os._exit(1)
        started.append(child)
        print(child, flush=True)
    for child in started:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main()
