"""The process that accesses shared file systems for others: it runs one requested function at a time.

A request is (module, function, arguments), an answer (success, value or exception). Both are pickled with a length
prefix. The process exits when its parent has exited, or after a minute without a request.
"""

from __future__ import annotations

import importlib
import pickle
import select
import sys
from typing import Any, BinaryIO

IDLE_S = 60.0
LENGTH_BYTES = 8


def main() -> None:
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while select.select([requests], [], [], IDLE_S)[0]:
        request = receive(requests)
        if request is None:
            return
        send(answers, run_request(request))


def run_request(request: Any) -> tuple[bool, object]:
    module, name, arguments = request
    try:
        return True, getattr(importlib.import_module(module), name)(*arguments)
    except Exception as error:
        return False, error


def receive(source: BinaryIO) -> Any:
    head = source.read(LENGTH_BYTES)
    return pickle.loads(source.read(int.from_bytes(head))) if len(head) == LENGTH_BYTES else None  # noqa: S301


def pack(message: object) -> bytes:
    raw = pickle.dumps(message)
    return len(raw).to_bytes(LENGTH_BYTES) + raw


def send(target: BinaryIO, message: object) -> None:
    target.write(pack(message))
    target.flush()
