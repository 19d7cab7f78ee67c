"""Exit code and signal as evidence: what a process's end says when its text says nothing. Pure."""

from __future__ import annotations

from .values import Blame, ExitStatus, LineRole, LogFinding, ParsedLine, RestartAdvice

SIGNAL_FINDINGS: dict[int, tuple[str, int, str]] = {
    9: ("HostOOMKilled", 40, "killed by SIGKILL, which the kernel's out-of-memory killer sends"),
    7: ("DataloaderKilled", 40, "killed by SIGBUS, as when shared memory runs out"),
    11: ("RuntimeError", 30, "killed by SIGSEGV: native code touched memory that is not its own"),
    6: ("RuntimeError", 26, "ended itself with SIGABRT"),
    15: ("Preempted/TimeLimit", 24, "ended by SIGTERM: something outside asked for it"),
    2: ("Hang", 10, "interrupted by hand"),
}
EXIT_CODE_FINDINGS: dict[int, tuple[str, int, str]] = {
    124: ("Preempted/TimeLimit", 42, "exit code 124 is what timeout(1) gives"),
    126: ("PermissionError", 40, "exit code 126: found but not executable"),
    127: ("FileNotFoundError", 40, "exit code 127: command not found"),
    2: ("ArgumentError", 14, "exit code 2 is what argument parsers give"),
}


def effective_signal(ending: ExitStatus) -> int | None:
    """A shell writes a signal as 128 + n, Python as a negative code."""
    if ending.signal:
        return abs(ending.signal)
    code = ending.exit_code
    if code is None:
        return None
    return -code if code < 0 else code - 128 if 128 < code < 160 else None


def exit_status_finding(ending: ExitStatus) -> LogFinding | None:
    """A symptom on line 0, below every line of text that says more."""
    number = effective_signal(ending)
    row = SIGNAL_FINDINGS.get(number) if number else EXIT_CODE_FINDINGS.get(ending.exit_code or 0)
    if row is None:
        return None
    label, specificity, words = row
    return LogFinding(
        signature="ending", label=label, role=LineRole.CASCADE, specificity=specificity, blame=Blame.JOB,
        restart=RestartAdvice.UNKNOWN if label == "Hang" else None,
        line=ParsedLine(number=0, text=words, message=words), count=1,
    )  # fmt: skip


def is_failure(ending: ExitStatus) -> bool | None:
    """Did it fail? None where nobody says."""
    if not ending.known:
        return None
    return bool(ending.signal) or ending.exit_code not in (0, None)
