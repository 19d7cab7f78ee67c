"""The web server: python -m acmeweb.services.web --host 127.0.0.1 --port 8000

Several processes may listen on the same port; the kernel distributes new connections among them (SO_REUSEPORT). So
`make up` has one program per process, each guarded and restarted by itself, and no parent that could die and leave them
behind.

A container runs one program: with `--per-core` it is a parent that starts as many processes as `make up` would, and
restarts them. If the parent dies, the container ends and all of them with it.
"""

from __future__ import annotations

import argparse
import os
import socket
from typing import Any

import uvicorn

from acmeweb.common import env

UVICORN_OPTIONS: dict[str, Any] = {
    "app": "acmeweb.asgi:application",
    "timeout_graceful_shutdown": 3,
    "server_header": False,
    "proxy_headers": False,  # uvicorn would believe X-Forwarded-For from 127.0.0.1; see acmeweb/auth/client_address.py
    # Messages have forty bytes: compressing them costs more CPU than sending them, and memory per socket
    "ws_per_message_deflate": False,
}
BACKLOG = 2048


def main() -> None:
    parser = argparse.ArgumentParser(description="The web server of Acme.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--per-core", action="store_true", help="start one process per core, or ACME_WEB_PROCESSES")
    options = parser.parse_args()
    os.environ.setdefault("ACME_ROLE", "web")
    count = env.web_processes(env.EnvReader(os.environ)) if options.per_core else 1
    if count > 1:
        uvicorn.run(**UVICORN_OPTIONS, host=options.host, port=options.port, workers=count, backlog=BACKLOG)
    else:
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        listener = socket.create_server((options.host, options.port), family=family, backlog=BACKLOG, reuse_port=True)
        uvicorn.Server(uvicorn.Config(**UVICORN_OPTIONS)).run(sockets=[listener])


if __name__ == "__main__":
    main()
