"""The shim next to one job, like slurmstepd: it starts the command, waits, and records how it ended.

It has its own session and does not depend on the server, which may be killed and finds the record when it restarts.
Started by root it stays root, so that the job cannot change the record; the job runs as the user in its spec. Standard
library only; started with `python -S -E stepd.py DIRECTORY LOCK`, which takes milliseconds. The directory contains
`spec.json` (read), `running.json` and `exit.json` (written, each completely or not at all). The shim holds the
inherited lock as long as it lives: a process that gets the lock knows that no shim is running.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import sys
import time
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
CAPABILITY_VERSION_3 = 0x20080522
PR_CAPBSET_DROP = 24
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
LAST_CAPABILITY = 63  # the kernel defines fewer and rejects the others
CANNOT_START_EXIT_CODE = 126


def main(directory: str, lock: int) -> int:
    os.set_inheritable(lock, False)  # the job must not hold it
    with open(os.path.join(directory, "spec.json"), encoding="utf-8") as file:
        spec = json.load(file)
    # Orphans of the job become children of the shim, so that all of them end with it, even outside its session.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # The record is written before the command starts. If the shim is killed at any point, the job is either recorded,
    # or its child gets end of file instead of "g" and exits.
    (ready, is_ready), (go, may_go) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(may_go)
        wait_for_go(is_ready, go)
        exec_job(spec)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a stop is for the job; the shim must stay to record its end
    os.close(is_ready)
    os.read(ready, 1)
    write(directory, "running.json", {"pid": child, "start": start_time(child), "boot": boot_id()})
    os.write(may_go, b"g")
    os.close(may_go)
    status = wait_for_child(child)
    kill_remaining_children()
    write(directory, "exit.json", {"status": status, "at": time.time()})
    return 0


def wait_for_go(ready: int, go: int) -> None:
    """In the child: start a session, report it, and continue only after the shim has recorded this process."""
    os.setsid()
    os.close(ready)
    if os.read(go, 1) != b"g":
        os._exit(CANNOT_START_EXIT_CODE)


def exec_job(spec: dict[str, Any]) -> None:
    """Replace the child by the job's command; does not return."""
    try:
        if spec["cpus"]:
            os.sched_setaffinity(0, spec["cpus"])
        # Opened before the change of user and passed by descriptor, because that user cannot access its directory
        script = os.open(spec["script"], os.O_RDONLY)
        os.set_inheritable(script, True)
        os.umask(0o022)  # the server's umask is stricter
        if spec["ids"]:
            change_user(*spec["ids"])
        enter_workdir(spec["workdir"], spec["user"])
        command = [*spec["interpreter"], f"/dev/fd/{script}"]
        environment = {**spec["environment"], "SLURM_TASK_PID": str(os.getpid())}
        os.execve(command[0], command, environment)  # noqa: S606 - its purpose
    except BaseException as error:  # every error must become an exit code, not a second shim
        os.write(2, f"stepd: error: the job cannot start: {error}\n".encode())
        os._exit(CANNOT_START_EXIT_CODE)


def change_user(uid: int, gid: int) -> None:
    """Change the user permanently: only the user's own group, no capabilities, no setuid programs that restore them."""
    for capability in range(LAST_CAPABILITY + 1):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    drop_capabilities()


def drop_capabilities() -> None:
    """Drop all capabilities. The change of user does this too, unless securebits disabled it for the server."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, nothing = struct.pack("=Ii", CAPABILITY_VERSION_3, 0), struct.pack("=IIIIII", *[0] * 6)
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    if libc.capset(header, nothing) != 0 or libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the job's capabilities cannot be dropped")


def enter_workdir(workdir: str, user: str) -> None:
    try:
        os.chdir(workdir)
    except OSError as error:
        raise OSError(f"{user} cannot enter the working directory {workdir} ({error.strerror})") from None


def wait_for_child(child: int) -> int:
    while True:
        pid, status = os.waitpid(-1, 0)  # orphans of the job end here too
        if pid == child:
            return status


def kill_remaining_children() -> None:
    """Send KILL to all remaining children until none are left."""
    while True:
        for pid in child_pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def child_pids() -> list[int]:
    own_pid, pids_found = str(os.getpid()), []
    for pid in pids():
        try:
            if stat_fields(pid)[1] == own_pid:
                pids_found.append(pid)
        except OSError:
            continue  # the process ended meanwhile
    return pids_found


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def start_time(pid: int) -> int:
    """Field 22 of /proc/pid/stat, which together with the pid identifies a process until the next boot."""
    return int(stat_fields(pid)[19])


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/pid/stat from the third on; the second, the name, may contain spaces and brackets."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def write(directory: str, name: str, record: dict[str, Any]) -> None:
    """Write through a temporary file, fsync and rename: a reader sees the complete record or none."""
    path = os.path.join(directory, name)
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{path}.tmp", path)
    at = os.open(directory, os.O_RDONLY)
    os.fsync(at)
    os.close(at)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
