"""Reads the output of jobs. The path comes from a row, and the file from a program that may be hostile.

A reader process opens and reads the files (`storage`, `log_files`), so a hanging file system does not block callers.
The shown text is cleaned: no terminal sequences, no control characters, no invalid UTF-8.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import accumulate

from jobs.core.display_text import CONTROL_CHARACTERS, ESCAPE_SEQUENCES
from jobs.core.log_source import LogSource
from jobs.logs import allowed_paths, log_files, storage
from jobs.logs.log_files import LogNotCreated, LogReadError
from jobs.logs.storage import StorageUnresponsive

__all__ = [
    "LogFile",
    "LogNotCreated",
    "LogReadError",
    "LogStream",
    "LogWindow",
    "StorageUnresponsive",
    "Tail",
    "decode_log_text",
    "read_window",
    "tail",
]

TAIL_BYTES = 64 * 1024
CHUNK_BYTES = 256 * 1024
MAX_LINE_BYTES = 16 * 1024 * 1024  # limit of the backward search for the start of the last lines


class LogFile:
    """An open log. All reads are from the file that was opened first. Raises LogReadError."""

    def __init__(self, source: LogSource) -> None:
        arguments = (source.root, source.path, (), None, allowed_paths.load_allowed_paths())
        result = storage.call(source.root, log_files.read_log_pieces, *arguments)
        self._root, self._path, self._file = source.root, source.path, result.file
        self.size, self.owner = result.size, result.owner

    def pread(self, count: int, at: int) -> bytes:
        if count <= 0:
            return b""
        arguments = (self._root, self._path, ((count, at),), self._file, allowed_paths.load_allowed_paths())
        return storage.call(self._root, log_files.read_log_pieces, *arguments).pieces[0]


@dataclass(frozen=True, kw_only=True)
class Tail:
    """The end of a log."""

    text: str
    size: int
    shown: int

    @property
    def is_cut(self) -> bool:
        return self.shown < self.size


@dataclass(frozen=True, kw_only=True)
class FileEnd:
    """The last bytes of a file and its owner."""

    raw: bytes
    owner: int  # uid


def read_file_end(source: LogSource, limit: int) -> FileEnd | None:
    """Return the end of a file, or None if it does not exist. Raises LogReadError if this cannot be determined."""
    try:
        log = LogFile(source)
        return FileEnd(raw=log.pread(limit, max(0, log.size - limit)), owner=log.owner)
    except LogNotCreated:
        return None


def tail(source: LogSource, most: int = TAIL_BYTES) -> Tail:
    """Return the end of the log, starting with a whole line."""
    log = LogFile(source)
    size, raw = log.size, log.pread(most, max(0, log.size - most))
    if len(raw) < size:
        _, newline, whole_lines = raw.partition(b"\n")
        raw = whole_lines if newline else raw
    return Tail(text=decode_log_text(raw), size=size, shown=len(raw))


@dataclass(frozen=True, kw_only=True)
class LogWindow:
    """Some lines of a log around a requested line. Line numbers are those of an editor."""

    lines: list[tuple[int, str]]
    places: list[int]  # byte offset of each line
    wanted: int
    size: int

    @property
    def rows(self) -> list[tuple[int, int, str]]:
        return [(number, at, text) for (number, text), at in zip(self.lines, self.places, strict=True)]

    @property
    def start(self) -> int:
        return self.places[0] if self.places else 0

    @property
    def stop(self) -> int:
        """The offset of the next read. It starts with the last line again, because that line may have been cut."""
        return self.places[-1] if self.places else 0


LINES_BEFORE, LINES_AFTER = 40, 80


def read_window(source: LogSource, line: int) -> LogWindow:
    """Return the lines around this one. Newlines are counted from the start of the log in chunks; long lines are
    cut."""
    log = LogFile(source)
    first, at = _find_line_start(log, max(1, line - LINES_BEFORE))
    rows = log.pread(TAIL_BYTES, at).split(b"\n")[: LINES_BEFORE + LINES_AFTER]
    shown = [(first + n, decode_log_text(row)) for n, row in enumerate(rows)]
    # The text after the last newline is empty and not a line
    shown = shown[:-1] if shown and not shown[-1][1] else shown
    places = list(accumulate((len(row) + 1 for row in rows), initial=at))[: len(shown)]
    return LogWindow(lines=shown, places=places, wanted=line, size=log.size)


def _find_line_start(log: LogFile, line: int) -> tuple[int, int]:
    """Return (line, its offset). For a line beyond the end, the last line of the log."""
    number, at, last = 1, 0, 0
    while number < line and (chunk := log.pread(CHUNK_BYTES, at)):
        count = chunk.count(b"\n")
        # The line starts in a later chunk; remember the start of the last complete line
        if number + count < line:
            last = at + chunk.rfind(b"\n") + 1 if count else last
            number, at = number + count, at + len(chunk)
            continue
        where = -1
        for _ in range(line - number):
            where = chunk.find(b"\n", where + 1)
        return line, at + where + 1
    return number, last


def decode_log_text(raw: bytes) -> str:
    """Return log bytes as clean text."""
    text = ESCAPE_SEQUENCES.sub("", raw.decode("utf-8", errors="replace").replace("\r\n", "\n"))
    # A progress bar rewrites its line with \r. A terminal would show the last version.
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return CONTROL_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", "\n".join(lines))


class LogStream:
    """Streams the log or a part in chunks, up to its size when it was opened, so that Content-Length stays correct."""

    def __init__(self, source: LogSource) -> None:
        self._log = LogFile(source)
        self.size = self.stop = self._log.size
        self.start = 0

    def cut(self, start: int, stop: int) -> None:
        """Limit the stream to the bytes from start to stop."""
        self.start, self.stop = start, stop

    def read_range(self, start: int, stop: int) -> bytes:
        return self._log.pread(stop - start, max(0, start))

    def last_lines_start(self, count: int) -> int:
        """Return the offset of the last `count` lines, at most MAX_LINE_BYTES before the end."""
        at, remaining = self.size, count
        lowest = max(0, self.size - MAX_LINE_BYTES)
        while at > lowest:
            first = max(lowest, at - CHUNK_BYTES)
            chunk = self._log.pread(at - first, first)
            # The newline at the end of the file terminates the last line; it does not start another
            end = len(chunk) - 1 if at == self.size and chunk.endswith(b"\n") else len(chunk)
            while (end := chunk.rfind(b"\n", 0, end)) >= 0:
                remaining -= 1
                if not remaining:
                    return first + end + 1
            at = first
        return lowest

    async def __aiter__(self) -> AsyncIterator[bytes]:
        at = self.start
        while at < self.stop:
            # Reading blocks, so it must not run on the event loop
            chunk = await asyncio.to_thread(self._read_chunk, at)
            if not chunk:
                return  # the file was truncated while it was read
            at += len(chunk)
            yield chunk

    def sync_chunks(self) -> Iterator[bytes]:
        """Yield the chunks for a server without an event loop."""
        at = self.start
        while at < self.stop and (chunk := self._read_chunk(at)):
            at += len(chunk)
            yield chunk

    def _read_chunk(self, at: int) -> bytes:
        return self._log.pread(min(CHUNK_BYTES, self.stop - at), at)
