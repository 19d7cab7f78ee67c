"""The batch script of an attempt on Slurm: a wrapper that runs the job's own script and records how it ended. Pure.

The wrapper writes the attempt record that `attempt_record` describes.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from .attempt_record import STARTED_BEFORE
from .script_wrapper import SIGNALS, WAIT_FOR_SCRIPT, start_script

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
{forwards}{start}{wait}# A later signal to the whole job must not end the programs that write the record
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
    forwarded = tuple(dict.fromkeys(forward))
    return TEMPLATE.format(
        record=shlex.quote(record),
        started_before=STARTED_BEFORE,
        signals=" ".join(name for name in SIGNALS if name not in forwarded),
        all_signals=" ".join(SIGNALS),
        forwards="".join(_forward_trap(name) for name in forwarded),
        start=start_script(script),
        wait=WAIT_FOR_SCRIPT,
    )


def _forward_trap(name: str) -> str:
    return f'trap \'[ -z "$acme_child" ] || kill -s {name} "$acme_child"\' {name}\n'
