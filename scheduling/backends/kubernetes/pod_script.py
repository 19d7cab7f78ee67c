"""The main program of a pod: a wrapper in bash that runs the job's own script and ends it in order. Pure.

- The processes of the script inherit the variable `PROCESS_VARIABLE`, which the wrapper and the pod do not have. So
  they are found whatever process groups they form, and nothing else is, even where `/proc` shows other containers.
- At TERM, the wrapper sends the checkpoint signal, if there is one, to those processes that handle it: any other would
  die of it, and the shell of the script with its trainer still running. When these have ended, or the time is over, all
  get TERM. The wrapper waits for all, because the container ends with it. The kubelet limits the wait by KILL.
- The exit code is that of the script. Exception: a script that is stopped and ends with 0, as after saving a
  checkpoint, may not have finished its work, so its pod fails with 143, as if TERM had ended it. Therefore a pod that
  succeeded has ended by itself, whatever was requested meanwhile.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Mapping

from jobs.core.slurm_notation import parse_signal

from ..base import SubmitRequest
from ..script_wrapper import WAIT_FOR_SCRIPT, start_script

PROCESS_VARIABLE = "ACME_PROCESS_OF"  # its value is the attempt's key
INDEX_VARIABLE = "JOB_COMPLETION_INDEX"  # the Job controller sets it; pods without a Job get it from Acme
EXIT_CODE_WHEN_STOPPED = 128 + signal.SIGTERM
# Set from the pod's index, like those that launchers set
RANK_VARIABLES = ("NODE_RANK", "PET_NODE_RANK", "SLURM_NODEID", "SLURM_PROCID")

_TEMPLATE = """\
acme_index=${{{index}:-0}}
acme_files="${{TMPDIR:-/tmp}}/acme-"{key}"-$acme_index"
for acme_name in {ranks}; do
    export "$acme_name=$acme_index"
done
export ACME_HOSTFILE="$acme_files.hosts"
IFS=, read -r -a acme_hosts <<<"$SLURM_JOB_NODELIST"
printf '%s slots={slots}\\n' "${{acme_hosts[@]}}" >"$ACME_HOSTFILE"

# Sets acme_found to the script and all processes that it has started
acme_find() {{
    acme_found=$acme_child
    for acme_file in /proc/[0-9]*/environ; do
        acme_pid=${{acme_file//[!0-9]/}}
        [ -r "$acme_file" ] && [ "$acme_pid" != "$acme_child" ] || continue
        # `read` drops the zeros between variables, so the next name follows the key; no name begins with a digit
        while IFS= read -r acme_line || [ -n "$acme_line" ]; do
            case "$acme_line" in
                *{variable}={key}[0-9]*) ;;
                *{variable}={key}*) acme_found="$acme_found $acme_pid"; break ;;
            esac
        done 2>/dev/null <"$acme_file"
    done
}}
# Sets acme_value to the first word of the line $2 in the status of process $1
acme_read_status() {{
    acme_value=
    while read -r acme_name acme_word _; do
        [ "$acme_name" != "$2:" ] || acme_value=$acme_word
    done 2>/dev/null <"/proc/$1/status"
}}
# Waits until the processes $2, $3, ... have ended, or until $SECONDS is $1
acme_wait() {{
    for acme_pid in "${{@:2}}"; do
        while kill -0 "$acme_pid" 2>/dev/null && [ "$SECONDS" -lt "$1" ]; do
            acme_read_status "$acme_pid" State
            [ "$acme_value" != Z ] || break
            sleep 0.1
        done
    done
}}
acme_stop() {{
    [ -n "$acme_child" ] || {{ acme_stop_early=1; return; }}
    trap '' HUP INT QUIT TERM
    acme_stopping=1
{checkpoint}    acme_paused=
    # A process that is stopped starts no other one between the search and TERM
    until acme_find; [ "$acme_found" = "$acme_paused" ]; do
        acme_paused=$acme_found
        kill -s STOP $acme_paused 2>/dev/null
    done
    kill -s TERM $acme_found 2>/dev/null
    kill -s CONT $acme_found 2>/dev/null
}}
acme_child= acme_stopping= acme_stop_early=
trap acme_stop HUP INT QUIT TERM
trap : USR1 USR2 ALRM XCPU
export {variable}={key}
{start}unset {variable}
echo "$acme_child" >"$acme_files.pid"
[ -z "$acme_stop_early" ] || acme_stop
{wait}if [ -n "$acme_stopping" ]; then
    acme_child=
    acme_find
    acme_wait 2147483647 $acme_found
    [ "$acme_code" != 0 ] || acme_code={stopped}
fi
rm -f -- "$acme_files.pid" "$acme_files.hosts"
exit "$acme_code"
"""

_CHECKPOINT = """\
    {receivers}
    acme_saving=
    for acme_pid in $acme_found; do
        acme_read_status "$acme_pid" SigCgt
        # The last 32 bits of the mask of handled signals
        (( 16#0${{acme_value: -8}} >> {bit} & 1 )) || continue
        kill -s {name} "$acme_pid" 2>/dev/null && acme_saving="$acme_saving $acme_pid"
    done
    acme_wait $((SECONDS + {seconds})) $acme_saving
"""


def pod_script(request: SubmitRequest) -> str:
    """The program for bash, before Kubernetes expands references to variables in it (see `escape_references`)."""
    return _TEMPLATE.format(
        index=INDEX_VARIABLE,
        variable=PROCESS_VARIABLE,
        key=shlex.quote(request.key),
        ranks=" ".join(RANK_VARIABLES),
        slots=max(request.gpus_per_node, 1),
        checkpoint=_checkpoint(request),
        start=start_script(request.script),
        wait=WAIT_FOR_SCRIPT,
        stopped=EXIT_CODE_WHEN_STOPPED,
    )


def grace_seconds(request: SubmitRequest, least: int) -> int:
    """How long a pod may take to end after TERM: its checkpoint, and half a minute to end."""
    if not request.checkpoint_signal:
        return least
    return max(least, int(parse_signal(request.checkpoint_signal).grace.total_seconds()) + 30)


def escape_references(text: str) -> str:
    """The text as the kubelet must get it in a command or a variable: it replaces $(NAME), and $$ by $."""
    return text.replace("$", "$$")


def launcher_environment(request: SubmitRequest, hosts: tuple[str, ...], port: int) -> Mapping[str, str]:
    """What torchrun, MPI, DeepSpeed and programs written for Slurm read; equal on all pods.

    `hosts` are the names, in rank order, under which the pods reach each other.
    """
    nodes, processes = str(len(hosts)), max(request.gpus_per_node, 1)
    return {
        **dict.fromkeys(("MASTER_ADDR", "PET_MASTER_ADDR"), hosts[0]),
        **{name: str(port) for name in ("MASTER_PORT", "PET_MASTER_PORT")},
        **dict.fromkeys(("NNODES", "PET_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_NTASKS"), nodes),
        "WORLD_SIZE": str(len(hosts) * processes),
        "PET_NPROC_PER_NODE": str(processes),
        "SLURM_JOB_ID": request.key,
        "SLURM_JOB_NODELIST": ",".join(hosts),
        "SLURM_GPUS_ON_NODE": str(request.gpus_per_node),
    }


def _checkpoint(request: SubmitRequest) -> str:
    if not request.checkpoint_signal:
        return ""
    asked = parse_signal(request.checkpoint_signal)
    shell_only = asked.shell or asked.signal in request.shell_signals
    return _CHECKPOINT.format(
        receivers="acme_found=$acme_child" if shell_only else "acme_find",
        bit=signal.Signals[f"SIG{asked.signal}"] - 1,
        name=asked.signal,
        seconds=int(asked.grace.total_seconds()),
    )
