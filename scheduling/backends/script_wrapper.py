"""Shell text that runs a job's own script as a child process and waits for its exit code. Pure.

The wrappers of Slurm (`batch_script`) and Kubernetes (`kubernetes.pod_script`) put their own lines around it. Because
the script is a child process, it may use `exec` and `trap` freely.
"""

from __future__ import annotations

import shlex

SIGNALS = ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "ALRM", "XCPU")

# Sets acme_child, the process id of the script
_START = """\
acme_defaults=
# Bash starts background processes with SIGINT and SIGQUIT ignored
if env --default-signal=INT,QUIT true 2>/dev/null; then
    acme_defaults="env --default-signal=INT,QUIT"
fi
$acme_defaults {interpreter} /dev/fd/3 3<<'{end}' &
{script}{end}
acme_child=$!
"""

# Sets acme_code
WAIT_FOR_SCRIPT = """\
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
"""


def start_script(script: str) -> str:
    """Lines of bash that start the script in its own interpreter."""
    body = script if script.endswith("\n") else f"{script}\n"
    return _START.format(interpreter=_interpreter(script), end=_unused_line(body), script=body)


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
