"""Reads a screenful of a log of any size: at an offset, before an offset, or around a line."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace

from jobs.logs.job_log import TAIL_BYTES, LogFile, decode_log_text
from jobs.logs.log_source import LogSource

MAX_CHUNK_LINES = 500  # a page keeps several chunks, and lines may be very short
LINES_BEFORE = 40  # shown before a requested line
# Newlines are counted in spans that also a slow file system reads within the deadline of a request
COUNTED_SPAN_BYTES = 32 * 1024 * 1024
COUNTING_S = 1.0


@dataclass(frozen=True, kw_only=True)
class LogChunk:
    """Whole lines with the byte offset of each."""

    lines: list[tuple[int, str]]
    start: int
    stop: int
    size: int
    whole: bool = True  # starts at the start of a line
    number: int | None = None  # number of the first line, if it is known

    @property
    def rows(self) -> list[tuple[int | None, int, str]]:
        """(line number, offset, text) of each line."""
        first = self.number
        return [(None if first is None else first + n, at, text) for n, (at, text) in enumerate(self.lines)]

    @property
    def earlier(self) -> int | None:
        return max(0, self.start - TAIL_BYTES) if self.start else None

    @property
    def later(self) -> int | None:
        return self.stop if self.stop < self.size else None


def chunk_at(source: LogSource, at: int) -> LogChunk:
    """Return lines starting with the one that contains byte `at`. Beyond the end, the last line of the log."""
    log = LogFile(source)
    return _chunk_from(log, line_start_before(log, min(at, max(0, log.size - 1))))


def chunk_before(source: LogSource, stop: int | None = None) -> LogChunk:
    """Return the lines that end at `stop`, by default at the end of the log."""
    log = LogFile(source)
    return _chunk_up_to(log, log.size if stop is None else min(stop, log.size))


def chunk_around_line(source: LogSource, line: int) -> LogChunk:
    """Return lines around this one, numbered. Beyond the end, around the last line of the log."""
    log = LogFile(source)
    number, at = _find_line(log, line)
    below = _chunk_from(log, at)
    above = _chunk_up_to(log, at).lines[-LINES_BEFORE:] if at else []
    start = above[0][0] if above else below.start
    return replace(below, lines=above + below.lines, start=start, number=number - len(above))


def number_lines(source: LogSource, chunk: LogChunk) -> LogChunk:
    """Return the chunk with the number of its first line. Far into a huge log the number stays unknown."""
    return replace(chunk, number=line_number_at(LogFile(source), chunk.start))


def line_number_at(log: LogFile, offset: int) -> int | None:
    """Return the number of the line at this offset, or None if counting takes too long."""
    count, at, until = 0, 0, time.monotonic() + COUNTING_S
    while at < offset:
        if time.monotonic() > until:
            return None
        stop = min(offset, at + COUNTED_SPAN_BYTES)
        count += log.scan_newlines(at, stop, sys.maxsize).count
        at = stop
    return count + 1


def _find_line(log: LogFile, line: int) -> tuple[int, int]:
    """Return (line, its offset). For a line beyond the end, the last line of the log."""
    number, begin, at = 1, 0, 0
    while number < line and at < log.size:
        stop = min(log.size, at + COUNTED_SPAN_BYTES)
        scan = log.scan_newlines(at, stop, line - number)
        number += scan.count
        begin = scan.last + 1 if scan.count else begin
        at = stop
    # The text after the last newline is empty and not a line
    return (number - 1, line_start_before(log, begin - 1)) if begin and begin == log.size else (number, begin)


def _chunk_from(log: LogFile, start: int) -> LogChunk:
    raw = log.pread(TAIL_BYTES, start)
    whole = start == 0 or log.pread(1, start - 1) == b"\n"
    if start + len(raw) < log.size and b"\n" in raw:
        raw = raw[: raw.rfind(b"\n") + 1]
    lines, stop = _split_lines(raw, start), start + len(raw)
    # The next chunk starts at the first line that was cut off
    if len(lines) > MAX_CHUNK_LINES:
        lines, stop = lines[:MAX_CHUNK_LINES], lines[MAX_CHUNK_LINES][0]
    return LogChunk(lines=lines, start=start, stop=stop, size=log.size, whole=whole)


def _chunk_up_to(log: LogFile, stop: int) -> LogChunk:
    low = max(0, stop - TAIL_BYTES)
    raw = log.pread(stop - low, low)
    begins = low == 0 or log.pread(1, low - 1) == b"\n"
    cut = 0 if begins else raw.find(b"\n", 0, -1) + 1  # in a line longer than the chunk: its last part
    lines = _split_lines(raw[cut:], low + cut)[-MAX_CHUNK_LINES:]
    start = lines[0][0] if lines else stop
    return LogChunk(lines=lines, start=start, stop=stop, size=log.size, whole=begins or cut > 0)


def line_start_before(log: LogFile, at: int) -> int:
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
