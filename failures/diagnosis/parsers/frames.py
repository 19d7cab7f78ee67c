"""Reads the frames of a traceback from the lines above an exception. Pure."""

from __future__ import annotations

import re
from functools import lru_cache

from .. import lines
from ..table.exceptions import EXCEPTION_NAME
from ..values import ParsedLine

IGNORED_FRAME = "(ignored)"
IGNORED_EXCEPTION = re.compile(r"Exception ignored in|Error in atexit|Error in sys\.excepthook")
FRAME_LINE = re.compile(r'File \\?"([^"\\]+)\\?", line \d+(?:, in (\S+))?')
DIGITS = re.compile(r"\d+")
MAX_PREFIX_CHARS = 120


@lru_cache(maxsize=512)
def _parse_row(row: str) -> ParsedLine:
    """A parsed line, cached because consecutive exceptions look back over the same lines."""
    return lines.parse(0, row)


def traceback_frames(rows: list[str], line: ParsedLine) -> list[str]:
    """Frames as `file:function`, innermost last. Lines of other ranks in between are skipped.

    A traceback that Python itself ignored (in a destructor, at exit) begins with IGNORED_FRAME.
    """
    frames: list[str] = []
    header = False
    prefix = _unknown_prefix(line.message)
    for row in reversed(rows[-200:]):
        above = _parse_row(row)
        if above.rank != line.rank and line.rank is not None and above.rank is not None:
            continue
        message = _parse_row(prefix.sub("", above.message, count=1)).message if prefix else above.message
        if header:
            return [*([IGNORED_FRAME] if IGNORED_EXCEPTION.search(message) else []), *frames[::-1]]
        if match := FRAME_LINE.search(message):
            frames.append(f"{match[1]}:{match[2] or '?'}")
        header = "Traceback (most recent" in message
        if not header and (not message.startswith((" ", "\t")) or len(frames) > 60):
            break
    return frames[::-1]


def _unknown_prefix(message: str) -> re.Pattern[str] | None:
    """A pattern of the text before an exception's name. If its frames have the same text, it is a log prefix.

    This recognizes the prefixes of launchers and log collectors that `lines` does not know. Numbers in it may differ.
    """
    name = EXCEPTION_NAME.search(message)
    before = message[: name.start(1)] if name else ""
    return _number_insensitive_pattern(before) if before.strip() and len(before) <= MAX_PREFIX_CHARS else None


@lru_cache(maxsize=64)
def _number_insensitive_pattern(before: str) -> re.Pattern[str]:
    return re.compile(r"\A" + r"\d+".join(re.escape(part) for part in DIGITS.split(before)))
