"""Reads the output of jobs. The path comes from a row, and the file from a program that may be hostile.

A reader process opens and reads the files (`storage`, `log_files`), so a hanging file system does not block callers.
The shown text is cleaned: no terminal sequences, no control characters, no invalid UTF-8.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from jobs.core.display_text import CONTROL_CHARACTERS, ESCAPE_SEQUENCES
from jobs.logs import allowed_paths, log_files, storage
from jobs.logs.log_files import LogNotCreated, LogReadError, NewlineScan
from jobs.logs.log_source import LogSource
from jobs.logs.storage import StorageUnresponsive

__all__ = [
    "LogFile",
    "LogNotCreated",
    "LogReadError",
    "LogStream",
    "StorageUnresponsive",
    "Tail",
    "decode_log_text",
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
        return self.pread_pieces([(count, at)])[0] if count > 0 else b""

    def pread_pieces(self, pieces: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read several pieces, given as (bytes, offset), with one request to the reader process."""
        arguments = (self._root, self._path, pieces, self._file, allowed_paths.load_allowed_paths())
        return storage.call(self._root, log_files.read_log_pieces, *arguments).pieces

    def scan_newlines(self, start: int, stop: int, most: int) -> NewlineScan:
        """Count newlines in the reader process, so that the bytes are not copied."""
        arguments = (self._root, self._path, (start, stop), most, self._file, allowed_paths.load_allowed_paths())
        return storage.call(self._root, log_files.scan_newlines, *arguments)


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
