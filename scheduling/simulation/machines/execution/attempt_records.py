"""Attempt records: the directory LOG.acme next to a job's log, which shows that its command started and how it ended.

    LOG.acme/start   "<job id> <host> <unix seconds>"
    LOG.acme/exit    "<exit code> <unix seconds>", after the command; 128 + n after signal n, none after KILL

Acme's batch scripts write these files themselves. The cluster writes them in two cases. Simulated jobs run no script.
And if root's server runs jobs as other users, their scripts cannot write them: the log root belongs to the server,
because in a directory that several users may write to, any of them could create the record of another user's job in
advance and so block or forge it. Such a script runs without a record of its own, and the server, the only user with
write access, adds the complete record after the job has ended, before it reports the end.

The path of a record follows from the job's output path alone. The environment only says that a record is requested, so
a job cannot name another job's record.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from scheduling.simulation.machines.log_paths import DIRECTORY_FLAGS, InvalidLogPath, open_parent, output_path
from scheduling.simulation.machines.values import SimulatedJob

log = logging.getLogger(__name__)

RECORD_VARIABLE = "ACME_ATTEMPT_RECORD"
ALREADY_STARTED_MESSAGE = "acme: this attempt was started before, so it is not started again"
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
MAX_LINE_BYTES = 200


def record_path(job: SimulatedJob, root: Path) -> str:
    """The path of the job's record; empty if the job requests none, or requests it anywhere but next to its log."""
    path = f"{output_path(job, root)}.acme"
    requested = job.request.environment.get(RECORD_VARIABLE, "")
    return path if requested and os.path.normpath(requested) == os.path.normpath(path) else ""


class AttemptRecords:
    """The records below one log root. `clock_offset_s` returns the offset of the wall clock of the jobs' host."""

    def __init__(self, root: Path, *, clock_offset_s: Callable[[], float] = lambda: 0.0) -> None:
        self._root, self._clock_offset_s = root, clock_offset_s

    def has_other_start(self, job: SimulatedJob) -> bool:
        """Whether another job has started this attempt. The job's own start line, left by a crash, does not count."""
        path = record_path(job, self._root)
        if not path:
            return False
        try:
            with self._open_record_parent(path) as (parent, name):
                return not _is_same_job(_read_start_line(parent, name), job)
        except (InvalidLogPath, OSError):
            return False  # no such directory, so no other start

    def begin(self, job: SimulatedJob, at: float) -> None:
        """Create the record with its start line."""
        self._make_record(job, {"start": self._start_text(job, at)})

    def add(self, job: SimulatedJob, *, began_at: float, ended_at: float, code: int | None) -> None:
        """Write the complete record of a job that has ended, unless its script wrote one."""
        lines = {"start": self._start_text(job, began_at)}
        self._make_record(job, lines if code is None else {**lines, "exit": self._exit_text(ended_at, code)})

    def finish(self, job: SimulatedJob, at: float, code: int) -> None:
        """Write the exit code into an existing record."""
        if path := record_path(job, self._root):
            try:
                with (
                    self._open_record_parent(path) as (parent, name),
                    _open_at(parent, name, DIRECTORY_FLAGS) as directory,
                ):
                    _write_record_file(directory, "exit.new", self._exit_text(at, code))
                    os.rename("exit.new", "exit", src_dir_fd=directory, dst_dir_fd=directory)
            except (InvalidLogPath, OSError) as error:
                log.warning("job %s: cannot write the exit code of its attempt record: %s", job.id, error)

    @contextmanager
    def _open_record_parent(self, path: str) -> Iterator[tuple[int, str]]:
        parent, name = open_parent(self._root, path)
        try:
            yield parent, name
        finally:
            os.close(parent)

    def _make_record(self, job: SimulatedJob, lines: Mapping[str, str]) -> None:
        if path := record_path(job, self._root):
            try:
                with self._open_record_parent(path) as (parent, name):
                    if not _entry_exists(parent, name):  # an interrupted start or the script may have made it
                        _make_record_directory(parent, name, lines)
            except (InvalidLogPath, OSError) as error:
                log.warning("job %s: cannot write its attempt record: %s", job.id, error)

    def _start_text(self, job: SimulatedJob, at: float) -> str:
        return f"{job.id} {job.nodes[0]} {int(at + self._clock_offset_s())}\n"

    def _exit_text(self, at: float, code: int) -> str:
        return f"{code} {int(at + self._clock_offset_s())}\n"


def _read_start_line(parent: int, name: str) -> str:
    with _open_at(parent, name, DIRECTORY_FLAGS) as directory:
        try:
            with _open_at(directory, "start", READ_FLAGS) as start:
                return os.read(start, MAX_LINE_BYTES).decode(errors="replace")
        except OSError:
            return ""


def _is_same_job(start_line: str, job: SimulatedJob) -> bool:
    return start_line.partition(" ")[0] == str(job.id)


def _entry_exists(parent: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _make_record_directory(parent: int, name: str, lines: Mapping[str, str]) -> None:
    """Create the directory with its files in one rename, so that a record by the server always has a start line."""
    new = f"{name}.new"
    with suppress(FileExistsError):
        os.mkdir(new, 0o755, dir_fd=parent)
    with _open_at(parent, new, DIRECTORY_FLAGS) as directory:
        if os.fstat(directory).st_uid != os.geteuid():
            raise InvalidLogPath(f"{new!r:.200} belongs to another user")
        for file, line in lines.items():
            _write_record_file(directory, file, line)
    os.rename(new, name, src_dir_fd=parent, dst_dir_fd=parent)


def _write_record_file(directory: int, name: str, line: str) -> None:
    text = line.encode()
    with _open_at(directory, name, WRITE_FLAGS) as file:
        if os.write(file, text) != len(text):
            raise OSError("the disk is full")


@contextmanager
def _open_at(at: int, name: str, flags: int) -> Iterator[int]:
    fd = os.open(name, flags, 0o644, dir_fd=at)
    try:
        yield fd
    finally:
        os.close(fd)
