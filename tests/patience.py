"""How tests wait for other processes and threads.

A wait returns as soon as the thing has happened, so its limit costs nothing on a machine that works; it is there to end
a test that would never end, not to measure. Machines that run tests are shared, and may be twenty times slower than the
one that a test was written on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 150.0


def until(look: Callable[[], T | None], within_s: float = PATIENCE_S, what: str = "") -> T:
    """Return the result of `look` once it is true."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what or look}"
        time.sleep(0.02)
    return found
