"""Exit code and signal as evidence: what a process's end says when its text says nothing. Pure."""

from __future__ import annotations

from .values import Blame, Ending, Finding, Line, Restart, Role

SIGNALS: dict[int, tuple[str, int, str]] = {
    9: ("HostOOMKilled", 40, "killed by SIGKILL, which the kernel's out-of-memory killer sends"),
    7: ("DataloaderKilled", 40, "killed by SIGBUS, as when shared memory runs out"),
    11: ("RuntimeError", 30, "killed by SIGSEGV: native code touched memory that is not its own"),
    6: ("RuntimeError", 26, "ended itself with SIGABRT"),
    15: ("Preempted/TimeLimit", 24, "ended by SIGTERM: something outside asked for it"),
    2: ("Hang", 10, "interrupted by hand"),
}
CODES: dict[int, tuple[str, int, str]] = {
    124: ("Preempted/TimeLimit", 42, "exit code 124 is what timeout(1) gives"),
    126: ("PermissionError", 40, "exit code 126: found but not executable"),
    127: ("FileNotFoundError", 40, "exit code 127: command not found"),
    2: ("ArgumentError", 14, "exit code 2 is what argument parsers give"),
}


def signal_of(ending: Ending) -> int | None:
    """A shell writes a signal as 128 + n, Python as a negative code."""
    if ending.signal:
        return abs(ending.signal)
    code = ending.exit_code
    if code is None:
        return None
    return -code if code < 0 else code - 128 if 128 < code < 160 else None


def finding(ending: Ending) -> Finding | None:
    """A symptom on line 0, below every line of text that says more."""
    number = signal_of(ending)
    row = SIGNALS.get(number) if number else CODES.get(ending.exit_code or 0)
    if row is None:
        return None
    label, specificity, words = row
    return Finding(
        signature="ending", label=label, role=Role.CASCADE, specificity=specificity, blame=Blame.JOB,
        restart=Restart.UNKNOWN if label == "Hang" else None, line=Line(number=0, text=words, message=words), count=1,
    )  # fmt: skip


def failed(ending: Ending) -> bool | None:
    """Did it fail? None where nobody says."""
    if not ending.known:
        return None
    return bool(ending.signal) or ending.exit_code not in (0, None)
