"""Job logs on disk, beneath one directory (`log_paths`).

`LogBook` writes what played jobs say. It keeps no file open: two thousand jobs would be two thousand descriptors.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from pathlib import Path

from . import kernellog, stackwords
from .attempt_records import REFUSAL, AttemptRecords
from .log_paths import APPEND, FRESH, BadPath, open_log, output_path
from .logtext import Script, lines, next_due_s, script_of
from .play import Opening, Play
from .troubles import Trouble
from .values import Job, Node

log = logging.getLogger(__name__)

KERNEL_EVERY_S = 1.0
BATCH = 1_000  # jobs written in one turn; the rest is late by a turn, not lost


@dataclass(kw_only=True)
class _Open:
    """One log being written: its script, its path, and the index of the next line."""

    script: Script
    path: str
    index: int = 0


class LogBook:
    """The stage of a simulated cluster: every running job's next lines, written when they are due."""

    def __init__(self, root: Path, records: AttemptRecords | None = None) -> None:
        self._root, self._records = root, records or AttemptRecords(root)
        self._open: dict[int, _Open] = {}
        self._due: list[tuple[float, int]] = []

    def open(self, job: Job, play: Play) -> Opening:
        entry = _Open(script=script_of(job, play), path=output_path(job, self._root))
        if self._records.is_taken(job):
            self._append(entry, [REFUSAL])
            return Opening.STARTED_BEFORE
        try:
            os.close(open_log(self._root, entry.path, FRESH))
        except BadPath as refused:
            log.info("job %s: %s", job.id, refused)
            return Opening.BAD_PATH
        self._records.begin(job, job.began_at)
        self._follow(job.id, entry)
        return Opening.READY

    def record_exit(self, job: Job, at: float, code: int) -> None:
        self._records.finish(job, at, code)

    def reopen(self, job: Job, play: Play) -> None:
        """Go on after the last whole line; half a line, cut off by a crash, is taken back."""
        entry = _Open(script=script_of(job, play), path=output_path(job, self._root))
        try:
            entry.index = self._whole_lines(entry.path)
        except BadPath as refused:
            log.warning("job %s: its log is lost: %s", job.id, refused)
            return
        self._follow(job.id, entry)

    def rewrite(self, job: Job, play: Play) -> None:
        if entry := self._open.get(job.id):
            entry.script = script_of(job, play)

    def dump(self, job_id: int, now: float) -> None:
        if entry := self._open.get(job_id):
            self._append(entry, list(stackwords.stacks(entry.script)))

    def close(self, job_id: int, until: float, last_words: str = "") -> None:
        entry = self._open.pop(job_id, None)
        if entry is not None:
            self._write(entry, until, last_words)

    def write(self, now: float) -> int:
        """Write what is due, and say how many jobs were written."""
        written = 0
        while self._due and self._due[0][0] <= now and written < BATCH:
            _, job_id = heappop(self._due)
            if entry := self._open.get(job_id):
                self._write(entry, now)
                self._expect(job_id, entry)
                written += 1
        return written

    def _follow(self, job_id: int, entry: _Open) -> None:
        self._open[job_id] = entry
        self._expect(job_id, entry)

    def _expect(self, job_id: int, entry: _Open) -> None:
        due_s = next_due_s(entry.script, entry.index)
        if due_s < inf:
            heappush(self._due, (entry.script.began_at + due_s, job_id))

    def _write(self, entry: _Open, now: float, last_words: str = "") -> None:
        new = lines(entry.script, entry.index, now - entry.script.began_at)
        entry.index += len(new)
        self._append(entry, [*new, *([last_words] if last_words else [])])

    def _append(self, entry: _Open, said: Sequence[str]) -> None:
        if not said:
            return
        text = "".join(f"{line}\n" for line in said)
        try:
            with _descriptor(self._root, entry.path, APPEND) as fd:
                os.write(fd, text.encode())
        except (BadPath, OSError) as lost:
            log.warning("job %s: %d log lines are lost: %s", entry.script.job_id, len(said), lost)

    def _whole_lines(self, path: str) -> int:
        with _descriptor(self._root, path, APPEND & ~os.O_WRONLY | os.O_RDWR) as fd:
            content = os.pread(fd, os.fstat(fd).st_size, 0)
            end = content.rfind(b"\n") + 1
            if end != len(content):
                os.ftruncate(fd, end)
        return content.count(b"\n")


@contextmanager
def _descriptor(root: Path, path: str, flags: int) -> Iterator[int]:
    fd = open_log(root, path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


class KernelBook:
    """Each node's kernel log as a file, made anew whenever its kernel has said something more."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._written_at = 0.0

    def write(self, nodes: Iterable[Node], troubles: Sequence[Trouble], now: float, offset_s: float = 0.0) -> int:
        """Write what has become due, and say how many files were written."""
        if now - self._written_at < KERNEL_EVERY_S:
            return 0
        fresh = [trouble for trouble in troubles if kernellog.speaks(trouble, self._written_at, now)]
        self._written_at = now
        everywhere = any(not trouble.node for trouble in fresh)
        names = {trouble.node for trouble in fresh}
        chosen = [node for node in nodes if everywhere or node.name in names] if fresh else []
        for node in chosen:
            self._write(node, kernellog.log_of(node, troubles, now=now, offset_s=offset_s))
        return len(chosen)

    def _write(self, node: Node, said: Sequence[str]) -> None:
        text = "".join(f"{line}\n" for line in said)
        try:
            with _descriptor(self._root, str(self._root / "kernel" / f"{node.name}.log"), FRESH) as fd:
                os.write(fd, text.encode())
        except (BadPath, OSError) as lost:
            log.warning("node %s: its kernel log is lost: %s", node.name, lost)
