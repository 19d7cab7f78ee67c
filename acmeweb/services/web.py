"""One web process: python -m acmeweb.services.web --host 127.0.0.1 --port 8000

Several may listen on the same port; the kernel shares new connections out among them (SO_REUSEPORT). So each is a row
in the table of programs, leashed and restarted by itself, and there is no parent that could die and leave them behind.
"""

from __future__ import annotations

import argparse
import socket

import uvicorn


def main() -> None:
    parser = argparse.ArgumentParser(description="One web process of Acme.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    asked = parser.parse_args()
    family = socket.AF_INET6 if ":" in asked.host else socket.AF_INET
    here = socket.create_server((asked.host, asked.port), family=family, backlog=2048, reuse_port=True)
    config = uvicorn.Config("acmeweb.asgi:application", timeout_graceful_shutdown=3, server_header=False)
    uvicorn.Server(config).run(sockets=[here])


if __name__ == "__main__":
    main()
