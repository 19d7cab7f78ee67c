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

from jobs.core.lifecycle import State
from scheduling.slurmsim.log_paths import APPEND_FLAGS, TRUNCATE_FLAGS, InvalidLogPath, open_log, output_path
from scheduling.slurmsim.scripts.play import BAD_OUTPUT_EXIT, REFUSED_START_EXIT
from scheduling.slurmsim.values import (
    KILL,
    EffectRecorder,
    JobEnd,
    NullEffectRecorder,
    ProcessExit,
    SignalTarget,
    SlurmJob,
)

from . import stepd
from .accounts import AccountProvider, NoAccountAvailable, SharedAccount, UnixAccount
from .attempt_records import ALREADY_STARTED_MESSAGE, AttemptRecords, record_path

SHIM_PATH = Path(stepd.__file__)
DESCRIPTOR_PATTERN = re.compile(r"/(?:dev|proc/self)/fd/[0-9]+")
log = logging.getLogger(__name__)


class ProcessExecutor:
    """Jobs as processes. `ids` of jobs name their directories beneath `state`."""

    def __init__(
        self,
        *,
        state: Path,
        log_root: Path,
        accounts: AccountProvider | None = None,
        effects: EffectRecorder | None = None,
    ) -> None:
        self._state, self._log_root, self._accounts = state, log_root, accounts or SharedAccount()
        self._effects, self._records = effects or NullEffectRecorder(), AttemptRecords(log_root)
        self._running: dict[int, SlurmJob] = {}
        self._cpus: dict[int, list[int]] = {}
        self._ended: list[JobEnd] = []
        self._shims: list[subprocess.Popen[bytes]] = []
        self._unheard: dict[
            int, tuple[SlurmJob, int, SignalTarget]
        ] = {}  # signals for jobs that are just about to begin

    def start(self, job: SlurmJob, now: float) -> None:
        """Begin it once: whoever finds the directory in use, or a record in it, only watches."""
        directory = self._job_directory(job.id)
        directory.mkdir(parents=True, exist_ok=True)
        lock = _take_lock(directory)
        if lock is not None:
            try:
                if not _has_begun(directory):
                    if self._is_already_started(job):
                        self._refuse_start(job, now)
                        return
                    self._launch_shim(job, directory, lock)
            except (InvalidLogPath, NoAccountAvailable) as refused:
                log.warning("job %s does not start: %s", job.id, refused)
                self._ended.append(_failed_job_end(job, now, BAD_OUTPUT_EXIT, "JobLaunchFailure"))
                return
            finally:
                os.close(lock)
        self.adopt(job, now)

    def adopt(self, job: SlurmJob, now: float) -> None:
        self._running[job.id] = job
        self._cpus[job.id] = list(_read_json(self._job_directory(job.id) / "spec.json").get("cpus", []))

    def signal(self, job: SlurmJob, number: int, now: float, aim: SignalTarget = SignalTarget.ALL) -> None:
        """To the processes that were started, if the record still means them."""
        record = _read_json(self._job_directory(job.id) / "running.json")
        if not record:
            self._unheard[job.id] = (job, number, aim)
        elif _is_same_process(record):
            _send_to_session(record["pid"], number, aim)

    def apply_fault(self, job: SlurmJob, now: float) -> None:
        return  # a real process needs nobody to break it

    def next_end_at(self) -> float | None:
        return None  # nobody knows when a real process ends

    def poll_ends(self, now: float) -> Sequence[JobEnd]:
        self._shims = [shim for shim in self._shims if shim.poll() is None]
        unheard, self._unheard = self._unheard, {}
        for job, number, aim in unheard.values():
            self.signal(job, number, now, aim)
        found, self._ended = self._ended, []
        for job in list(self._running.values()):
            ended = self._check_end(job, now)
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

    def _job_directory(self, job_id: int) -> Path:
        return self._state / f"job-{job_id}"

    def _is_already_started(self, job: SlurmJob) -> bool:
        """Whether the attempt has a record of another job, or runs as another job that has none yet."""
        path = record_path(job, self._log_root)
        running = (record_path(one, self._log_root) for one in self._running.values())
        return bool(path) and (path in running or self._records.has_other_start(job))

    def _refuse_start(self, job: SlurmJob, now: float) -> None:
        output = open_log(self._log_root, output_path(job, self._log_root), APPEND_FLAGS)
        try:
            os.write(output, f"{ALREADY_STARTED_MESSAGE}\n".encode())
        finally:
            os.close(output)
        self._ended.append(_failed_job_end(job, now, REFUSED_START_EXIT, "NonZeroExitCode"))

    def _launch_shim(self, job: SlurmJob, directory: Path, lock: int) -> None:
        account = self._accounts.of(job)
        output = open_log(self._log_root, output_path(job, self._log_root), TRUNCATE_FLAGS)
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
                "interpreter": _interpreter_command(job.request.script),
                "user": account.name,
                "ids": account.ids,
                "environment": _job_environment(job, account),
                "workdir": job.request.workdir,
                "cpus": self._free_cpus(job.request.cpus_per_node),
            }
            stepd.write(str(directory), "spec.json", spec)
            self._shims.append(_start_shim(directory, lock, output))
        finally:
            os.close(output)

    def _free_cpus(self, wanted: int) -> list[int]:
        taken = {cpu for cpus in self._cpus.values() for cpu in cpus}
        return [cpu for cpu in sorted(os.sched_getaffinity(0)) if cpu not in taken][:wanted]

    def _check_end(self, job: SlurmJob, now: float) -> JobEnd | None:
        """The end of a job, once its record is there or its shim is not."""
        directory = self._job_directory(job.id)
        if record := _read_json(directory / "exit.json"):
            return self._record_job_end(job, _end_from_record(job, record))
        lock = _take_lock(directory)
        if lock is None:
            return None
        os.close(lock)
        if record := _read_json(directory / "exit.json"):  # it was written between the two looks
            return self._record_job_end(job, _end_from_record(job, record))
        began = _has_begun(directory)
        ended = self._end_orphan(job, now)
        return self._record_job_end(job, ended) if began else ended

    def _record_job_end(self, job: SlurmJob, ended: JobEnd) -> JobEnd:
        """Write the end into the attempt record and the effects file, and pass it on."""
        killed = ended.state == State.NODE_FAIL
        seen = ProcessExit(signal=KILL) if killed else ended.exit
        if self._accounts.separate:
            code = None if seen.signal == KILL else 128 + seen.signal if seen.signal else seen.code
            self._records.add(job, began_at=job.began_at, ended_at=ended.at, code=code)
        self._effects.ended(job, ended.at, seen)
        return ended

    def _end_orphan(self, job: SlurmJob, now: float) -> JobEnd:
        """Its shim is gone without a word: the machine went down, or somebody killed it. What is left of it must go."""
        self.signal(job, KILL, now)
        self._unheard.pop(job.id, None)
        return JobEnd(job_id=job.id, at=now, state=State.NODE_FAIL, reason="NodeDown")


def _start_shim(directory: Path, lock: int, output: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-S", "-E", str(SHIM_PATH), str(directory), str(lock)]
    return subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=(lock,),
        start_new_session=True,
        env={},
    )


def _failed_job_end(job: SlurmJob, now: float, ended: ProcessExit, reason: str) -> JobEnd:
    return JobEnd(job_id=job.id, at=now, state=State.FAILED, exit=ended, reason=reason)


def _interpreter_command(script: str) -> list[str]:
    """By the script's own first line, read here: the file itself may lie where nothing may be executed."""
    return script.partition("\n")[0].removeprefix("#!").split(maxsplit=1) or ["/bin/bash"]


def _job_environment(job: SlurmJob, account: UnixAccount) -> Mapping[str, str]:
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


def _has_begun(directory: Path) -> bool:
    return any((directory / name).exists() for name in ("running.json", "exit.json"))


def _is_same_process(record: Mapping[str, Any]) -> bool:
    """Whether the pid still means that process: it is not a later one, and not one of an earlier boot."""
    try:
        return bool(record["boot"] == stepd.boot_id() and stepd.start_time(record["pid"]) == record["start"])
    except (OSError, KeyError, ValueError):
        return False


def _send_to_session(leader: int, number: int, aim: SignalTarget) -> None:
    """The leader is the first process of the job's session: the batch shell, or Acme's wrapper around it.

    The wrapper passes on what is meant for the batch shell, and runs the job's own script as a process beneath it.
    """
    with suppress(ProcessLookupError):
        if aim == SignalTarget.ALL:
            os.killpg(leader, number)
        elif aim == SignalTarget.SHELL:
            os.kill(leader, number)
    for pid in stepd.pids() if aim == SignalTarget.STEPS else ():
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
    return next(filter(DESCRIPTOR_PATTERN.fullmatch, words), "")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _end_from_record(job: SlurmJob, record: Mapping[str, Any]) -> JobEnd:
    status, at = int(record["status"]), float(record.get("at", time.time()))
    code, signal = os.WEXITSTATUS(status), os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    ended = ProcessExit(code=0 if signal else code, signal=signal)
    if signal:
        return JobEnd(job_id=job.id, at=at, state=State.FAILED, exit=ended, reason=f"RaisedSignal:{signal}")
    state, reason = (State.FAILED, "NonZeroExitCode") if code else (State.COMPLETED, "None")
    return JobEnd(job_id=job.id, at=at, state=state, exit=ended, reason=reason)
