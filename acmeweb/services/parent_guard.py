"""Runs one program so that it ends when its parent ends, and can give up root before it starts.

    python acmeweb/services/parent_guard.py --signal INT --user 60601 --hold FILE -- postgres -D …

Supervisor does not stop its children when it is killed with -9; the kernel does (PR_SET_PDEATHSIG). This wrapper sets
that, changes the user if requested, and becomes the program by exec, so there is no process in between that could die.
Standard library only, no Django: it runs once per program and must cost a few milliseconds. On systems other than
Linux it only executes the program.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import pwd
import signal
import stat
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_SECUREBITS = 28
SECBIT_NO_SETUID_FIXUP = 1 << 2
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CAP_DAC_OVERRIDE = 1
CAP_DAC_READ_SEARCH = 2
CAP_NET_BIND_SERVICE = 10
CAPABILITY_VERSION_3 = 0x20080522

# Variables that a program under another user may keep: nothing secret.
KEPT_VARIABLES = frozenset({"PATH", "LANG", "LC_ALL", "TZ", "TMPDIR"})


def guarded_command(
    program: Sequence[str],
    *,
    stop: str = "TERM",
    parent: int = 0,
    user: str = "",
    hold: Path | None = None,
    reach: Sequence[Path] = (),
    home: Path | None = None,
    low_port: bool = False,
) -> list[str]:
    """Return the command that starts `program` under the guard. -I -S ignore the environment and start in 10 ms."""
    words = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), "--signal", stop]
    words += ["--parent", str(parent)] if parent else []
    words += ["--user", user] if user else []
    words += ["--hold", str(hold)] if hold else []
    words += ["--home", str(home)] if home else []
    words += ["--low-port"] if low_port else []
    for path in reach:
        words += ["--reach", str(path)]
    return [*words, "--", *program]


def may_reach(path: Path, uid: int, gid: int) -> bool:
    """Whether this user can reach the path and read it, by the permission bits alone."""
    if not all(_permits(above, uid, gid, stat.S_IXOTH) for above in path.parents):
        return False
    return _permits(path, uid, gid, stat.S_IROTH | stat.S_IXOTH)


def _permits(path: Path, uid: int, gid: int, others: int) -> bool:
    status = path.stat()
    shift = 6 if status.st_uid == uid else 3 if status.st_gid == gid else 0
    return status.st_mode & (others << shift) == others << shift


def switch_user(user: str, reach: Sequence[Path], home: Path | None, low_port: bool) -> None:
    """Give up root permanently. Keep only the capabilities that the program needs."""
    uid, gid = ids_of(user)
    # Determined while still root: afterwards a closed directory could not be inspected.
    paths = [*reach, home] if home else reach
    capabilities = needed_capabilities(paths, uid, gid, low_port) if sys.platform == "linux" else frozenset()
    if capabilities:
        # Capabilities survive the change of user; access(2), which initdb uses, then counts them too.
        _prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if capabilities:
        _keep_only(capabilities)
    if home is None:
        plain = {name: value for name, value in os.environ.items() if name in KEPT_VARIABLES}
        os.environ.clear()
        os.environ.update(plain, HOME="/")
    else:
        os.environ.update(HOME=str(home), USER="acme", LOGNAME="acme")


def ids_of(user: str) -> tuple[int, int]:
    """Return uid and gid of a user name, or of a number, which needs no system entry and is also its group's id."""
    if user.isdigit():
        return int(user), int(user)
    account = pwd.getpwnam(user)
    return account.pw_uid, account.pw_gid


def needed_capabilities(reach: Sequence[Path], uid: int, gid: int, low_port: bool) -> frozenset[int]:
    """Return the capabilities that the user needs to reach these paths. Read access is enough to enter a checkout or
    an instance below a directory closed to others (mode 0700); executing a closed program there needs
    CAP_DAC_OVERRIDE."""
    resolved = [path.resolve() for path in reach]
    needed = {CAP_NET_BIND_SERVICE} if low_port else set()
    if not all(may_reach(path, uid, gid) for path in resolved):
        programs = [path for path in resolved if path.is_file()]
        startable = all(_permits(program, uid, gid, stat.S_IXOTH) for program in programs)
        needed.add(CAP_DAC_READ_SEARCH if startable else CAP_DAC_OVERRIDE)
    return frozenset(needed)


def _keep_only(capabilities: frozenset[int]) -> None:
    """Drop every other capability, and make these survive the exec that follows."""
    bits = sum(1 << capability for capability in capabilities)
    header = struct.pack("=Ii", CAPABILITY_VERSION_3, 0)
    sets = struct.pack("=IIIIII", bits, bits, bits, 0, 0, 0)  # effective, permitted, inheritable; the upper 32 bits
    if ctypes.CDLL(None, use_errno=True).capset(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capset refused")
    for capability in capabilities:
        _prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability)


def die_with_parent(stop: signal.Signals, parent: int) -> None:
    """Ask the kernel for a signal when the parent ends. Call it after setuid, which clears the setting."""
    if sys.platform != "linux":
        return
    _prctl(PR_SET_PDEATHSIG, stop)
    # The parent may have died before the call above; then no signal will come.
    if os.getppid() != parent:
        sys.exit(1)


def _prctl(option: int, *values: int) -> None:
    words = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)][:4]
    if ctypes.CDLL(None, use_errno=True).prctl(option, *words) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option} refused")


def hold_shared_lock(path: Path) -> None:
    """Take a shared lock that the program and all its children keep until the last of them ends.

    So the next start detects running processes of this one without pids, which the system may reuse.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    os.set_inheritable(descriptor, True)


def reset_signals() -> None:
    """Restore default signal handling: background processes inherit an ignored SIGINT, which stops our programs."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="parent_guard", description="Run a program that ends with its parent.")
    parser.add_argument("--signal", default="TERM", help="signal that the program gets when the parent ends")
    parser.add_argument("--parent", type=int, default=0, help="expected pid of the parent, if known")
    parser.add_argument("--user", default="", help="name or number of the user to become, if started as root")
    parser.add_argument("--reach", type=Path, action="append", default=[], help="path that the user must read")
    parser.add_argument("--home", type=Path, help="home directory that the user must read; the environment is kept")
    parser.add_argument("--low-port", action="store_true", help="keep the right to listen on a port below 1024")
    parser.add_argument("--hold", type=Path, help="file on which to hold a shared lock")
    parser.add_argument("program", nargs="+")
    options = parser.parse_args(argv)
    parent = options.parent or os.getppid()
    reset_signals()
    if options.hold:
        hold_shared_lock(options.hold)
    if options.user and os.geteuid() == 0:
        try:
            switch_user(options.user, options.reach, options.home, options.low_port)
        except (OSError, KeyError) as error:
            sys.exit(f"Cannot become user {options.user} ({error}). Start it as an ordinary user instead of root.")
    die_with_parent(signal.Signals[f"SIG{options.signal}"], parent)
    try:
        os.execvp(options.program[0], options.program)
    except OSError as error:
        sys.exit(f"{options.program[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
