"""Logs of containers on disk, in the format of the container runtimes (CRI), and how clients read them.

    NAMESPACE_POD_UID/CONTAINER/RESTARTS.log      2026-01-31T08:00:00.123456Z stdout F text

`PodLogWriter` writes what the executor plans; it opens files only while writing. A restarted server counts the lines of
a file and continues with the next one.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from pathlib import Path

from scheduling.simulation.machines.log_paths import APPEND_FLAGS, TRUNCATE_FLAGS, InvalidLogPath
from scheduling.simulation.machines.scripts import stack_output
from scheduling.simulation.machines.scripts.job_output import PlannedLog, plan_log
from scheduling.simulation.machines.scripts.logs import log_descriptor
from scheduling.simulation.machines.scripts.play import LogOpenResult, SimulatedRun
from scheduling.simulation.machines.values import SimulatedJob

from .kubelets.pod_output import TimedLine, last_lines, lines_of_place, next_line_s, pod_lines, regular_line_count
from .objects import micro_timestamp
from .values import PodRuntime, PodStep

log = logging.getLogger("acme.cluster")

MAX_JOBS_PER_WRITE = 1_000  # per turn; further ones are written in the next turn
READ_CHUNK = 1 << 20
PREFIX_LENGTH = len("2026-01-31T08:00:00.123456Z stdout F ")


def log_path(root: Path, uid: str, namespace: str, name: str, container: str, restarts: int) -> Path:
    return root / f"{namespace}_{name}_{uid}" / container / f"{restarts}.log"


@dataclass(frozen=True, kw_only=True)
class LoggedPod:
    """A pod of an execution and the container whose output is simulated."""

    runtime: PodRuntime
    container: str


@dataclass(kw_only=True)
class _OpenLogs:
    """The logs of one execution: its plan, the file of each pod, and the index of its next line."""

    script: PlannedLog
    pods: Sequence[LoggedPod]
    paths: list[Path]
    next_lines: list[int] = field(default_factory=list)


class PodLogWriter:
    """Writes the next lines of each running program when they are due."""

    def __init__(self, root: Path, pods_of: Callable[[int], Sequence[LoggedPod]]) -> None:
        self._root, self._pods_of = root, pods_of
        self._open: dict[int, _OpenLogs] = {}
        self._due: list[tuple[float, int]] = []

    def open(self, job: SimulatedJob, play: SimulatedRun) -> LogOpenResult:
        logs = self._logs(job, play)
        for path in logs.paths:
            self._append(path, [], TRUNCATE_FLAGS)
        self._track(job.id, logs)
        return LogOpenResult.READY

    def resume_job_log(self, job: SimulatedJob, play: SimulatedRun) -> None:
        logs = self._logs(job, play)
        for place, path in enumerate(logs.paths):
            regular = regular_line_count(logs.script, place)
            logs.next_lines[place] = int(min(_count_lines(path), regular))
        self._track(job.id, logs)

    def replace_run(self, job: SimulatedJob, play: SimulatedRun) -> None:
        if logs := self._open.get(job.id):
            logs.script = plan_log(job, play)
            self._schedule(job.id, logs)

    def dump(self, job: SimulatedJob, now: float) -> None:
        if logs := self._open.get(job.id):
            stacks = list(stack_output.stack_lines(logs.script))
            for place, pod in enumerate(logs.pods):
                if pod.runtime.node in job.nodes:
                    self._append(logs.paths[place], _timed(lines_of_place(stacks, logs.script, place), now))

    def close(self, job_id: int, until: float, last_words: str = "") -> None:
        """Write what is due. `last_words` are those of Slurm's tools, which no container prints."""
        logs = self._open.pop(job_id, None)
        if logs is None:
            return
        self._write_lines(logs, until)
        if not last_words and until - logs.script.began_at >= logs.script.play.duration_s:
            for place in self._running_places(logs):
                self._append(logs.paths[place], _timed(last_lines(logs.script, place), until))

    def record_exit(self, job: SimulatedJob, at: float, code: int) -> None:
        """Containers have an exit code in their state, so there is no attempt record."""

    def write(self, now: float) -> None:
        """Write the lines that are due."""
        written = 0
        while self._due and self._due[0][0] <= now and written < MAX_JOBS_PER_WRITE:
            _, job_id = heappop(self._due)
            if logs := self._open.get(job_id):
                self._write_lines(logs, now)
                self._schedule(job_id, logs)
                written += 1

    def remove(self, runtime: PodRuntime) -> None:
        """Delete the logs of a pod that was deleted."""
        directory = self._root / f"{runtime.namespace}_{runtime.name}_{runtime.uid}"
        shutil.rmtree(directory, ignore_errors=True)

    def _logs(self, job: SimulatedJob, play: SimulatedRun) -> _OpenLogs:
        pods = self._pods_of(job.id)
        paths = [self._path(one) for one in pods]
        return _OpenLogs(script=plan_log(job, play), pods=pods, paths=paths, next_lines=[0] * len(paths))

    def _path(self, pod: LoggedPod) -> Path:
        runtime = pod.runtime
        return log_path(self._root, runtime.uid, runtime.namespace, runtime.name, pod.container, runtime.restarts)

    def _track(self, job_id: int, logs: _OpenLogs) -> None:
        self._open[job_id] = logs
        self._schedule(job_id, logs)

    def _schedule(self, job_id: int, logs: _OpenLogs) -> None:
        due_s = min(
            (next_line_s(logs.script, place, index) for place, index in enumerate(logs.next_lines)), default=inf
        )
        if due_s < inf:
            heappush(self._due, (logs.script.began_at + due_s, job_id))

    def _running_places(self, logs: _OpenLogs) -> Iterator[int]:
        """The pods of the program that still run; a pod that was stopped prints nothing more."""
        running = {one.runtime.uid for one in self._pods_of(logs.script.job_id) if one.runtime.step == PodStep.RUNNING}
        return (place for place, one in enumerate(logs.pods) if one.runtime.uid in running)

    def _write_lines(self, logs: _OpenLogs, now: float) -> None:
        began_at = logs.script.began_at
        for place in range(len(logs.paths)):
            new = pod_lines(logs.script, place, logs.next_lines[place], now - began_at)
            logs.next_lines[place] += len(new)
            self._append(logs.paths[place], [TimedLine(began_at + line.at_s, line.text) for line in new])

    def _append(self, path: Path, lines: Sequence[TimedLine], flags: int = APPEND_FLAGS) -> None:
        """Append lines whose times are unix seconds."""
        if not lines and flags == APPEND_FLAGS:
            return
        text = "".join(f"{micro_timestamp(line.at_s)} stdout F {line.text}\n" for line in lines)
        try:
            with log_descriptor(self._root, str(path), flags) as fd:
                os.write(fd, text.encode())
        except (InvalidLogPath, OSError) as error:
            log.warning("cannot write %d lines to %s: %s", len(lines), path, error)


def _timed(texts: Iterable[str], at: float) -> list[TimedLine]:
    return [TimedLine(at, text) for text in texts]


def _count_lines(path: Path) -> int:
    """The whole lines of a log; an incomplete last line, left by a crash, is removed."""
    with suppress(FileNotFoundError), path.open("r+b") as file:
        content = file.read()
        end = content.rfind(b"\n") + 1
        if end != len(content):
            file.truncate(end)
        return content.count(b"\n")
    return 0


# Reading


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    follow: bool = False
    timestamps: bool = False
    since: float = 0.0  # unix seconds
    limit_bytes: int | None = None


class LogReader:
    """Reads a log from its beginning, and then what is appended."""

    def __init__(self, path: Path, options: LogOptions) -> None:
        self._path, self._options = path, options
        self._offset, self._left = 0, options.limit_bytes

    @property
    def is_full(self) -> bool:
        """Whether the limit of bytes is reached."""
        return self._left is not None and self._left <= 0

    def read(self) -> bytes:
        """The whole lines since the last call, as the client wants them."""
        text = b"".join(self._shown(line) for line in self._new_lines())
        if self._left is not None:
            text = text[: self._left]
            self._left -= len(text)
        return text

    def _new_lines(self) -> list[bytes]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return []
        end = content.rfind(b"\n") + 1
        self._offset += end
        lines = content[:end].splitlines(keepends=True)
        if not self._options.since:
            return lines
        since = micro_timestamp(self._options.since).encode()
        return [line for line in lines if line[: len(since)] >= since]

    def _shown(self, line: bytes) -> bytes:
        """The line without its prefix, or with its time only."""
        text = line[PREFIX_LENGTH:]
        return line.split(b" ", 1)[0] + b" " + text if self._options.timestamps else text
