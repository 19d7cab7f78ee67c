"""Reads a log of any size in chunks: a screenful from any offset, and search results.

A request reads one chunk or, for a search, at most `MAX_SCANNED_BYTES`. The response contains how far the search came,
so that the client can continue. The search text is matched literally, never as a pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jobs.core.log_source import LogSource
from jobs.logs.job_log import CHUNK_BYTES, TAIL_BYTES, LogFile, decode_log_text

MAX_SCANNED_BYTES = 64 * 1024 * 1024
MAX_HITS = 200
MAX_HIT_BYTES = 500
MAX_CHUNK_LINES = 500  # per chunk: a page keeps several chunks, and lines may be very short
OVERLAP = 4096  # longer than the longest search text, so that no match is lost between two chunks


@dataclass(frozen=True, kw_only=True)
class LogChunk:
    """Whole lines with the byte offset of each."""

    lines: list[tuple[int, str]]
    start: int
    stop: int
    size: int
    whole: bool = True  # starts at the start of a line

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
    """Lines that match, and how far the search came."""

    lines: list[tuple[int, str]]
    until: int  # offset up to which the log was searched
    size: int

    @property
    def more(self) -> bool:
        return self.until < self.size


def chunk_at(source: LogSource, at: int) -> LogChunk:
    """Return lines starting with the one that contains byte `at`. Beyond the end, the last line of the log."""
    log = LogFile(source)
    size, start = log.size, _line_start_before(log, min(at, max(0, log.size - 1)))
    raw = log.pread(TAIL_BYTES, start)
    whole = start == 0 or log.pread(1, start - 1) == b"\n"
    if start + len(raw) < size and b"\n" in raw:
        raw = raw[: raw.rfind(b"\n") + 1]
    lines, stop = _split_lines(raw, start), start + len(raw)
    # The next chunk starts at the first line that was cut off
    if len(lines) > MAX_CHUNK_LINES:
        lines, stop = lines[:MAX_CHUNK_LINES], lines[MAX_CHUNK_LINES][0]
    return LogChunk(lines=lines, start=start, stop=stop, size=size, whole=whole)


def chunk_before(source: LogSource, stop: int | None = None) -> LogChunk:
    """Return the lines that end at `stop`, by default at the end of the log."""
    log = LogFile(source)
    size = log.size
    stop = size if stop is None else min(stop, size)
    low = max(0, stop - TAIL_BYTES)
    raw = log.pread(stop - low, low)
    begins = low == 0 or log.pread(1, low - 1) == b"\n"
    cut = 0 if begins else raw.find(b"\n", 0, -1) + 1  # in a line longer than the chunk: its last part
    lines = _split_lines(raw[cut:], low + cut)[-MAX_CHUNK_LINES:]
    return LogChunk(lines=lines, start=lines[0][0] if lines else stop, stop=stop, size=size, whole=begins or cut > 0)


def _line_start_before(log: LogFile, at: int) -> int:
    """Return the start of the line at this offset. In a line longer than one chunk, return the offset itself."""
    low = max(0, at - TAIL_BYTES)
    before = log.pread(at - low, low)
    newline = before.rfind(b"\n")
    return low + newline + 1 if newline >= 0 else (0 if low == 0 else at)


def _split_lines(raw: bytes, start: int) -> list[tuple[int, str]]:
    lines, at = [], start
    for line in raw.removesuffix(b"\n").split(b"\n") if raw else ():
        lines.append((at, decode_log_text(line)))
        at += len(line) + 1
    return lines


LineMatcher = Callable[[bytes, int], Iterator[int]]  # (bytes, stop) -> offsets of matches before stop


def text_matcher(text: str) -> LineMatcher:
    """Match case-insensitively. Several times faster than a regular expression, which folds each byte separately."""
    needle = text.encode().lower()

    def find_text(raw: bytes, stop: int) -> Iterator[int]:
        lowered, at = raw.lower(), -1
        while (at := lowered.find(needle, at + 1, stop)) >= 0:
            yield at
            at = lowered.find(b"\n", at, stop)  # report a line once, even if it matches several times
            if at < 0:
                return

    return find_text


def rank_matcher(number: int) -> LineMatcher:
    """Match the notations of trainers and launchers: [rank3], rank=3, `3:` at the start of a line."""
    pattern = _rank_pattern(number)
    return lambda raw, stop: (match.start() for match in pattern.finditer(raw, 0, stop))


def _rank_pattern(rank: int) -> re.Pattern[bytes]:
    return re.compile(rb"\[rank ?%d\]|\brank[ =:]{1,2}%d\b|^ *%d: " % (rank, rank, rank), re.IGNORECASE | re.MULTILINE)


def search(source: LogSource, matcher: LineMatcher, at: int) -> SearchHits:
    """Return the matching lines from byte `at` on, each once."""
    log = LogFile(source)
    return _search_open_log(log, matcher, _line_start_before(log, min(at, log.size)), log.size)


def _search_open_log(log: LogFile, matcher: LineMatcher, at: int, size: int) -> SearchHits:
    hits: list[tuple[int, str]] = []
    stop = min(size, at + MAX_SCANNED_BYTES)
    while at < stop and (raw := log.pread(CHUNK_BYTES + OVERLAP, at)):
        # Search whole lines if there are any. The rest is read again with the next chunk
        whole = len(raw) if at + len(raw) >= size else raw.rfind(b"\n") + 1 or CHUNK_BYTES
        last_begin = -1
        for match in matcher(raw, whole):
            begin = raw.rfind(b"\n", 0, match) + 1
            if begin == last_begin:
                continue
            last_begin, end = begin, raw.find(b"\n", match)
            line = raw[begin : end if end >= 0 else whole]
            hits.append((at + begin, decode_log_text(line[:MAX_HIT_BYTES])))
            if len(hits) == MAX_HITS:
                return SearchHits(lines=hits, until=at + begin + len(line) + 1, size=size)
        at += whole
    return SearchHits(lines=hits, until=min(at, size), size=size)
