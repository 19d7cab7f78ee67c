"""The shim beside one job, as slurmstepd is: it starts the command, waits, and writes down how it ended.

It lives in a session of its own and needs nobody: the server may be killed and come back, and finds the record.
Started by root it stays root, so that the job cannot touch the record, and the job becomes the user of its spec.
Standard library only; started with `python -S -E stepd.py DIRECTORY LOCK` so that it costs milliseconds. In the
directory lie `spec.json` (read), `running.json` and `exit.json` (written, each whole or not at all). The lock that it
inherits is held as long as it lives: whoever gets that lock knows that no shim is there.
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
LAST_CAPABILITY = 63  # the kernel knows fewer, and refuses the rest
CANNOT_START_EXIT_CODE = 126


def main(directory: str, lock: int) -> int:
    os.set_inheritable(lock, False)  # the job must not hold it
    with open(os.path.join(directory, "spec.json"), encoding="utf-8") as file:
        spec = json.load(file)
    # What the job leaves behind becomes our child, so that nothing of it survives it, not even what left its session.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # The record comes before the command: whoever kills us at any instruction leaves either a job that is known, or a
    # child that hears nothing any more and goes.
    (ready, is_ready), (go, may_go) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(may_go)
        wait_for_go(is_ready, go)
        exec_job(spec)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the job is asked to end; we must be there to see it
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
    """In the child: lead a session, say so, and go on only when the shim has written down who we are."""
    os.setsid()
    os.close(ready)
    if os.read(go, 1) != b"g":
        os._exit(CANNOT_START_EXIT_CODE)


def exec_job(spec: dict[str, Any]) -> None:
    """The child's way into the job's command; it must not return."""
    try:
        if spec["cpus"]:
            os.sched_setaffinity(0, spec["cpus"])
        # Opened before the change of user, and named by its descriptor: the way to it is closed to that user.
        script = os.open(spec["script"], os.O_RDONLY)
        os.set_inheritable(script, True)
        os.umask(0o022)  # the server's is stricter
        if spec["ids"]:
            change_user(*spec["ids"])
        enter_workdir(spec["workdir"], spec["user"])
        command = [*spec["interpreter"], f"/dev/fd/{script}"]
        told = {**spec["environment"], "SLURM_TASK_PID": str(os.getpid())}
        os.execve(command[0], command, told)  # noqa: S606 - that is its purpose
    except BaseException as error:  # whatever it is, it must become an exit code, not a second shim
        os.write(2, f"stepd: error: the job cannot start: {error}\n".encode())
        os._exit(CANNOT_START_EXIT_CODE)


def change_user(uid: int, gid: int) -> None:
    """For good: with no group but that user's own, no capability, and no setuid program that could bring one back."""
    for capability in range(LAST_CAPABILITY + 1):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    drop_capabilities()


def drop_capabilities() -> None:
    """The change of user does this too, unless whoever started the server had switched that off (securebits)."""
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
    """KILL whatever is left until nothing is left."""
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
    me, found = str(os.getpid()), []
    for pid in pids():
        try:
            if stat_fields(pid)[1] == me:
                found.append(pid)
        except OSError:
            continue  # gone while we looked
    return found


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def start_time(pid: int) -> int:
    """Field 22 of /proc/pid/stat: with it, a pid means one process for ever."""
    return int(stat_fields(pid)[19])


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/pid/stat from the third on: the second, the name, may hold spaces and brackets."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def write(directory: str, name: str, record: dict[str, Any]) -> None:
    """tmp, fsync, rename: a reader sees the whole record or none."""
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
