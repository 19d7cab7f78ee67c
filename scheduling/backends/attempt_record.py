"""The attempt record: what each attempt writes beside its log, whatever cluster it runs on. Pure.

A cluster forgets ended jobs (Slurm's MinJobAge, 300 s by default). So the attempt itself leaves a record, a directory
beside the log:

    LOG.acme/start   "<the cluster's job id> <host> <unix seconds>", written before the command starts
    LOG.acme/exit    "<exit code> <unix seconds>", written as the last action; 128 + n after signal n

Creating the directory is atomic, so the same attempt cannot start twice even if it was submitted twice: the second
start exits with `STARTED_BEFORE` and runs nothing. If the directory cannot be created for another reason, the command
runs without a record. An attempt that is ended by KILL leaves `start` and no `exit`.
"""

from __future__ import annotations

from dataclasses import dataclass

RECORD_VARIABLE = "ACME_ATTEMPT_RECORD"
STARTED_BEFORE = 97  # exit code of a start that was refused because the attempt had been started before


def record_directory(log_path: str) -> str:
    """The directory of the attempt record for this log path; empty if Acme does not write the log."""
    return f"{log_path}.acme" if log_path else ""


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """The content of the attempt record. `exit_code` is None if the script did not reach its last action."""

    started: bool
    exit_code: int | None = None
    started_at: float | None = None  # unix seconds by the node's clock
    ended_at: float | None = None


def read_record(start_line: str | None, exit_line: str | None) -> AttemptRecord:
    """Parse both files; None for a file that does not exist. Unreadable content counts as not written."""
    started = (start_line or "").split()
    at = _parse_number(started[2]) if len(started) == 3 else None
    ended = [_parse_number(word) for word in (exit_line or "").split()]
    if len(ended) == 2 and ended[0] is not None and ended[1] is not None:
        return AttemptRecord(started=True, started_at=at, exit_code=ended[0] & 0xFF, ended_at=ended[1])
    return AttemptRecord(started=start_line is not None, started_at=at)


def _parse_number(word: str) -> int | None:
    return int(word) if word.isascii() and word.isdigit() and len(word) <= 11 else None
