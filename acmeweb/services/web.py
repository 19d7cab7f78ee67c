"""The web server: python -m acmeweb.services.web --host 127.0.0.1 --port 8000

Several may listen on the same port; the kernel shares new connections out among them (SO_REUSEPORT). So `make up` has a
row for each in its table of programs, leashed and restarted by itself, and no parent could die and leave them behind.

A container is one program: with `--per-core` it is a parent that starts as many as `make up` would, and again one that
dies. If the parent dies, the container ends and all of them with it.
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
    # Forty bytes a message: compressing them would cost a thousand sockets more than sending them, and memory for each
    "ws_per_message_deflate": False,
}
BACKLOG = 2048


def main() -> None:
    parser = argparse.ArgumentParser(description="The web server of Acme.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--per-core", action="store_true", help="A process for each core, or ACME_WEB_PROCESSES.")
    asked = parser.parse_args()
    os.environ.setdefault("ACME_ROLE", "web")
    count = env.web_processes(env.EnvReader(os.environ)) if asked.per_core else 1
    if count > 1:
        uvicorn.run(**UVICORN_OPTIONS, host=asked.host, port=asked.port, workers=count, backlog=BACKLOG)
    else:
        family = socket.AF_INET6 if ":" in asked.host else socket.AF_INET
        here = socket.create_server((asked.host, asked.port), family=family, backlog=BACKLOG, reuse_port=True)
        uvicorn.Server(uvicorn.Config(**UVICORN_OPTIONS)).run(sockets=[here])


if __name__ == "__main__":
    main()
