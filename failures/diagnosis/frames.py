"""The rows above an exception → the frames it came through. Pure."""

from __future__ import annotations

import re
from functools import lru_cache

from . import lines
from .values import Line

IGNORED = "(ignored)"
OVERLOOKED = re.compile(r"Exception ignored in|Error in atexit|Error in sys\.excepthook")
FRAME = re.compile(r'File "([^"]+)", line \d+, in (\S+)')


@lru_cache(maxsize=512)
def _above(row: str) -> Line:
    """Every exception looks back over the same rows as the one before it."""
    return lines.parse(0, row)


def traceback_above(rows: list[str], line: Line) -> list[str]:
    """Frames as `file:function`, innermost last. Lines of other ranks in between are stepped over.

    A traceback that Python itself ignored (in a destructor, at exit) begins with the frame IGNORED.
    """
    frames: list[str] = []
    header = False
    for row in reversed(rows[-200:]):
        above = _above(row)
        if above.rank != line.rank and line.rank is not None and above.rank is not None:
            continue
        if header:
            return [*([IGNORED] if OVERLOOKED.search(above.message) else []), *frames[::-1]]
        if match := FRAME.search(above.message):
            frames.append(f"{match[1]}:{match[2]}")
        header = "Traceback (most recent" in above.message
        if not header and (not above.message.startswith((" ", "\t")) or len(frames) > 60):
            break
    return frames[::-1]
