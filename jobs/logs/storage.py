"""Calls functions on shared file systems in reader processes, which are abandoned when the file system hangs.

On a hard network mount whose server is gone, open() and stat() sleep until the server is back, and not even SIGKILL
ends that sleep. So no process that serves requests touches a log or checkpoint directory itself: `call` lets a reader
process do it and waits until a deadline.

Failure story: A reader that misses the deadline is killed and abandoned; it exits when the kernel allows it. Its root
(the mounted directory) is then unresponsive in this process: all callers get the same error immediately, and after 2 s,
4 s, up to a minute one caller tries again. So a page waits for one deadline at most, and a process never abandons more
than `MAX_ABANDONED_READERS` readers of a root. Any answer ends this state. An interrupted caller kills its reader too,
because the next answer of that reader would belong to the interrupted request.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import pickle
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from acmeweb.common.env import ROOT
from jobs.logs.log_files import LogReadError
from jobs.logs.storage_reader import LENGTH_BYTES, pack

T = TypeVar("T")

ANSWER_DEADLINE_S = 4.0
FIRST_RETRY_S, MAX_RETRY_S = 2.0, 60.0
ANSWER_VALID_S = 60.0
MAX_CONCURRENT_CALLS = 3  # concurrent calls per root
MAX_ABANDONED_READERS = 3
MAX_IDLE_READERS = 4
PIPE_BYTES = 1 << 20  # a piece of a log fits into the pipe

READER_COMMAND = (
    *(sys.executable, "-I", "-S", "-c"),
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); from jobs.logs.storage_reader import main; main()",
)


class StorageUnresponsive(LogReadError):
    """The file system did not respond in time, so nothing is known about its files."""


class ReaderProcess:
    """One reader process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - constant arguments
            READER_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}, start_new_session=True
        )
        assert self._process.stdin and self._process.stdout
        self._to, self._from = self._process.stdin, self._process.stdout
        for pipe in (self._to, self._from):
            with suppress(OSError):
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            os.set_blocking(pipe.fileno(), False)

    def ask(self, function: Callable[..., Any], arguments: tuple[Any, ...], deadline_s: float) -> tuple[bool, Any]:
        """Run the function in the reader. Raises TimeoutError, or BrokenPipeError if the reader exited."""
        until = time.monotonic() + deadline_s
        self._send_bytes(pack((function.__module__, function.__name__, arguments)), until)
        length = int.from_bytes(self._receive_bytes(LENGTH_BYTES, until))
        return pickle.loads(self._receive_bytes(length, until))  # type: ignore[no-any-return] # noqa: S301

    def _send_bytes(self, raw: bytes, until: float) -> None:
        """Most requests fit into the pipe. One that does not is written while the reader reads it."""
        view, poll = memoryview(raw), select.poll()
        poll.register(self._to, select.POLLOUT)
        while view:
            remaining_s = until - time.monotonic()
            if remaining_s <= 0 or not poll.poll(remaining_s * 1000):
                raise TimeoutError
            try:
                view = view[os.write(self._to.fileno(), view) :]
            except BlockingIOError:
                continue

    def _receive_bytes(self, count: int, until: float) -> bytes:
        raw, poll = bytearray(), select.poll()  # select() does not support descriptors above 1023
        poll.register(self._from, select.POLLIN)
        while len(raw) < count:
            remaining_s = until - time.monotonic()
            if remaining_s <= 0 or not poll.poll(remaining_s * 1000):
                raise TimeoutError
            piece = os.read(self._from.fileno(), min(PIPE_BYTES, count - len(raw)))
            if not piece:
                raise BrokenPipeError
            raw += piece
        return bytes(raw)

    def kill(self) -> None:
        """Kill the reader without waiting for its exit, because it may sleep in the kernel."""
        self._process.kill()
        for pipe in (self._to, self._from):
            with suppress(OSError):
                pipe.close()

    def wait(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None


class ReaderPool:
    """The readers of this process. Any reader can read any root, so idle ones are shared."""

    def __init__(self) -> None:
        self._lock, self._idle, self._dying = threading.Lock(), list[ReaderProcess](), list[ReaderProcess]()

    def take(self) -> ReaderProcess:
        with self._lock:
            while self._idle:
                if (reader := self._idle.pop()).is_alive:
                    return reader
                reader.kill()  # it has exited; this closes its pipes
        return ReaderProcess()

    def release(self, reader: ReaderProcess) -> None:
        with self._lock:
            if len(self._idle) < MAX_IDLE_READERS:
                self._idle.append(reader)
                return
        self.end(reader)

    def close(self) -> None:
        """End idle readers and wait up to 1 s for each reader that is exiting."""
        while self._idle:
            self.end(self._idle.pop())
        for reader in self._dying:
            reader.wait(1.0)

    def end(self, reader: ReaderProcess) -> None:
        """Kill a reader and keep it until it has exited, so that it leaves no zombie."""
        reader.kill()
        with self._lock:
            self._dying = [dying for dying in (*self._dying, reader) if dying.is_alive]


class StorageRoot:
    """One root and its state in this process."""

    def __init__(
        self,
        root: str,
        readers: ReaderPool,
        deadline_s: float = ANSWER_DEADLINE_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.root, self._readers, self._deadline_s, self._monotonic = root, readers, deadline_s, monotonic
        # Bounds the threads that can wait for one hanging root
        self._slots = threading.BoundedSemaphore(MAX_CONCURRENT_CALLS)
        self._lock = threading.Lock()
        self._left_behind: list[ReaderProcess] = []
        self._failures, self._retry_at = 0, 0.0
        self.silent_since: float | None = None  # wall-clock time
        self.answered_at = 0.0

    def call(self, function: Callable[..., T], *arguments: Any, deadline_s: float | None = None) -> T:
        """Return the function's result in a reader process, or raise its exception. Raises StorageUnresponsive."""
        is_retry = self._claim_retry()
        deadline_s = deadline_s or self._deadline_s
        if not self._slots.acquire(timeout=deadline_s):
            raise self.unresponsive_error()
        try:
            if self.silent_since is not None and not is_retry:
                raise self.unresponsive_error()  # it became unresponsive while this call waited for a slot
            succeeded, value = self._run_request(function, arguments, deadline_s)
        finally:
            self._slots.release()
        self._record_answer()
        if not succeeded:
            raise value
        return value  # type: ignore[no-any-return]

    def _run_request(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], deadline_s: float
    ) -> tuple[bool, Any]:
        for _ in range(2):  # an idle reader may exit at this moment
            reader = self._readers.take()
            try:
                answer = reader.ask(function, arguments, deadline_s)
            except TimeoutError:
                self._abandon_reader(reader)
                raise self.unresponsive_error() from None
            except BrokenPipeError:
                self._readers.end(reader)
                continue
            except BaseException:
                self._readers.end(reader)
                raise
            self._readers.release(reader)
            return answer
        raise StorageUnresponsive(f"The reader process of {self.root} exited without an answer.")

    def _claim_retry(self) -> bool:
        """Return whether this call retries an unresponsive root. One caller at a time may; all others are refused."""
        with self._lock:
            if self.silent_since is None:
                return False
            self._left_behind = [reader for reader in self._left_behind if reader.is_alive]
            if self._monotonic() < self._retry_at or len(self._left_behind) >= MAX_ABANDONED_READERS:
                raise self.unresponsive_error()
            # No other caller retries while this one waits for its answer
            self._retry_at = self._monotonic() + 2 * self._deadline_s
            return True

    def _abandon_reader(self, reader: ReaderProcess) -> None:
        self._readers.end(reader)
        with self._lock:
            self._left_behind.append(reader)
            self._failures += 1
            self._retry_at = self._monotonic() + min(MAX_RETRY_S, FIRST_RETRY_S * 2 ** min(self._failures - 1, 10))
            self.silent_since = self.silent_since or time.time()

    def _record_answer(self) -> None:
        self.answered_at = time.time()
        if self.silent_since is not None:
            with self._lock:
                self.silent_since, self._failures, self._retry_at = None, 0, 0.0

    def unresponsive_error(self) -> StorageUnresponsive:
        since = f" since {time.strftime('%H:%M', time.gmtime(self.silent_since))} UTC" if self.silent_since else ""
        return StorageUnresponsive(f"The storage at {self.root} does not answer{since}. Acme retries within a minute.")


_reader_pool = ReaderPool()
_storage_roots: dict[str, StorageRoot] = {}


def storage_root(root: str) -> StorageRoot:
    return _storage_roots.setdefault(root, StorageRoot(root, _reader_pool))


def unresponsive_reason(root: str) -> str | None:
    """Return why a root is unresponsive, as far as this process knows.

    Empty: the root has responded recently. None: this process has not called it recently.
    """
    state = _storage_roots.get(root)
    if state is None:
        return None
    if state.silent_since is not None:
        return str(state.unresponsive_error())
    return "" if time.time() - state.answered_at < ANSWER_VALID_S else None


def call(root: str, function: Callable[..., T], *arguments: Any, deadline_s: float | None = None) -> T:
    return storage_root(root).call(function, *arguments, deadline_s=deadline_s)


def _reset_after_fork() -> None:
    """Drop all readers in a forked process: they belong to the parent."""
    global _reader_pool
    _storage_roots.clear()
    _reader_pool = ReaderPool()


os.register_at_fork(after_in_child=_reset_after_fork)
atexit.register(lambda: _reader_pool.close())
