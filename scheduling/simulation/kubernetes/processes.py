"""Pods as real processes of this machine (`--execute`): their programs, their logs, and commands beside them.

The first container's command runs as a Slurm job does: with a shim that outlives the server and records the end. It
has the container's variables and a directory for temporary files, but the file system, the network and the processes of
this machine: volumes and images are ignored. So a script runs as in a container that shares everything with its host.

The shim writes the output as it comes. The server copies whole lines with their time into the container's log, and
finds in that log how far it has got, so a kill loses and repeats nothing.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from scheduling.simulation.machines.execution.accounts import UnixAccount
from scheduling.simulation.machines.execution.runner import ProcessExecutor
from scheduling.simulation.machines.log_paths import APPEND_FLAGS
from scheduling.simulation.machines.scripts.logs import log_descriptor
from scheduling.simulation.machines.values import EffectRecorder, JobEnd, SignalTarget, SimulatedJob

from .cluster import KubernetesCluster
from .exec_requests import ExecRequest
from .kubelets.commands import CommandResult
from .kubelets.gangs import environment_of, execution_job, expand_references, main_container
from .objects import JsonObject, micro_timestamp
from .pod_logs import PREFIX_LENGTH, LoggedPod, log_path
from .values import PodRuntime

BASE = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
COMMAND_LIMIT_S = 60.0
MAX_OUTPUT_BYTES = 1 << 20
READ_CHUNK = 1 << 20


def pod_environment(job: SimulatedJob, account: UnixAccount) -> Mapping[str, str]:
    """The variables of a container, after those that every image has."""
    return {**BASE, "HOME": account.home, **job.request.environment}


class PodPrograms:
    """Describes the program of a pod for the executor of processes."""

    def __init__(self, state: Path) -> None:
        self._state = state

    def describe(
        self, number: int, pods: Sequence[tuple[JsonObject, PodRuntime]], plan: Mapping[str, str], now: float
    ) -> SimulatedJob:
        pod, runtime = pods[0]
        directory = temporary_directory(self._state, runtime.uid)
        directory.mkdir(parents=True, exist_ok=True)
        job = execution_job(number, pods, {}, now)
        request = replace(
            job.request,
            script=_script(pod),
            environment=_environment(pod, runtime, directory),
            workdir=_workdir(main_container(pod), directory),
            stdout=str(raw_log(self._state, number)),
        )
        return replace(job, request=request)


def temporary_directory(state: Path, uid: str) -> Path:
    return state / "pods" / uid


def raw_log(state: Path, number: int) -> Path:
    return state / "raw" / f"{number}.log"


def _script(pod: JsonObject) -> str:
    """A script that becomes the command of the container. Without a command, the image would have one."""
    container, variables = main_container(pod), environment_of(pod)
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    command = [expand_references(str(word), variables) for word in words]
    return f"#!/bin/bash\nexec {shlex.join(command)}\n" if command else "#!/bin/bash\n"


def _environment(pod: JsonObject, runtime: PodRuntime, directory: Path) -> dict[str, str]:
    hidden = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, runtime.gpus))}
    host_name = str(pod["spec"].get("hostname") or runtime.name)
    return {"TMPDIR": str(directory), "HOSTNAME": host_name, **hidden, **environment_of(pod)}


def _workdir(container: JsonObject, directory: Path) -> str:
    """The working directory if this machine has it."""
    wanted = str(container.get("workingDir") or "")
    return wanted if wanted and Path(wanted).is_dir() else str(directory)


@dataclass(kw_only=True)
class _CopiedLog:
    uid: str
    path: Path
    offset: int  # of the output that is in the log


class ProcessLogs:
    """Copies the output of processes into the logs of their containers."""

    def __init__(self, state: Path, root: Path, pods_of: Callable[[int], Sequence[LoggedPod]]) -> None:
        self._state, self._root, self._pods_of = state, root, pods_of
        self._open: dict[int, _CopiedLog] = {}

    def track(self, number: int) -> None:
        """Copy the output of an execution from now on. The length of the log says what was copied before a restart."""
        for pod in self._pods_of(number)[:1]:
            one = pod.runtime
            path = log_path(self._root, one.uid, one.namespace, one.name, pod.container, one.restarts)
            with log_descriptor(self._root, str(path), APPEND_FLAGS):
                self._open[number] = _CopiedLog(uid=one.uid, path=path, offset=_copied_bytes(path))

    def write(self, now: float) -> None:
        """Copy what is new."""
        for number, log in self._open.items():
            self._copy(number, log, now)

    def finish(self, number: int, now: float) -> None:
        """Copy the rest of a process that has ended."""
        if log := self._open.pop(number, None):
            self._copy(number, log, now, ended=True)
            raw_log(self._state, number).unlink(missing_ok=True)

    def remove(self, runtime: PodRuntime) -> None:
        """Delete what a deleted pod has left."""
        for number in [number for number, log in self._open.items() if log.uid == runtime.uid]:
            del self._open[number]
            raw_log(self._state, number).unlink(missing_ok=True)
        name = f"{runtime.namespace}_{runtime.name}_{runtime.uid}"
        shutil.rmtree(self._root / name, ignore_errors=True)
        shutil.rmtree(temporary_directory(self._state, runtime.uid), ignore_errors=True)

    def _copy(self, number: int, log: _CopiedLog, now: float, *, ended: bool = False) -> None:
        while content := self._read(number, log):
            end = len(content) if ended and len(content) < READ_CHUNK else content.rfind(b"\n") + 1
            if not end:
                return
            self._append(log.path, content[:end], now)
            log.offset += end

    def _read(self, number: int, log: _CopiedLog) -> bytes:
        with suppress(FileNotFoundError), raw_log(self._state, number).open("rb") as file:
            file.seek(log.offset)
            return file.read(READ_CHUNK)
        return b""

    def _append(self, path: Path, content: bytes, now: float) -> None:
        prefix = f"{micro_timestamp(now)} stdout F ".encode()
        lines = content.removesuffix(b"\n").split(b"\n")
        with log_descriptor(self._root, str(path), APPEND_FLAGS) as fd:
            os.write(fd, b"".join(prefix + line + b"\n" for line in lines))


class PodProcesses:
    """The executor of pods: that of jobs, and the copying of their output."""

    def __init__(self, state: Path, logs: ProcessLogs, effects: EffectRecorder) -> None:
        self._logs = logs
        self._processes = ProcessExecutor(
            state=state / "processes", log_root=state / "raw", effects=effects, environment_of=pod_environment
        )

    def start(self, job: SimulatedJob, now: float) -> None:
        self._logs.track(job.id)
        self._processes.start(job, now)

    def adopt(self, job: SimulatedJob, now: float) -> None:
        self._logs.track(job.id)
        self._processes.adopt(job, now)

    def signal(self, job: SimulatedJob, number: int, now: float, aim: SignalTarget = SignalTarget.ALL) -> None:
        self._processes.signal(job, number, now, aim)

    def apply_fault(self, job: SimulatedJob, now: float) -> None:
        """Simulated faults do not reach real processes."""

    def next_end_at(self) -> float:
        return self._processes.next_end_at()

    def poll_ends(self, now: float) -> Sequence[JobEnd]:
        ends = self._processes.poll_ends(now)
        for end in ends:
            self._logs.finish(end.job_id, now)
        return ends

    def prune(self, known: Collection[int]) -> None:
        """Delete what processes have left whose executions are over."""
        self._processes.prune(known)


def _copied_bytes(path: Path) -> int:
    """How much output a log contains. An incomplete last line, left by a crash, is removed."""
    with suppress(FileNotFoundError), path.open("r+b") as file:
        content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        file.truncate(len(whole))
        return sum(len(line) - PREFIX_LENGTH for line in whole.splitlines(keepends=True))
    return 0


class ProcessCommands:
    """Runs commands on this machine with the variables of a container."""

    def __init__(self, cluster: KubernetesCluster, state: Path) -> None:
        self._cluster, self._state = cluster, state

    async def run(self, runtime: PodRuntime, asked: ExecRequest) -> CommandResult:
        directory, pod = temporary_directory(self._state, runtime.uid), self._cluster.store.get(runtime.key)
        own = _environment(pod, runtime, directory) if pod is not None else {}
        try:
            process = await asyncio.create_subprocess_exec(
                *asked.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**BASE, **own},
                cwd=directory,
            )
        except OSError as error:
            return CommandResult(stderr=f"{asked.command[0]:.200}: {error.strerror}\n", code=127)
        try:
            stdout, stderr = await asyncio.wait_for(process.communicate(), COMMAND_LIMIT_S)
        except TimeoutError:
            process.kill()
            stdout, stderr = await process.communicate()
        code = process.returncode or 0
        return CommandResult(stdout=_text(stdout), stderr=_text(stderr), code=code if code >= 0 else 128 - code)


def _text(content: bytes) -> str:
    return content[:MAX_OUTPUT_BYTES].decode(errors="replace")
