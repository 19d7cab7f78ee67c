"""The process that touches shared file systems for others: it calls the functions it is asked for, one at a time.

A request is (module, function, arguments), an answer (whether it succeeded, value or exception), both pickled behind
their length. It ends when its parent is gone, or when nobody has asked anything for a minute.
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
    asked, answers = sys.stdin.buffer, sys.stdout.buffer
    while select.select([asked], [], [], IDLE_S)[0]:
        request = receive(asked)
        if request is None:
            return
        send(answers, run_request(request))


def run_request(request: Any) -> tuple[bool, object]:
    module, name, words = request
    try:
        return True, getattr(importlib.import_module(module), name)(*words)
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
