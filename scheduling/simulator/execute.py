"""The hands that really run jobs, on this very machine.

Each job has a directory with its script, its spec and, written by its shim, the record of its run. Everything this
module knows can be read again from those directories, so a server that was killed adopts what still runs. The lock
of a directory is taken here and handed to the shim: it is free again when the shim is gone, however it went.

A server that root started runs the jobs of each team as a user of that team's own (accounts.py). A server of an
ordinary user cannot do that: its jobs run as that user.

No user but the server's own can write beneath the log root, so a job of another user cannot make its attempt record
there. The server writes it instead (`attempt_records` says why), and refuses, for every job, to start an attempt that
has a record or is running.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from jobs.lifecycle import State

from . import stepd
from .accounts import Account, Accounts, NoAccount, SharedAccount
from .attempt_records import REFUSAL, AttemptRecords, record_path
from .log_paths import APPEND, FRESH, BadPath, open_log, output_path
from .play import BAD_OUTPUT, REFUSED
from .values import KILL, Aim, Effects, Ended, Exit, Job, NoEffects

SHIM = Path(stepd.__file__)
DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/[0-9]+")
log = logging.getLogger(__name__)


class ExecuteHands:
    """Jobs as processes. `ids` of jobs name their directories beneath `state`."""

    def __init__(
        self, *, state: Path, log_root: Path, accounts: Accounts | None = None, effects: Effects | None = None
    ) -> None:
        self._state, self._log_root, self._accounts = state, log_root, accounts or SharedAccount()
        self._effects, self._records = effects or NoEffects(), AttemptRecords(log_root)
        self._running: dict[int, Job] = {}
        self._cpus: dict[int, list[int]] = {}
        self._ended: list[Ended] = []
        self._shims: list[subprocess.Popen[bytes]] = []
        self._unheard: dict[int, tuple[Job, int, Aim]] = {}  # signals for jobs that are just about to begin

    def start(self, job: Job, now: float) -> None:
        """Begin it once: whoever finds the directory in use, or a record in it, only watches."""
        directory = self._directory(job.id)
        directory.mkdir(parents=True, exist_ok=True)
        lock = _take_lock(directory)
        if lock is not None:
            try:
                if not _began(directory):
                    if self._started_before(job):
                        self._refuse(job, now)
                        return
                    self._launch(job, directory, lock)
            except (BadPath, NoAccount) as refused:
                log.warning("job %s does not start: %s", job.id, refused)
                self._ended.append(_failed(job, now, BAD_OUTPUT, "JobLaunchFailure"))
                return
            finally:
                os.close(lock)
        self.adopt(job, now)

    def adopt(self, job: Job, now: float) -> None:
        self._running[job.id] = job
        self._cpus[job.id] = list(_read(self._directory(job.id) / "spec.json").get("cpus", []))

    def signal(self, job: Job, number: int, now: float, aim: Aim = Aim.ALL) -> None:
        """To the processes that were started, if the record still means them."""
        record = _read(self._directory(job.id) / "running.json")
        if not record:
            self._unheard[job.id] = (job, number, aim)
        elif _is_alive(record):
            _send(record["pid"], number, aim)

    def struck(self, job: Job, now: float) -> None:
        return  # a real process needs nobody to break it

    def next_at(self) -> float | None:
        return None  # nobody knows when a real process ends

    def poll(self, now: float) -> Sequence[Ended]:
        self._shims = [shim for shim in self._shims if shim.poll() is None]
        unheard, self._unheard = self._unheard, {}
        for job, number, aim in unheard.values():
            self.signal(job, number, now, aim)
        found, self._ended = self._ended, []
        for job in list(self._running.values()):
            ended = self._look(job, now)
            if ended is not None:
                found.append(ended)
                del self._running[job.id]
                self._cpus.pop(job.id, None)
                self._unheard.pop(job.id, None)
        return found

    @property
    def idle(self) -> bool:
        """Whether no shim that we started is left; one that we adopted is somebody else's child."""
        return not self._shims

    def prune(self, known: Collection[int]) -> None:
        """Forget the directories of jobs that nobody knows any more."""
        for directory in self._state.glob("job-*"):
            number = directory.name.removeprefix("job-")
            if number.isdigit() and int(number) not in known:
                shutil.rmtree(directory, ignore_errors=True)

    def _directory(self, job_id: int) -> Path:
        return self._state / f"job-{job_id}"

    def _started_before(self, job: Job) -> bool:
        """Whether the attempt has a record of another job, or runs as another job that has none yet."""
        path = record_path(job, self._log_root)
        running = (record_path(one, self._log_root) for one in self._running.values())
        return bool(path) and (path in running or self._records.is_taken(job))

    def _refuse(self, job: Job, now: float) -> None:
        output = open_log(self._log_root, output_path(job, self._log_root), APPEND)
        try:
            os.write(output, f"{REFUSAL}\n".encode())
        finally:
            os.close(output)
        self._ended.append(_failed(job, now, REFUSED, "NonZeroExitCode"))

    def _launch(self, job: Job, directory: Path, lock: int) -> None:
        account = self._accounts.of(job)
        output = open_log(self._log_root, output_path(job, self._log_root), FRESH)
        try:
            self._effects.started(job, job.began_at)
            script = directory / "script"
            script.unlink(missing_ok=True)  # a start that was cut off left one that may not be written to
            script.write_text(job.request.script)
            script.chmod(0o500)
            if account.ids:
                os.chown(script, *account.ids)
                os.fchown(output, account.ids[0], -1)  # so that /dev/stdout opens for the job; readers are the group
            spec = {
                "script": str(script),
                "interpreter": _interpreter(job.request.script),
                "user": account.name,
                "ids": account.ids,
                "environment": _environment(job, account),
                "workdir": job.request.workdir,
                "cpus": self._free_cpus(job.request.cpus_per_node),
            }
            stepd.write(str(directory), "spec.json", spec)
            self._shims.append(_shim(directory, lock, output))
        finally:
            os.close(output)

    def _free_cpus(self, wanted: int) -> list[int]:
        taken = {cpu for cpus in self._cpus.values() for cpu in cpus}
        return [cpu for cpu in sorted(os.sched_getaffinity(0)) if cpu not in taken][:wanted]

    def _look(self, job: Job, now: float) -> Ended | None:
        """The end of a job, once its record is there or its shim is not."""
        directory = self._directory(job.id)
        if record := _read(directory / "exit.json"):
            return self._record_end(job, _end_of(job, record))
        lock = _take_lock(directory)
        if lock is None:
            return None
        os.close(lock)
        if record := _read(directory / "exit.json"):  # it was written between the two looks
            return self._record_end(job, _end_of(job, record))
        began = _began(directory)
        ended = self._orphaned(job, now)
        return self._record_end(job, ended) if began else ended

    def _record_end(self, job: Job, ended: Ended) -> Ended:
        """Write the end into the attempt record and the effects file, and pass it on."""
        killed = ended.state == State.NODE_FAIL
        seen = Exit(signal=KILL) if killed else ended.exit
        if self._accounts.separate:
            code = None if seen.signal == KILL else 128 + seen.signal if seen.signal else seen.code
            self._records.add(job, began_at=job.began_at, ended_at=ended.at, code=code)
        self._effects.ended(job, ended.at, seen)
        return ended

    def _orphaned(self, job: Job, now: float) -> Ended:
        """Its shim is gone without a word: the machine went down, or somebody killed it. What is left of it must go."""
        self.signal(job, KILL, now)
        self._unheard.pop(job.id, None)
        return Ended(job_id=job.id, at=now, state=State.NODE_FAIL, reason="NodeDown")


def _shim(directory: Path, lock: int, output: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-S", "-E", str(SHIM), str(directory), str(lock)]
    return subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=(lock,),
        start_new_session=True,
        env={},
    )


def _failed(job: Job, now: float, ended: Exit, reason: str) -> Ended:
    return Ended(job_id=job.id, at=now, state=State.FAILED, exit=ended, reason=reason)


def _interpreter(script: str) -> list[str]:
    """By the script's own first line, read here: the file itself may lie where nothing may be executed."""
    return script.partition("\n")[0].removeprefix("#!").split(maxsplit=1) or ["/bin/bash"]


def _environment(job: Job, account: Account) -> Mapping[str, str]:
    """A clean base, what the job asked for, and what Slurm would tell it."""
    base = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        "LANG": "C.UTF-8",
    }
    indices = ",".join(str(gpu) for gpu in job.gpus.get(job.nodes[0], ()))
    told = {
        "SLURM_JOB_ID": str(job.id),
        "SLURM_JOB_NAME": job.request.name,
        "SLURM_JOB_NODELIST": job.nodes[0],
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "SLURM_CPUS_ON_NODE": str(job.request.cpus_per_node),
        "SLURM_SUBMIT_DIR": job.request.workdir,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": indices,  # empty hides every GPU from a job that asked for none
    }
    return {**base, **job.request.environment, **told}


def _take_lock(directory: Path) -> int | None:
    """The directory's lock, or None while a shim has it."""
    try:
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return os.open(os.devnull, os.O_RDONLY)  # no directory, so no shim
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _began(directory: Path) -> bool:
    return any((directory / name).exists() for name in ("running.json", "exit.json"))


def _is_alive(record: Mapping[str, Any]) -> bool:
    """Whether the pid still means that process: it is not a later one, and not one of an earlier boot."""
    try:
        return bool(record["boot"] == stepd.boot_id() and stepd.start_time(record["pid"]) == record["start"])
    except (OSError, KeyError, ValueError):
        return False


def _send(leader: int, number: int, aim: Aim) -> None:
    """The leader is the first process of the job's session: the batch shell, or Acme's wrapper around it.

    The wrapper passes on what is meant for the batch shell, and runs the job's own script as a process beneath it.
    """
    with suppress(ProcessLookupError):
        if aim == Aim.ALL:
            os.killpg(leader, number)
        elif aim == Aim.SHELL:
            os.kill(leader, number)
    for pid in stepd.pids() if aim == Aim.STEPS else ():
        if _session_of(pid) == leader and not _is_batch_shell(pid, leader):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _session_of(pid: int) -> int | None:
    try:
        return int(stepd.stat_fields(pid)[3])
    except (OSError, IndexError):
        return None


def _is_batch_shell(pid: int, leader: int) -> bool:
    """Whether it is the leader, or runs, directly beneath it, another script that was handed over by descriptor.

    A subshell of the leader has the leader's own arguments, so it counts as what the script has started.
    """
    if pid == leader:
        return True
    try:
        parent, script = int(stepd.stat_fields(pid)[1]), _script_of(pid)
    except (OSError, IndexError):
        return False  # it is gone
    return parent == leader and bool(script) and script != _script_of(leader)


def _script_of(pid: int) -> str:
    """The first of its arguments that names a descriptor."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return next(filter(DESCRIPTOR.fullmatch, words), "")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _end_of(job: Job, record: Mapping[str, Any]) -> Ended:
    status, at = int(record["status"]), float(record.get("at", time.time()))
    code, signal = os.WEXITSTATUS(status), os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    ended = Exit(code=0 if signal else code, signal=signal)
    if signal:
        return Ended(job_id=job.id, at=at, state=State.FAILED, exit=ended, reason=f"RaisedSignal:{signal}")
    state, reason = (State.FAILED, "NonZeroExitCode") if code else (State.COMPLETED, "None")
    return Ended(job_id=job.id, at=at, state=state, exit=ended, reason=reason)
