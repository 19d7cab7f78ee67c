"""One key of a terminal, without waiting for Enter."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cbreak_mode() -> Iterator[None]:
    """Keys come at once and are not shown; afterwards the terminal is as it was."""
    try:
        import termios
        import tty

        before = termios.tcgetattr(sys.stdin)
    except (ImportError, OSError, ValueError):
        yield
        return
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def wait_for_key(keys: str, within_s: float) -> bool:
    """Whether one of them comes within so many seconds."""
    until = time.monotonic() + within_s
    while (left := until - time.monotonic()) > 0:
        if not sys.stdin.isatty():
            time.sleep(left)
            return False
        if select.select([sys.stdin], [], [], left)[0] and sys.stdin.read(1) in keys:
            return True
    return False
