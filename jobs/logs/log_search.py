"""Reading a log of any size by pieces: a screenful from any place, and what is found in it.

A question costs one piece or, when something is looked for, at most `MOST_SCANNED` bytes; the answer says how far it
came, so that a log of any length is searched by asking again. What people type is looked for as it is written: no
pattern of theirs reaches the matcher.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jobs.logs.job_log import CHUNK_BYTES, TAIL_BYTES, LogFile, decode_log_text

MAX_SCANNED_BYTES = 64 * 1024 * 1024
MAX_HITS = 200
MAX_HIT_BYTES = 500
MAX_CHUNK_LINES = 500  # of a piece: a page keeps some pieces, however short its lines are
OVERLAP = 4096  # longer than what may be looked for, so that nothing is lost between two pieces


@dataclass(frozen=True, kw_only=True)
class LogChunk:
    """Whole lines with the byte at which each begins."""

    lines: list[tuple[int, str]]
    start: int
    stop: int
    size: int
    whole: bool = True  # it begins where a line begins

    @property
    def earlier(self) -> int | None:
        return max(0, self.start - TAIL_BYTES) if self.start else None

    @property
    def later(self) -> int | None:
        return self.stop if self.stop < self.size else None

    @property
    def percent(self) -> float:
        return 100 * self.start / self.size if self.size else 0.0


@dataclass(frozen=True, kw_only=True)
class SearchHits:
    lines: list[tuple[int, str]]
    until: int  # the byte up to which it was looked for
    size: int

    @property
    def more(self) -> bool:
        return self.until < self.size


def chunk_at(root: str, path: str, at: int) -> LogChunk:
    """From the line in which byte `at` lies; of a shorter log its last piece."""
    log = LogFile(root, path)
    size, start = log.size, _line_start_before(log, min(at, max(0, log.size - 1)))
    raw = log.pread(TAIL_BYTES, start)
    whole = start == 0 or log.pread(1, start - 1) == b"\n"
    if start + len(raw) < size and b"\n" in raw:
        raw = raw[: raw.rfind(b"\n") + 1]
    lines, stop = _split_lines(raw, start), start + len(raw)
    if len(lines) > MAX_CHUNK_LINES:
        lines, stop = lines[:MAX_CHUNK_LINES], lines[MAX_CHUNK_LINES][0]
    return LogChunk(lines=lines, start=start, stop=stop, size=size, whole=whole)


def chunk_before(root: str, path: str, stop: int | None = None) -> LogChunk:
    """The lines that end where another piece begins; without one, the end of the log."""
    log = LogFile(root, path)
    size = log.size
    stop = size if stop is None else min(stop, size)
    low = max(0, stop - TAIL_BYTES)
    raw = log.pread(stop - low, low)
    begins = low == 0 or log.pread(1, low - 1) == b"\n"
    cut = 0 if begins else raw.find(b"\n", 0, -1) + 1  # of one endless line the last piece
    lines = _split_lines(raw[cut:], low + cut)[-MAX_CHUNK_LINES:]
    return LogChunk(lines=lines, start=lines[0][0] if lines else stop, stop=stop, size=size, whole=begins or cut > 0)


def _line_start_before(log: LogFile, at: int) -> int:
    """A line longer than a piece begins where we stand: nobody reads it from its beginning."""
    low = max(0, at - TAIL_BYTES)
    before = log.pread(at - low, low)
    newline = before.rfind(b"\n")
    return low + newline + 1 if newline >= 0 else (0 if low == 0 else at)


def _split_lines(raw: bytes, start: int) -> list[tuple[int, str]]:
    found, at = [], start
    for line in raw.removesuffix(b"\n").split(b"\n") if raw else ():
        found.append((at, decode_log_text(line)))
        at += len(line) + 1
    return found


LineMatcher = Callable[[bytes, int], Iterator[int]]  # where it stands in these bytes, before this one


def text_matcher(text: str) -> LineMatcher:
    """Without regard to case. Some times faster than the same as a pattern, which folds each byte by itself."""
    wanted = text.encode().lower()

    def find_text(raw: bytes, stop: int) -> Iterator[int]:
        lowered, at = raw.lower(), -1
        while (at := lowered.find(wanted, at + 1, stop)) >= 0:
            yield at
            at = lowered.find(b"\n", at, stop)  # a line is told once, however often it stands in it
            if at < 0:
                return

    return find_text


def rank_matcher(number: int) -> LineMatcher:
    """As trainers and launchers write it: [rank3], rank=3, `3:` before a line."""
    found = _rank_pattern(number)
    return lambda raw, stop: (match.start() for match in found.finditer(raw, 0, stop))


def _rank_pattern(rank: int) -> re.Pattern[bytes]:
    return re.compile(rb"\[rank ?%d\]|\brank[ =:]{1,2}%d\b|^ *%d: " % (rank, rank, rank), re.IGNORECASE | re.MULTILINE)


def search(root: str, path: str, wanted: LineMatcher, at: int) -> SearchHits:
    """Lines in which it stands, from byte `at` on, each once."""
    log = LogFile(root, path)
    return _search_open_log(log, wanted, _line_start_before(log, min(at, log.size)), log.size)


def _search_open_log(log: LogFile, wanted: LineMatcher, at: int, size: int) -> SearchHits:
    found: list[tuple[int, str]] = []
    stop = min(size, at + MAX_SCANNED_BYTES)
    while at < stop and (raw := log.pread(CHUNK_BYTES + OVERLAP, at)):
        # Whole lines, where there are any: the rest is read again with what follows it
        whole = len(raw) if at + len(raw) >= size else raw.rfind(b"\n") + 1 or CHUNK_BYTES
        told = -1
        for place in wanted(raw, whole):
            begin = raw.rfind(b"\n", 0, place) + 1
            if begin == told:
                continue
            told, end = begin, raw.find(b"\n", place)
            line = raw[begin : end if end >= 0 else whole]
            found.append((at + begin, decode_log_text(line[:MAX_HIT_BYTES])))
            if len(found) == MAX_HITS:
                return SearchHits(lines=found, until=at + begin + len(line) + 1, size=size)
        at += whole
    return SearchHits(lines=found, until=min(at, size), size=size)
