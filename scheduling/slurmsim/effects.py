"""The effects file: which commands really began and ended, for whoever judges what a control plane claims.

One line of JSON per event is appended in a single write, before anybody can see the change through the API:

    {"event":"end","job_id":12,"key":"k3v9q2m7:0vqrm34vg06.2","at":1800000000.5,"exit_code":0,"signal":null}

`start` is written when a command begins, and not for a start that is refused; `end` when its processes are gone. The
key is the job's comment without `acme:`. Times are true ones, also while the cluster's wall clock is set to another
time. A server that was killed may repeat an event when it comes back: readers take the first line of each job_id and
event.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from .values import ProcessExit, SlurmJob

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
        if not _ends_in_newline(self._fd):  # a write was cut off by a full disk
            os.write(self._fd, b"\n")

    def close(self) -> None:
        os.close(self._fd)

    def started(self, job: SlurmJob, at: float) -> None:
        self._append_event("start", job, at, {"exit_code": None, "signal": None})

    def ended(self, job: SlurmJob, at: float, ended: ProcessExit) -> None:
        how = {"exit_code": None if ended.signal else ended.code, "signal": ended.signal or None}
        self._append_event("end", job, at, how)

    def _append_event(self, event: str, job: SlurmJob, at: float, how: Mapping[str, int | None]) -> None:
        key = job.request.comment.removeprefix("acme:")
        line = json.dumps({"event": event, "job_id": job.id, "key": key, "at": at, **how}, separators=(",", ":"))
        text = f"{line}\n".encode()
        try:
            if os.write(self._fd, text) == len(text):
                return
        except OSError:
            log.critical("an effect cannot be written", exc_info=True)
        # Going on would show a change whose effect is not on record. After a restart the job is told of again.
        log.critical("the server stops because the effects file cannot be written")
        os._exit(1)


def _ends_in_newline(fd: int) -> bool:
    size = os.fstat(fd).st_size
    return size == 0 or os.pread(fd, 1, size - 1) == b"\n"
