"""Job logs and kernel logs on disk, below one directory (`log_paths`).

`JobLogWriter` writes the output of simulated jobs. It opens files only while writing, to avoid thousands of
descriptors.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from pathlib import Path

from scheduling.simulation.machines.execution.attempt_records import ALREADY_STARTED_MESSAGE, AttemptRecords
from scheduling.simulation.machines.faults import ClusterFault
from scheduling.simulation.machines.log_paths import APPEND_FLAGS, TRUNCATE_FLAGS, InvalidLogPath, open_log, output_path
from scheduling.simulation.machines.values import SimulatedJob, SimulatedNode

from . import kernel_log, stack_output
from .job_output import PlannedLog, lines_until, next_due_s, plan_log
from .play import LogOpenResult, SimulatedRun

log = logging.getLogger(__name__)

KERNEL_EVERY_S = 1.0
MAX_JOBS_PER_WRITE = 1_000  # per turn; further jobs are written in the next turn


@dataclass(kw_only=True)
class _OpenLog:
    """A log being written: its plan, its path, and the index of the next line."""

    script: PlannedLog
    path: str
    index: int = 0


class JobLogWriter:
    """Writes each running job's next lines when they are due."""

    def __init__(self, root: Path, records: AttemptRecords | None = None) -> None:
        self._root, self._records = root, records or AttemptRecords(root)
        self._open: dict[int, _OpenLog] = {}
        self._due: list[tuple[float, int]] = []

    def open(self, job: SimulatedJob, play: SimulatedRun) -> LogOpenResult:
        entry = _OpenLog(script=plan_log(job, play), path=output_path(job, self._root))
        if self._records.has_other_start(job):
            self._append_lines(entry, [ALREADY_STARTED_MESSAGE])
            return LogOpenResult.STARTED_BEFORE
        try:
            os.close(open_log(self._root, entry.path, TRUNCATE_FLAGS))
        except InvalidLogPath as error:
            log.info("job %s: %s", job.id, error)
            return LogOpenResult.BAD_PATH
        self._records.begin(job, job.began_at)
        self._track_log(job.id, entry)
        return LogOpenResult.READY

    def record_exit(self, job: SimulatedJob, at: float, code: int) -> None:
        self._records.finish(job, at, code)

    def resume_job_log(self, job: SimulatedJob, play: SimulatedRun) -> None:
        """Continue after the last complete line; an incomplete line, left by a crash, is removed."""
        entry = _OpenLog(script=plan_log(job, play), path=output_path(job, self._root))
        try:
            entry.index = self._count_whole_lines(entry.path)
        except InvalidLogPath as error:
            log.warning("job %s: cannot resume its log: %s", job.id, error)
            return
        self._track_log(job.id, entry)

    def replace_run(self, job: SimulatedJob, play: SimulatedRun) -> None:
        if entry := self._open.get(job.id):
            entry.script = plan_log(job, play)

    def dump(self, job: SimulatedJob, now: float) -> None:
        if entry := self._open.get(job.id):
            self._append_lines(entry, list(stack_output.stack_lines(entry.script)))

    def close(self, job_id: int, until: float, last_words: str = "") -> None:
        entry = self._open.pop(job_id, None)
        if entry is not None:
            self._write_lines(entry, until, last_words)

    def write(self, now: float) -> int:
        """Write the lines that are due; returns the number of jobs written."""
        written = 0
        while self._due and self._due[0][0] <= now and written < MAX_JOBS_PER_WRITE:
            _, job_id = heappop(self._due)
            if entry := self._open.get(job_id):
                self._write_lines(entry, now)
                self._schedule_next_line(job_id, entry)
                written += 1
        return written

    def _track_log(self, job_id: int, entry: _OpenLog) -> None:
        self._open[job_id] = entry
        self._schedule_next_line(job_id, entry)

    def _schedule_next_line(self, job_id: int, entry: _OpenLog) -> None:
        due_s = next_due_s(entry.script, entry.index)
        if due_s < inf:
            heappush(self._due, (entry.script.began_at + due_s, job_id))

    def _write_lines(self, entry: _OpenLog, now: float, last_words: str = "") -> None:
        new = lines_until(entry.script, entry.index, now - entry.script.began_at)
        entry.index += len(new)
        self._append_lines(entry, [*new, *([last_words] if last_words else [])])

    def _append_lines(self, entry: _OpenLog, lines: Sequence[str]) -> None:
        if not lines:
            return
        text = "".join(f"{line}\n" for line in lines)
        try:
            with log_descriptor(self._root, entry.path, APPEND_FLAGS) as fd:
                os.write(fd, text.encode())
        except (InvalidLogPath, OSError) as error:
            log.warning("job %s: cannot write %d log lines: %s", entry.script.job_id, len(lines), error)

    def _count_whole_lines(self, path: str) -> int:
        with log_descriptor(self._root, path, APPEND_FLAGS & ~os.O_WRONLY | os.O_RDWR) as fd:
            content = os.pread(fd, os.fstat(fd).st_size, 0)
            end = content.rfind(b"\n") + 1
            if end != len(content):
                os.ftruncate(fd, end)
        return content.count(b"\n")


@contextmanager
def log_descriptor(root: Path, path: str, flags: int) -> Iterator[int]:
    fd = open_log(root, path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def write_whole_logs(root: Path, logs: Mapping[str, str]) -> None:
    """Write or replace logs. Raises InvalidLogPath."""
    for path, text in logs.items():
        with log_descriptor(root, path, TRUNCATE_FLAGS) as fd:
            os.write(fd, text.encode())


class KernelLogWriter:
    """Writes each node's kernel log to a file, rewritten whenever it has new lines."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._written_at = 0.0

    def write(
        self, nodes: Iterable[SimulatedNode], faults: Sequence[ClusterFault], now: float, offset_s: float = 0.0
    ) -> int:
        """Write the logs with new lines; returns the number of files written."""
        if now - self._written_at < KERNEL_EVERY_S:
            return 0
        fresh = [fault for fault in faults if kernel_log.may_log_between(fault, self._written_at, now)]
        self._written_at = now
        everywhere = any(not fault.node for fault in fresh)
        names = {fault.node for fault in fresh}
        chosen = [node for node in nodes if everywhere or node.name in names] if fresh else []
        for node in chosen:
            self._write_log(node, kernel_log.kernel_log_lines(node, faults, now=now, offset_s=offset_s))
        return len(chosen)

    def _write_log(self, node: SimulatedNode, lines: Sequence[str]) -> None:
        text = "".join(f"{line}\n" for line in lines)
        try:
            with log_descriptor(self._root, str(self._root / "kernel" / f"{node.name}.log"), TRUNCATE_FLAGS) as fd:
                os.write(fd, text.encode())
        except (InvalidLogPath, OSError) as error:
            log.warning("node %s: cannot write its kernel log: %s", node.name, error)
