"""The batch script of an attempt: the job's own script runs as a child of a wrapper that records how it ended. Pure.

A cluster forgets ended jobs (Slurm's MinJobAge, 300 s by default). So the script itself leaves an attempt record, a
directory beside the log:

    LOG.acme/start   "<Slurm job id> <host> <unix seconds>", written before the command starts
    LOG.acme/exit    "<exit code> <unix seconds>", written as the last action; 128 + n after signal n

Because the job's script is a child process, it may use `exec` and `trap` freely. Creating the directory is atomic, so
the same attempt cannot start twice even if it was submitted twice: the second start exits with `STARTED_BEFORE` and
runs nothing. If the directory cannot be created for another reason, the command runs without a record. A script that is
ended by KILL leaves `start` and no `exit`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

RECORD_VARIABLE = "ACME_ATTEMPT_RECORD"
STARTED_BEFORE = 97  # exit code of a start that was refused because the attempt had been started before
SIGNALS = ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "ALRM", "XCPU")

TEMPLATE = """\
#!/bin/bash
# The job's own script is below. It runs as a child process, so that its exit code is recorded however it ends.
acme_umask=$(umask)
umask 022
acme_record={record}
if ! mkdir -- "$acme_record" 2>/dev/null; then
    # A directory of another user is no record of ours
    if [ -d "$acme_record" ] && [ -O "$acme_record" ]; then
        echo "acme: this attempt was started before, so it is not started again" >&2
        exit {started_before}
    fi
    acme_record=
fi
if [ -n "$acme_record" ]; then
    echo "${{SLURM_JOB_ID:-0}} ${{HOSTNAME:-unknown}} $(date +%s)" >"$acme_record/start"
fi
umask "$acme_umask"
# A signal to the whole job reaches the script directly. One to the batch shell alone is passed on.
trap : {signals}
acme_child=
{forwards}acme_defaults=
# Bash starts background processes with SIGINT and SIGQUIT ignored
if env --default-signal=INT,QUIT true 2>/dev/null; then
    acme_defaults="env --default-signal=INT,QUIT"
fi
$acme_defaults {interpreter} /dev/fd/3 3<<'{end}' &
{script}{end}
acme_child=$!
# A signal interrupts `wait`, so it is asked until the child is gone, and once more for its real exit code
while :; do
    wait "$acme_child" 2>/dev/null
    acme_code=$?
    kill -0 "$acme_child" 2>/dev/null || break
done
wait "$acme_child" 2>/dev/null
acme_again=$?
case "$acme_again" in
    -1 | 127) ;; # Bash has forgotten the child; the first answer was its exit code
    *) acme_code=$acme_again ;;
esac
umask 022
if [ -n "$acme_record" ]; then
    echo "$acme_code $(date +%s)" >"$acme_record/exit.new" && mv -f -- "$acme_record/exit.new" "$acme_record/exit"
fi
exit "$acme_code"
"""


def record_directory(log_path: str) -> str:
    """The directory of the attempt record for this log path; empty if Acme does not write the log."""
    return f"{log_path}.acme" if log_path else ""


def batch_script(script: str, *, record: str, forward: Iterable[str] = ()) -> str:
    """The wrapped script; unchanged without a record. `forward` names signals that are sent to the batch shell
    alone.
    """
    if not record:
        return script
    body = script if script.endswith("\n") else f"{script}\n"
    forwarded = tuple(dict.fromkeys(forward))
    return TEMPLATE.format(
        record=shlex.quote(record),
        started_before=STARTED_BEFORE,
        signals=" ".join(name for name in SIGNALS if name not in forwarded),
        forwards="".join(_forward_trap(name) for name in forwarded),
        interpreter=_interpreter(script),
        end=_unused_line(body),
        script=body,
    )


def _forward_trap(name: str) -> str:
    return f'trap \'[ -z "$acme_child" ] || kill -s {name} "$acme_child"\' {name}\n'


def _interpreter(script: str) -> str:
    """The interpreter from the first line of the script, parsed like the kernel does: the program and at most one
    argument.
    """
    first = script.partition("\n")[0]
    words = first.removeprefix("#!").split(maxsplit=1) if first.startswith("#!") else []
    return shlex.join(word.strip() for word in words or ["/bin/bash"])


def _unused_line(text: str) -> str:
    """A line that does not occur in the text, used to end the here-document."""
    lines = {line for line in text.split("\n") if line.startswith("ACME_END_OF_SCRIPT")}
    number = 0
    while (end := f"ACME_END_OF_SCRIPT_{number}") in lines:
        number += 1
    return end


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """The content of the attempt record. `exit_code` is None if the script did not reach its last action."""

    started: bool
    exit_code: int | None = None
    started_at: float | None = None  # unix seconds by the node's clock
    ended_at: float | None = None


def read_record(start_line: str | None, exit_line: str | None) -> AttemptRecord:
    """Parse both files; None for a file that does not exist. Unreadable content counts as not written."""
    started = (start_line or "").split()
    at = _parse_number(started[2]) if len(started) == 3 else None
    ended = [_parse_number(word) for word in (exit_line or "").split()]
    if len(ended) == 2 and ended[0] is not None and ended[1] is not None:
        return AttemptRecord(started=True, started_at=at, exit_code=ended[0] & 0xFF, ended_at=ended[1])
    return AttemptRecord(started=start_line is not None, started_at=at)


def _parse_number(word: str) -> int | None:
    return int(word) if word.isascii() and word.isdigit() and len(word) <= 11 else None
