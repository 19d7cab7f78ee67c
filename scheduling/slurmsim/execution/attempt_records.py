"""Attempt records: the directory LOG.acme beside a job's log that says whether its command began and how it ended.

    LOG.acme/start   "<job id> <host> <unix seconds>"
    LOG.acme/exit    "<exit code> <unix seconds>", after the command; 128 + n after signal n, none after KILL

Acme's batch scripts write these files themselves. Here the cluster does it for them in two cases. Played jobs have no
script that runs. And where root's server gives jobs another user, their scripts cannot: the log root belongs to the
server, because in a directory that several users may write to, any of them could make the record of somebody else's
job beforehand, and so block or forge it. Such a script runs without a record of its own, and the server, which alone
can write there, adds the whole record when the job has ended, before it reports the end.

The place of a record follows from the job's output path alone. The environment only says that there is to be one, so
that a job cannot name the record of another.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from scheduling.slurmsim.log_paths import DIRECTORY_FLAGS, InvalidLogPath, open_parent, output_path
from scheduling.slurmsim.values import SlurmJob

log = logging.getLogger(__name__)

RECORD_VARIABLE = "ACME_ATTEMPT_RECORD"
ALREADY_STARTED_EXIT_CODE = 97  # the exit code of a start that is refused
ALREADY_STARTED_MESSAGE = "acme: this attempt was started before, so it is not started again"
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
MAX_LINE_BYTES = 200


def record_path(job: SlurmJob, root: Path) -> str:
    """Where the job keeps its record; empty where it asked for none, or for another place than beside its log."""
    path = f"{output_path(job, root)}.acme"
    asked = job.request.environment.get(RECORD_VARIABLE, "")
    return path if asked and os.path.normpath(asked) == os.path.normpath(path) else ""


class AttemptRecords:
    """The records beneath one log root. `clock_offset_s` is asked for the wall clock of the jobs' host."""

    def __init__(self, root: Path, *, clock_offset_s: Callable[[], float] = lambda: 0.0) -> None:
        self._root, self._clock_offset_s = root, clock_offset_s

    def has_other_start(self, job: SlurmJob) -> bool:
        """Whether another job has started this attempt. A start of the same job, cut off by a crash, is its own."""
        path = record_path(job, self._root)
        if not path:
            return False
        try:
            with self._open_record_parent(path) as (parent, name):
                return not _is_same_job(_read_start_line(parent, name), job)
        except (InvalidLogPath, OSError):
            return False  # no directory of that name: then a script runs, with or without a record

    def begin(self, job: SlurmJob, at: float) -> None:
        """Make the directory with the start line in it."""
        self._make_record(job, {"start": self._start_text(job, at)})

    def add(self, job: SlurmJob, *, began_at: float, ended_at: float, code: int | None) -> None:
        """Make the whole record of a job that has ended, unless its script made one."""
        lines = {"start": self._start_text(job, began_at)}
        self._make_record(job, lines if code is None else {**lines, "exit": self._exit_text(ended_at, code)})

    def finish(self, job: SlurmJob, at: float, code: int) -> None:
        """Write the exit code into a record that was begun."""
        if path := record_path(job, self._root):
            try:
                with (
                    self._open_record_parent(path) as (parent, name),
                    _open_at(parent, name, DIRECTORY_FLAGS) as directory,
                ):
                    _write_record_file(directory, "exit.new", self._exit_text(at, code))
                    os.rename("exit.new", "exit", src_dir_fd=directory, dst_dir_fd=directory)
            except (InvalidLogPath, OSError) as lost:
                log.warning("job %s: its attempt record has no exit code: %s", job.id, lost)

    @contextmanager
    def _open_record_parent(self, path: str) -> Iterator[tuple[int, str]]:
        parent, name = open_parent(self._root, path)
        try:
            yield parent, name
        finally:
            os.close(parent)

    def _make_record(self, job: SlurmJob, lines: Mapping[str, str]) -> None:
        if path := record_path(job, self._root):
            try:
                with self._open_record_parent(path) as (parent, name):
                    if not _entry_exists(parent, name):  # from a start that was cut off, or the script's own
                        _make_record_directory(parent, name, lines)
            except (InvalidLogPath, OSError) as lost:
                log.warning("job %s: it has no attempt record: %s", job.id, lost)

    def _start_text(self, job: SlurmJob, at: float) -> str:
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


def _is_same_job(start_line: str, job: SlurmJob) -> bool:
    return start_line.partition(" ")[0] == str(job.id)


def _entry_exists(parent: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _make_record_directory(parent: int, name: str, lines: Mapping[str, str]) -> None:
    """The directory appears with its files in it, so that one of ours always has a start line."""
    new = f"{name}.new"
    with suppress(FileExistsError):
        os.mkdir(new, 0o755, dir_fd=parent)
    with _open_at(parent, new, DIRECTORY_FLAGS) as directory:
        if os.fstat(directory).st_uid != os.geteuid():
            raise InvalidLogPath(f"{new!r:.200} belongs to somebody else")
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
