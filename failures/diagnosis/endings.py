"""Exit code and signal as evidence, for logs that do not show the cause. Pure."""

from __future__ import annotations

from .values import Blame, ExitStatus, LineRole, LogFinding, ParsedLine, RestartAdvice

SIGNAL_FINDINGS: dict[int, tuple[str, int, str]] = {
    9: ("HostOOMKilled", 40, "Killed by SIGKILL, which the kernel sends when host memory runs out."),
    7: ("DataloaderKilled", 40, "Killed by SIGBUS, usually because shared memory ran out."),
    11: ("RuntimeError", 30, "Killed by SIGSEGV: native code accessed invalid memory."),
    6: ("RuntimeError", 26, "Aborted itself with SIGABRT."),
    15: ("Preempted/TimeLimit", 24, "Ended by SIGTERM, which came from outside the program."),
    2: ("Hang", 10, "Interrupted by SIGINT, usually by a user."),
}
EXIT_CODE_FINDINGS: dict[int, tuple[str, int, str]] = {
    124: ("Preempted/TimeLimit", 42, "Exit code 124: timeout(1) ended the command."),
    126: ("PermissionError", 40, "Exit code 126: the command is not executable."),
    127: ("FileNotFoundError", 40, "Exit code 127: the command was not found."),
    2: ("ArgumentError", 14, "Exit code 2, which argument parsers use for invalid arguments."),
}


def effective_signal(ending: ExitStatus) -> int | None:
    """The signal that ended the process. A shell reports it as exit code 128 + n, Python as a negative code."""
    if ending.signal:
        return abs(ending.signal)
    code = ending.exit_code
    if code is None:
        return None
    return -code if code < 0 else code - 128 if 128 < code < 160 else None


def exit_status_finding(ending: ExitStatus) -> LogFinding | None:
    """A symptom on line 0, which stands for the exit status. Any more specific line of the log ranks above it."""
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
    """Whether the process failed; None if unknown."""
    if not ending.known:
        return None
    return bool(ending.signal) or ending.exit_code not in (0, None)
