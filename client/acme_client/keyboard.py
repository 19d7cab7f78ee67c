"""Reads single keys from a terminal, without waiting for Enter."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cbreak_mode() -> Iterator[None]:
    """Deliver keys at once and do not echo them; afterwards restore the terminal."""
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
    """Whether one of these keys is pressed within so many seconds."""
    deadline = time.monotonic() + within_s
    while (remaining := deadline - time.monotonic()) > 0:
        if not sys.stdin.isatty():
            time.sleep(remaining)
            return False
        if select.select([sys.stdin], [], [], remaining)[0] and sys.stdin.read(1) in keys:
            return True
    return False
