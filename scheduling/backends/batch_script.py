"""The batch script of an attempt on Slurm: a wrapper that runs the job's own script and records how it ended. Pure.

The wrapper writes the attempt record that `attempt_record` describes. Because the job's script is a child process, it
may use `exec` and `trap` freely.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from .attempt_record import STARTED_BEFORE

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
# A signal interrupts `wait`, so `wait` is repeated until the child is gone, and once more for its real exit code
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
# A later signal to the whole job must not end the programs that write the record
trap '' {all_signals}
umask 022
if [ -n "$acme_record" ]; then
    echo "$acme_code $(date +%s)" >"$acme_record/exit.new" && mv -f -- "$acme_record/exit.new" "$acme_record/exit"
fi
exit "$acme_code"
"""

# On each node, srun starts one process of the pair test and passes it the program through standard input
RANK_LAUNCHER = """\
if command -v srun >/dev/null 2>&1 && [ -n "$SLURM_JOB_ID" ]; then
  program | srun --nodes="$ranks" --ntasks="$ranks" --ntasks-per-node=1 --input=all sh -c \\
    'MASTER_ADDR="$SLURM_LAUNCH_NODE_IPADDR" exec python3 - "$@"' rank "$@"
  exit $?
fi
"""


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
        all_signals=" ".join(SIGNALS),
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
