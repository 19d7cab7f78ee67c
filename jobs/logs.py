"""Reading what a job printed. The path comes from a row and the file from a program that may be hostile.

Only files beneath the cluster's log root are opened, one directory at a time and never through a symbolic link, so a
job cannot make the web server read something else by putting a link where its log should be. What is shown is cleaned:
no terminal sequences, no control characters, no bytes that are not UTF-8.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from errno import ELOOP, ENOTDIR
from itertools import accumulate
from pathlib import PurePosixPath

TAIL_BYTES = 64 * 1024
CHUNK_BYTES = 256 * 1024
MOST_LINE_BYTES = 16 * 1024 * 1024  # how far back the last lines are looked for

ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movements
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC, DCS and the like: titles, links, clipboard
    r"|\x1b[ -/]*[0-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
# Newline and tab stay. Bidirectional overrides go too: they let a line read otherwise than it is.
UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class NoLog(Exception):
    """There is nothing to show; the message is a sentence for the page."""


class NothingYet(NoLog):
    """The file is not there, and may come."""


@dataclass(frozen=True, kw_only=True)
class Tail:
    text: str
    size: int
    shown: int

    @property
    def is_cut(self) -> bool:
        return self.shown < self.size


def tail(root: str, path: str, most: int = TAIL_BYTES) -> Tail:
    """The end of the log, beginning with a whole line."""
    fd = open_beneath(root, path)
    try:
        size = os.fstat(fd).st_size
        raw = os.pread(fd, most, max(0, size - most))
    finally:
        os.close(fd)
    if len(raw) < size:
        _, newline, rest = raw.partition(b"\n")
        raw = rest if newline else raw
    return Tail(text=clean(raw), size=size, shown=len(raw))


@dataclass(frozen=True, kw_only=True)
class Window:
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


def window(root: str, path: str, line: int) -> Window:
    """The lines around this one. The log is counted up to there, piece by piece; long lines are cut short."""
    fd = open_beneath(root, path)
    try:
        size = os.fstat(fd).st_size
        first, at = _beginning_of(fd, max(1, line - LINES_BEFORE))
        rows = os.pread(fd, TAIL_BYTES, at).split(b"\n")[: LINES_BEFORE + LINES_AFTER]
    finally:
        os.close(fd)
    shown = [(first + n, clean(row)) for n, row in enumerate(rows)]
    shown = shown[:-1] if shown and not shown[-1][1] else shown
    places = list(accumulate((len(row) + 1 for row in rows), initial=at))[: len(shown)]
    return Window(lines=shown, places=places, wanted=line, size=size)


def _beginning_of(fd: int, line: int) -> tuple[int, int]:
    """(line, where it begins); of a shorter log the last line."""
    number, at, last = 1, 0, 0
    while number < line and (chunk := os.pread(fd, CHUNK_BYTES, at)):
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


def open_beneath(root: str, path: str) -> int:
    """A file descriptor of a plain file beneath root; `path` is absolute beneath it, or relative to it."""
    parts = _parts(root, path)
    try:
        here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise NoLog(f"The log directory of this cluster cannot be read ({error.strerror}).") from None
    try:
        for part in parts[:-1]:
            here = _step(here, part, os.O_DIRECTORY)
        here = _step(here, parts[-1], os.O_NONBLOCK)  # a FIFO must not make us wait for its writer
        if not stat.S_ISREG(os.fstat(here).st_mode):
            raise NoLog("The log is no plain file.")
    except BaseException:
        os.close(here)
        raise
    return here


def _parts(root: str, path: str) -> tuple[str, ...]:
    if not root or not path:
        raise NoLog("This cluster keeps no logs that Acme can read.")
    wanted = PurePosixPath(path)
    if wanted.is_absolute():
        try:
            wanted = wanted.relative_to(root)
        except ValueError:
            raise NoLog("The log lies outside the log directory of its cluster.") from None
    if not wanted.parts or ".." in wanted.parts or "\x00" in path:
        raise NoLog("The log lies outside the log directory of its cluster.")
    return wanted.parts


def _step(parent: int, name: str, flags: int) -> int:
    """One name further down; the parent is closed only when the child is open, so the caller owns exactly one."""
    try:
        child = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=parent)
    except FileNotFoundError:
        raise NothingYet("Nothing was printed yet.") from None
    except OSError as error:
        why = "it lies behind a symbolic link" if error.errno in (ELOOP, ENOTDIR) else error.strerror
        raise NoLog(f"The log cannot be read ({why}).") from None
    os.close(parent)
    return child


def clean(raw: bytes) -> str:
    text = ESCAPES.sub("", raw.decode("utf-8", errors="replace").replace("\r\n", "\n"))
    # A progress bar rewrites its line: what a terminal would show is the last writing.
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return UNSAFE.sub("\N{REPLACEMENT CHARACTER}", "\n".join(lines))


class Stream:
    """The log as it is or a part, in chunks, up to the size it had when it was opened (Content-Length stays true)."""

    def __init__(self, root: str, path: str) -> None:
        self.fd = open_beneath(root, path)
        self.size = self.stop = os.fstat(self.fd).st_size
        self.start = 0

    def cut(self, start: int, stop: int) -> None:
        """From here on only the bytes from start up to stop."""
        self.start, self.stop = start, stop

    def bytes_of(self, start: int, stop: int) -> bytes:
        return os.pread(self.fd, max(0, stop - start), max(0, start))

    def last_lines(self, count: int) -> int:
        """Where the last `count` lines begin; never further back than MOST_LINE_BYTES."""
        at, left = self.size, count
        lowest = max(0, self.size - MOST_LINE_BYTES)
        while at > lowest:
            first = max(lowest, at - CHUNK_BYTES)
            chunk = os.pread(self.fd, at - first, first)
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
            chunk = await asyncio.to_thread(self._read, at)
            if not chunk:
                return  # it was truncated under us
            at += len(chunk)
            yield chunk

    def in_turn(self) -> Iterator[bytes]:
        """The same for a server that knows no event loop."""
        at = self.start
        while at < self.stop and (chunk := self._read(at)):
            at += len(chunk)
            yield chunk

    def _read(self, at: int) -> bytes:
        return os.pread(self.fd, min(CHUNK_BYTES, self.stop - at), at)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
