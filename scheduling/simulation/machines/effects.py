"""The effects file: which commands really started and ended, as evidence for tests of a control plane.

Each event is one line of JSON, appended in a single write before the change is confirmed through the API:

    {"event":"end","job_id":12,"key":"k3v9q2m7:0vqrm34vg06.2","at":1800000000.5,"exit_code":0,"signal":null}

`start` is written when a command starts, but not for a refused start; `end` is written when its processes are gone. The
key is the job's comment without `acme:`. Times are true times, even while the cluster's wall clock is offset. A server
that was killed may repeat an event when it restarts: readers use the first line of each job_id and event.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from .values import ProcessExit, SimulatedJob

log = logging.getLogger("acme.cluster")

EFFECTS_FILE_NAME = "job_effects.jsonl"
MAX_EFFECTS_BYTES = 64 * 1024 * 1024
OPEN_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class EffectsFile:
    def __init__(self, state: Path, *, most_bytes: int = MAX_EFFECTS_BYTES) -> None:
        path = state / EFFECTS_FILE_NAME
        if path.exists() and path.stat().st_size > most_bytes:
            path.replace(state / f"{EFFECTS_FILE_NAME}.old")
        self._fd = os.open(path, OPEN_FLAGS, 0o640)
        if not _ends_in_newline(self._fd):  # a full disk cut off the last write
            os.write(self._fd, b"\n")

    def close(self) -> None:
        os.close(self._fd)

    def record_start(self, job: SimulatedJob, at: float) -> None:
        self.append([start_line(job, at)])

    def record_end(self, job: SimulatedJob, at: float, exit_status: ProcessExit) -> None:
        self.append([end_line(job, at, exit_status)])

    def append(self, lines: Sequence[str]) -> None:
        text = "".join(f"{line}\n" for line in lines).encode()
        try:
            if os.write(self._fd, text) == len(text):
                return
        except OSError:
            log.critical("cannot write an effect", exc_info=True)
        # Continuing would show a change whose effect is not recorded. After a restart the event is reported again.
        log.critical("cannot write the effects file; stopping the server")
        os._exit(1)


class PendingEffects:
    """Effects of changes that are not on disk yet. A simulated cluster that numbers its commands when they start must
    store the number first: one that was killed in between would start the same command again under another number.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []

    def record_start(self, job: SimulatedJob, at: float) -> None:
        self._lines.append(start_line(job, at))

    def record_end(self, job: SimulatedJob, at: float, exit_status: ProcessExit) -> None:
        self._lines.append(end_line(job, at, exit_status))

    def take(self) -> tuple[str, ...]:
        lines, self._lines = tuple(self._lines), []
        return lines


def start_line(job: SimulatedJob, at: float) -> str:
    return _line("start", job, at, {"exit_code": None, "signal": None})


def end_line(job: SimulatedJob, at: float, exit_status: ProcessExit) -> str:
    status = {"exit_code": None if exit_status.signal else exit_status.code, "signal": exit_status.signal or None}
    return _line("end", job, at, status)


def _line(event: str, job: SimulatedJob, at: float, status: Mapping[str, int | None]) -> str:
    key = job.request.comment.removeprefix("acme:")
    return json.dumps({"event": event, "job_id": job.id, "key": key, "at": at, **status}, separators=(",", ":"))


def _ends_in_newline(fd: int) -> bool:
    size = os.fstat(fd).st_size
    return size == 0 or os.pread(fd, 1, size - 1) == b"\n"
