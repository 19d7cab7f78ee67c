"""Run one program on a leash: it ends when its parent ends, and it may give up root before it begins.

    python acmeweb/services/parent_guard.py --signal INT --user 60601 --hold FILE -- postgres -D …

Supervisors forget children when they are killed with -9; the kernel does not (PR_SET_PDEATHSIG). The wrapper sets that,
changes the user where asked, and becomes the program by exec: there is no process of its own that could die between.
Standard library only, no Django: it is started once per program and must cost a few milliseconds. Where there is no
Linux it just becomes the program.
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

# What a program under another user may know of our environment: nothing secret.
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
    """The words that start `program` on a leash. -I -S: nothing of the surroundings, and a start in 10 ms."""
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
    """Whether this user can walk to the path and read what lies there, by the permission bits alone."""
    if not all(_permits(above, uid, gid, stat.S_IXOTH) for above in path.parents):
        return False
    return _permits(path, uid, gid, stat.S_IROTH | stat.S_IXOTH)


def _permits(path: Path, uid: int, gid: int, others: int) -> bool:
    seen = path.stat()
    shift = 6 if seen.st_uid == uid else 3 if seen.st_gid == gid else 0
    return seen.st_mode & (others << shift) == others << shift


def switch_user(user: str, reach: Sequence[Path], home: Path | None, low_port: bool) -> None:
    """Give up root for good. Keep only the capabilities that the program cannot do its work without."""
    uid, gid = ids_of(user)
    # Asked while still root: afterwards a closed directory could not even be looked into.
    kept = needed_capabilities(reach, uid, gid, low_port) if sys.platform == "linux" else frozenset()
    if kept:
        # Capabilities outlive the change of user, and access(2), which initdb asks, then counts them too.
        _prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if kept:
        _keep_only(kept)
    if home is None:
        plain = {name: value for name, value in os.environ.items() if name in KEPT_VARIABLES}
        os.environ.clear()
        os.environ.update(plain, HOME="/")
    else:
        os.environ.update(HOME=str(home), USER="acme", LOGNAME="acme")


def ids_of(user: str) -> tuple[int, int]:
    """A name from the system's list, or a number, which needs no entry there and is also the number of its group."""
    if user.isdigit():
        return int(user), int(user)
    account = pwd.getpwnam(user)
    return account.pw_uid, account.pw_gid


def needed_capabilities(reach: Sequence[Path], uid: int, gid: int, low_port: bool) -> frozenset[int]:
    """Reading is enough to walk through a checkout closed to others (mode 0700); a program in it that is closed itself
    can be started only with the right to everything."""
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
    """Must come after setuid: a change of user clears the setting."""
    if sys.platform != "linux":
        return
    _prctl(PR_SET_PDEATHSIG, stop)
    # The parent may have died before the line above, and then no signal will come.
    if os.getppid() != parent:
        sys.exit(1)


def _prctl(option: int, *values: int) -> None:
    words = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)][:4]
    if ctypes.CDLL(None, use_errno=True).prctl(option, *words) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option} refused")


def hold_shared_lock(path: Path) -> None:
    """Share a lock that the program and everything it forks keep until the last of them is gone.

    So the next start knows whether something of this one is still alive, without a pid that could be somebody else's.
    """
    opened = os.open(path, os.O_RDONLY | os.O_CREAT, 0o600)
    fcntl.flock(opened, fcntl.LOCK_SH)
    os.set_inheritable(opened, True)


def reset_signals() -> None:
    """A parent started in the background ignores SIGINT and hands that down; our programs stop by it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="leash", description="run a program that ends with its parent")
    parser.add_argument("--signal", default="TERM", help="what the program gets when the parent is gone")
    parser.add_argument("--parent", type=int, default=0, help="the pid that must still be the parent, where known")
    parser.add_argument("--user", default="", help="the name or number of the user to become, when root")
    parser.add_argument("--reach", type=Path, action="append", default=[], help="what that user must get at")
    parser.add_argument("--home", type=Path, help="the user's home; with it the environment is kept")
    parser.add_argument("--low-port", action="store_true", help="keep the right to listen on a port below 1024")
    parser.add_argument("--hold", type=Path, help="a file to keep a shared lock on")
    parser.add_argument("program", nargs="+")
    asked = parser.parse_args(argv)
    parent = asked.parent or os.getppid()
    reset_signals()
    if asked.hold:
        hold_shared_lock(asked.hold)
    if asked.user and os.geteuid() == 0:
        try:
            switch_user(asked.user, asked.reach, asked.home, asked.low_port)
        except (OSError, KeyError) as error:
            sys.exit(f"cannot become {asked.user} ({error}); start it as an ordinary user instead of root")
    die_with_parent(signal.Signals[f"SIG{asked.signal}"], parent)
    try:
        os.execvp(asked.program[0], asked.program)
    except OSError as error:
        sys.exit(f"{asked.program[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
