"""The lines of a container's log as the API returns them, and how far they have been read. Pure.

A kubelet returns the lines since a time, which it rounds down to a second, in the order of its file. So a position
names the second of the last line that was read, how many lines since then were read, and which was the last. If this
line is no longer where it was, the kubelet began another file: after a rotation, or because the container was started
again. Then the lines after it are new, or all lines if it is not in the file. Times may be equal or go backwards.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Any

NANOSECONDS = 1_000_000_000
MAX_NUMBER = 2**53
TIMED_LINE = re.compile(
    rb"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:[0-9]{2}) "
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    at_ns: int  # since 1970
    text: bytes
    raw: bytes  # with its time, without the line end

    @property
    def second(self) -> int:
        return self.at_ns // NANOSECONDS

    @property
    def digest(self) -> str:
        return blake2b(self.raw, digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPosition:
    """How far a log has been read. All values are 0 or empty at its beginning."""

    second: int = 0  # of the last line that was read
    count: int = 0  # lines of this second or later that were read
    size: int = 0  # of these lines in a response
    last: str = ""  # digest of the last line

    @property
    def since_time(self) -> str:
        """The value of sinceTime; empty: from the beginning."""
        return datetime.fromtimestamp(self.second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if self.count else ""

    def after(self, lines: Sequence[LogLine]) -> ReadPosition:
        """The position after these lines of a response to a request at this position."""
        if not lines:
            return self
        second = lines[-1].second
        recent = [line for line in lines if line.second >= second]
        size = sum(len(line.raw) + 1 for line in recent)
        return ReadPosition(second=second, count=len(recent), size=size, last=lines[-1].digest)

    def to_json(self) -> list[int | str]:
        return [self.second, self.count, self.size, self.last] if self.count else []

    @classmethod
    def from_json(cls, value: Any) -> ReadPosition:
        """Anything else than a position counts as the beginning."""
        match value:
            case [int(second), int(count), int(size), str(last)]:
                if all(0 <= number < MAX_NUMBER for number in (count, size)) and 0 <= second < 2**33:
                    return cls(second=second, count=count, size=size, last=last)
        return cls()


BEGINNING = ReadPosition()


def parse_lines(raw: bytes, *, is_last_complete: bool) -> list[LogLine]:
    """The lines of a response. What follows the last line end is a line only if it `is_last_complete`.

    A line without a time continues the line before it. Before the first line with a time it is a message of the
    kubelet, not of the container.
    """
    *pieces, rest = raw.split(b"\n")
    if rest and is_last_complete:
        pieces.append(rest)
    lines: list[LogLine] = []
    for piece in pieces:
        if (match := TIMED_LINE.match(piece)) and (seconds := _seconds(match[1] + match[3])) is not None:
            at_ns = seconds * NANOSECONDS + int((match[2] or b"0").ljust(9, b"0"))
            lines.append(LogLine(at_ns=at_ns, text=piece[match.end() :], raw=piece))
        elif lines:
            lines.append(LogLine(at_ns=lines[-1].at_ns, text=piece, raw=piece))
    return lines


@lru_cache(maxsize=4096)
def _seconds(text: bytes) -> int | None:
    try:
        return max(int(datetime.fromisoformat(text.decode("ascii")).timestamp()), 0)
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLines:
    """Where the new lines of a response begin."""

    start: int
    is_gap: bool = False  # the lines before them may be missing: the kubelet has begun another file


def find_new_lines(lines: Sequence[LogLine], position: ReadPosition) -> NewLines:
    count = position.count
    if not count or (len(lines) >= count and lines[count - 1].digest == position.last):
        return NewLines(start=count)
    places = (index for index in range(len(lines) - 1, -1, -1) if lines[index].digest == position.last)
    if (last := next(places, None)) is not None:
        return NewLines(start=last + 1)
    return NewLines(start=0, is_gap=True)


def merge_by_time(lines_of_rank: Mapping[int, Iterable[LogLine]], *, with_rank: bool) -> list[str]:
    """The lines of all ranks by time; those of one rank keep their order. As of `srun --label`: `3: text`."""
    ranks = [[(rank, line) for line in lines] for rank, lines in sorted(lines_of_rank.items())]
    merged = heapq.merge(*ranks, key=lambda entry: entry[1].at_ns)
    return [f"{rank}: {_text(line)}" if with_rank else _text(line) for rank, line in merged]


def _text(line: LogLine) -> str:
    return line.text.decode("utf-8", "replace").removesuffix("\r")
