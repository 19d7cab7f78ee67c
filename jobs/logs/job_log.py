"""Reading what a job printed. The path comes from a row and the file from a program that may be hostile.

A reader process opens and reads the files (`storage`, `log_files`), so a file system that hangs holds nobody up. What
is shown is cleaned: no terminal sequences, no control characters, no bytes that are not UTF-8.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import accumulate

from jobs.core.display_text import CONTROL_CHARACTERS, ESCAPE_SEQUENCES
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
MAX_LINE_BYTES = 16 * 1024 * 1024  # how far back the last lines are looked for


class LogFile:
    """A log beneath its root. Whatever is read later is read of the same file. Raises NoLog."""

    def __init__(self, root: str, path: str) -> None:
        found = storage.call(root, log_files.read_log_pieces, root, path, (), None, allowed_paths.load_allowed_paths())
        self._root, self._path, self._file = root, path, found.file
        self.size, self.owner = found.size, found.owner

    def pread(self, count: int, at: int) -> bytes:
        if count <= 0:
            return b""
        words = (self._root, self._path, ((count, at),), self._file, allowed_paths.load_allowed_paths())
        return storage.call(self._root, log_files.read_log_pieces, *words).pieces[0]


@dataclass(frozen=True, kw_only=True)
class Tail:
    text: str
    size: int
    shown: int

    @property
    def is_cut(self) -> bool:
        return self.shown < self.size


@dataclass(frozen=True, kw_only=True)
class FileEnd:
    """The last bytes of a file, and whose it is."""

    raw: bytes
    owner: int  # uid


def read_file_end(root: str, path: str, most: int) -> FileEnd | None:
    """None where there is no such file. NoLog: that cannot be told."""
    try:
        log = LogFile(root, path)
        return FileEnd(raw=log.pread(most, max(0, log.size - most)), owner=log.owner)
    except LogNotCreated:
        return None


def tail(root: str, path: str, most: int = TAIL_BYTES) -> Tail:
    """The end of the log, beginning with a whole line."""
    log = LogFile(root, path)
    size, raw = log.size, log.pread(most, max(0, log.size - most))
    if len(raw) < size:
        _, newline, rest = raw.partition(b"\n")
        raw = rest if newline else raw
    return Tail(text=decode_log_text(raw), size=size, shown=len(raw))


@dataclass(frozen=True, kw_only=True)
class LogWindow:
    """Some lines of a log around one of them; the numbers are those an editor shows."""

    lines: list[tuple[int, str]]
    places: list[int]  # the byte at which each begins
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
        """What is read next; the last line once more, because it may have been cut."""
        return self.places[-1] if self.places else 0


LINES_BEFORE, LINES_AFTER = 40, 80


def read_window(root: str, path: str, line: int) -> LogWindow:
    """The lines around this one. The log is counted up to there, piece by piece; long lines are cut short."""
    log = LogFile(root, path)
    first, at = _find_line_start(log, max(1, line - LINES_BEFORE))
    rows = log.pread(TAIL_BYTES, at).split(b"\n")[: LINES_BEFORE + LINES_AFTER]
    shown = [(first + n, decode_log_text(row)) for n, row in enumerate(rows)]
    shown = shown[:-1] if shown and not shown[-1][1] else shown
    places = list(accumulate((len(row) + 1 for row in rows), initial=at))[: len(shown)]
    return LogWindow(lines=shown, places=places, wanted=line, size=log.size)


def _find_line_start(log: LogFile, line: int) -> tuple[int, int]:
    """(line, where it begins); of a shorter log the last line."""
    number, at, last = 1, 0, 0
    while number < line and (chunk := log.pread(CHUNK_BYTES, at)):
        count = chunk.count(b"\n")
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
    text = ESCAPE_SEQUENCES.sub("", raw.decode("utf-8", errors="replace").replace("\r\n", "\n"))
    # A progress bar rewrites its line: what a terminal would show is the last writing.
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return CONTROL_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", "\n".join(lines))


class LogStream:
    """The log as it is or a part, in chunks, up to the size it had when it was opened (Content-Length stays true)."""

    def __init__(self, root: str, path: str) -> None:
        self._log = LogFile(root, path)
        self.size = self.stop = self._log.size
        self.start = 0

    def cut(self, start: int, stop: int) -> None:
        """From here on only the bytes from start up to stop."""
        self.start, self.stop = start, stop

    def read_range(self, start: int, stop: int) -> bytes:
        return self._log.pread(stop - start, max(0, start))

    def last_lines_start(self, count: int) -> int:
        """Where the last `count` lines begin; never further back than MOST_LINE_BYTES."""
        at, left = self.size, count
        lowest = max(0, self.size - MAX_LINE_BYTES)
        while at > lowest:
            first = max(lowest, at - CHUNK_BYTES)
            chunk = self._log.pread(at - first, first)
            # The newline at the very end closes the last line, it begins no other
            end = len(chunk) - 1 if at == self.size and chunk.endswith(b"\n") else len(chunk)
            while (end := chunk.rfind(b"\n", 0, end)) >= 0:
                left -= 1
                if not left:
                    return first + end + 1
            at = first
        return lowest

    async def __aiter__(self) -> AsyncIterator[bytes]:
        at = self.start
        while at < self.stop:
            chunk = await asyncio.to_thread(self._read_chunk, at)
            if not chunk:
                return  # it was truncated under us
            at += len(chunk)
            yield chunk

    def sync_chunks(self) -> Iterator[bytes]:
        """The same for a server that knows no event loop."""
        at = self.start
        while at < self.stop and (chunk := self._read_chunk(at)):
            at += len(chunk)
            yield chunk

    def _read_chunk(self, at: int) -> bytes:
        return self._log.pread(min(CHUNK_BYTES, self.stop - at), at)
