"""Runs jobs as processes on this machine.

Each job has a directory with its script, its spec and, written by its shim, the record of its run. This module can
restore its state from those directories, so a server that was killed adopts the jobs that still run. It takes the lock
of a directory and passes it to the shim: the lock is free again when the shim is gone for any reason.

If root started the server, the jobs of each team run as a user of that team (accounts.py). Otherwise jobs run as the
user of the server.

Only the server's user can write below the log root, so a job of another user cannot create its attempt record there.
The server writes it instead (`attempt_records` explains why), and it refuses to start an attempt that has a record or
is running; this holds for every job.
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
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

from jobs.core.lifecycle import State
from scheduling.simulation.machines.log_paths import APPEND_FLAGS, TRUNCATE_FLAGS, InvalidLogPath, open_log, output_path
from scheduling.simulation.machines.scripts.play import BAD_OUTPUT_EXIT, REFUSED_START_EXIT
from scheduling.simulation.machines.values import (
    KILL,
    EffectRecorder,
    JobEnd,
    NullEffectRecorder,
    ProcessExit,
    SignalTarget,
    SimulatedJob,
)

from . import stepd
from .accounts import AccountProvider, NoAccountAvailable, SharedAccount, UnixAccount
from .attempt_records import ALREADY_STARTED_MESSAGE, AttemptRecords, record_path

SHIM_PATH = Path(stepd.__file__)
DESCRIPTOR_PATTERN = re.compile(r"/(?:dev|proc/self)/fd/[0-9]+")
JobEnvironment = Callable[[SimulatedJob, UnixAccount], Mapping[str, str]]
log = logging.getLogger(__name__)


class ProcessExecutor:
    """Runs jobs as processes. Job ids name the directories below `state`."""

    def __init__(
        self,
        *,
        state: Path,
        log_root: Path,
        accounts: AccountProvider | None = None,
        effects: EffectRecorder | None = None,
        environment_of: JobEnvironment | None = None,
    ) -> None:
        self._environment_of = environment_of or _job_environment
        self._state, self._log_root, self._accounts = state, log_root, accounts or SharedAccount()
        self._effects, self._records = effects or NullEffectRecorder(), AttemptRecords(log_root)
        self._running: dict[int, SimulatedJob] = {}
        self._cpus: dict[int, list[int]] = {}
        self._ended: list[JobEnd] = []
        self._shims: list[subprocess.Popen[bytes]] = []
        self._undelivered_signals: dict[int, tuple[SimulatedJob, int, SignalTarget]] = {}  # for jobs that are starting

    def start(self, job: SimulatedJob, now: float) -> None:
        """Start the job once: if its directory is locked or has a record, only watch it."""
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
            except (InvalidLogPath, NoAccountAvailable) as error:
                log.warning("cannot start job %s: %s", job.id, error)
                self._ended.append(_failed_job_end(job, now, BAD_OUTPUT_EXIT, "JobLaunchFailure"))
                return
            finally:
                os.close(lock)
        self.adopt(job, now)

    def adopt(self, job: SimulatedJob, now: float) -> None:
        self._running[job.id] = job
        self._cpus[job.id] = list(_read_json(self._job_directory(job.id) / "spec.json").get("cpus", []))

    def signal(self, job: SimulatedJob, number: int, now: float, aim: SignalTarget = SignalTarget.ALL) -> None:
        """Signal the job's processes, if the recorded process still exists."""
        record = _read_json(self._job_directory(job.id) / "running.json")
        if not record:
            self._undelivered_signals[job.id] = (job, number, aim)
        elif _is_same_process(record):
            _send_to_session(record["pid"], number, aim)

    def apply_fault(self, job: SimulatedJob, now: float) -> None:
        return  # simulated faults do not affect real processes

    def next_end_at(self) -> float:
        return inf  # the end of a real process is not known in advance

    def poll_ends(self, now: float) -> Sequence[JobEnd]:
        self._shims = [shim for shim in self._shims if shim.poll() is None]
        undelivered, self._undelivered_signals = self._undelivered_signals, {}
        for job, number, aim in undelivered.values():
            self.signal(job, number, now, aim)
        ends, self._ended = self._ended, []
        for job in list(self._running.values()):
            end = self._check_end(job, now)
            if end is not None:
                ends.append(end)
                del self._running[job.id]
                self._cpus.pop(job.id, None)
                self._undelivered_signals.pop(job.id, None)
        return ends

    @property
    def idle(self) -> bool:
        """Whether all shims that this server started have ended; adopted shims do not count."""
        return not self._shims

    def prune(self, known: Collection[int]) -> None:
        """Delete the directories of jobs that are not known any more."""
        for directory in self._state.glob("job-*"):
            number = directory.name.removeprefix("job-")
            if number.isdigit() and int(number) not in known:
                shutil.rmtree(directory, ignore_errors=True)

    def _job_directory(self, job_id: int) -> Path:
        return self._state / f"job-{job_id}"

    def _is_already_started(self, job: SimulatedJob) -> bool:
        """Whether the attempt has a record of another job, or runs as another job that has no record yet."""
        path = record_path(job, self._log_root)
        running = (record_path(other, self._log_root) for other in self._running.values())
        return bool(path) and (path in running or self._records.has_other_start(job))

    def _refuse_start(self, job: SimulatedJob, now: float) -> None:
        output = open_log(self._log_root, output_path(job, self._log_root), APPEND_FLAGS)
        try:
            os.write(output, f"{ALREADY_STARTED_MESSAGE}\n".encode())
        finally:
            os.close(output)
        self._ended.append(_failed_job_end(job, now, REFUSED_START_EXIT, "NonZeroExitCode"))

    def _launch_shim(self, job: SimulatedJob, directory: Path, lock: int) -> None:
        account = self._accounts.of(job)
        output = open_log(self._log_root, output_path(job, self._log_root), TRUNCATE_FLAGS)
        try:
            self._effects.record_start(job, job.began_at)
            script = directory / "script"
            script.unlink(missing_ok=True)  # an interrupted start may have left a read-only one
            script.write_text(job.request.script)
            script.chmod(0o500)
            if account.ids:
                os.chown(script, *account.ids)
                os.fchown(output, account.ids[0], -1)  # lets the job open /dev/stdout; readers use the group
            spec = {
                "script": str(script),
                "interpreter": _interpreter_command(job.request.script),
                "user": account.name,
                "ids": account.ids,
                "environment": self._environment_of(job, account),
                "workdir": job.request.workdir,
                "cpus": self._free_cpus(job.request.cpus_per_node),
            }
            stepd.write(str(directory), "spec.json", spec)
            self._shims.append(_start_shim(directory, lock, output))
        finally:
            os.close(output)

    def _free_cpus(self, count: int) -> list[int]:
        used = {cpu for cpus in self._cpus.values() for cpu in cpus}
        return [cpu for cpu in sorted(os.sched_getaffinity(0)) if cpu not in used][:count]

    def _check_end(self, job: SimulatedJob, now: float) -> JobEnd | None:
        """The end of a job, once it has an exit record or its shim is gone."""
        directory = self._job_directory(job.id)
        if record := _read_json(directory / "exit.json"):
            return self._record_job_end(job, _end_from_record(job, record))
        lock = _take_lock(directory)
        if lock is None:
            return None
        os.close(lock)
        if record := _read_json(directory / "exit.json"):  # written since the first check
            return self._record_job_end(job, _end_from_record(job, record))
        began = _has_begun(directory)
        end = self._end_orphan(job, now)
        return self._record_job_end(job, end) if began else end

    def _record_job_end(self, job: SimulatedJob, end: JobEnd) -> JobEnd:
        """Write the end to the attempt record and the effects file, and return it."""
        node_failed = end.state == State.NODE_FAIL
        status = ProcessExit(signal=KILL) if node_failed else end.exit
        if self._accounts.separate:
            code = None if status.signal == KILL else 128 + status.signal if status.signal else status.code
            self._records.add(job, began_at=job.began_at, ended_at=end.at, code=code)
        self._effects.record_end(job, end.at, status)
        return end

    def _end_orphan(self, job: SimulatedJob, now: float) -> JobEnd:
        """End a job whose shim is gone without a record, because the machine went down or the shim was killed."""
        self.signal(job, KILL, now)
        self._undelivered_signals.pop(job.id, None)
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


def _failed_job_end(job: SimulatedJob, now: float, exit_status: ProcessExit, reason: str) -> JobEnd:
    return JobEnd(job_id=job.id, at=now, state=State.FAILED, exit=exit_status, reason=reason)


def _interpreter_command(script: str) -> list[str]:
    """The interpreter from the script's first line, run explicitly because the file may be on a noexec mount."""
    return script.partition("\n")[0].removeprefix("#!").split(maxsplit=1) or ["/bin/bash"]


def _job_environment(job: SimulatedJob, account: UnixAccount) -> Mapping[str, str]:
    """A base environment, the job's own variables, and the variables that Slurm sets."""
    base = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        "LANG": "C.UTF-8",
    }
    indices = ",".join(str(gpu) for gpu in job.gpus.get(job.nodes[0], ()))
    slurm_variables = {
        "SLURM_JOB_ID": str(job.id),
        "SLURM_JOB_NAME": job.request.name,
        "SLURM_JOB_NODELIST": job.nodes[0],
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "SLURM_CPUS_ON_NODE": str(job.request.cpus_per_node),
        "SLURM_SUBMIT_DIR": job.request.workdir,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": indices,  # empty hides every GPU from a job that requested none
    }
    return {**base, **job.request.environment, **slurm_variables}


def _take_lock(directory: Path) -> int | None:
    """The directory's lock, or None while a shim holds it."""
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
    """Whether the pid still belongs to the recorded process, not to a later one or to one after a reboot."""
    try:
        return bool(record["boot"] == stepd.boot_id() and stepd.start_time(record["pid"]) == record["start"])
    except (OSError, KeyError, ValueError):
        return False


def _send_to_session(leader: int, number: int, aim: SignalTarget) -> None:
    """Signal the processes of a session. Its leader is the batch shell, or Acme's wrapper around it.

    The wrapper passes on signals for the batch shell, and runs the job's own script as its child.
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
    """Whether the process is the leader, or its direct child running another script passed by descriptor.

    A subshell of the leader has the leader's arguments, so it counts as a process that the script started.
    """
    if pid == leader:
        return True
    try:
        parent, script = int(stepd.stat_fields(pid)[1]), _script_of(pid)
    except (OSError, IndexError):
        return False  # the process has ended
    return parent == leader and bool(script) and script != _script_of(leader)


def _script_of(pid: int) -> str:
    """The first argument that names a file descriptor."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return next(filter(DESCRIPTOR_PATTERN.fullmatch, words), "")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _end_from_record(job: SimulatedJob, record: Mapping[str, Any]) -> JobEnd:
    status, at = int(record["status"]), float(record.get("at", time.time()))
    code, signal = os.WEXITSTATUS(status), os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    exit_status = ProcessExit(code=0 if signal else code, signal=signal)
    if signal:
        return JobEnd(job_id=job.id, at=at, state=State.FAILED, exit=exit_status, reason=f"RaisedSignal:{signal}")
    state, reason = (State.FAILED, "NonZeroExitCode") if code else (State.COMPLETED, "None")
    return JobEnd(job_id=job.id, at=at, state=state, exit=exit_status, reason=reason)
