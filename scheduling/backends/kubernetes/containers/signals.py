"""Signals processes in the containers of a job, over exec.

The processes of the user's script have a variable in their environment that the wrapper around it does not have
(`pod_script`). So they are found in `/proc` whatever their names and parents are, and nothing else is, even where
`/proc` shows processes of other containers. The commands need a POSIX shell, grep and tr in the image.

All pods are signaled at once, with one deadline. A pod that has ended is no error: there is nothing to signal. After
an error the command may be repeated; pods that have got the signal get it again.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import quote

from acmeweb.common.http_client import RequestDeadline

from ...base import BackendError, ClusterUnreachable, RequestRejected
from ..api_client import ApiClient
from ..api_errors import NOT_FOUND, ApiRefusal
from ..fields import mapping_at, mappings_at, text_at
from ..pod_script import PROCESS_VARIABLE
from .exec_client import ContainerPlace, ExecClient

SIGNAL_NAME = re.compile(r"[A-Z][A-Z0-9+-]{1,11}")
PARALLEL_COMMANDS = 32
SERVER_ERRORS = 500
ENDED_PHASES = frozenset({"Succeeded", "Failed"})

# Prints nothing. $1 is the signal, $2 the variable with its value. grep finds candidates, of which the key may be a
# part of a longer one; then whole variables are compared.
SIGNAL_ALL = """\
for file in $(grep -ls -- "$2" /proc/[0-9]*/environ); do
    tr '\\0' '\\n' <"$file" 2>/dev/null | grep -qxF -- "$2" || continue
    pid=${file#/proc/}
    kill -s "$1" "${pid%/environ}" 2>/dev/null
done
exit 0
"""
# $3 is part of the name of the file with the pid. A pid that belongs to another process by now gets no signal.
SIGNAL_SCRIPT = """\
read -r pid 2>/dev/null <"${TMPDIR:-/tmp}/acme-$3.pid" || exit 0
tr '\\0' '\\n' <"/proc/$pid/environ" 2>/dev/null | grep -qxF -- "$2" || exit 0
kill -s "$1" "$pid" 2>/dev/null
exit 0
"""


@dataclass(frozen=True, kw_only=True)
class SignaledPod:
    place: ContainerPlace
    rank: int


def signal_pods(
    api: ApiClient, pods: Sequence[SignaledPod], key: str, name: str, deadline: RequestDeadline, *, shell: bool
) -> None:
    """Signal the script's process in each pod (`shell`), or all processes of the job. Raises the first error."""
    if not SIGNAL_NAME.fullmatch(name):
        raise RequestRejected(f"{name[:20]!r} is not a signal; use a name such as USR1")
    commands = ExecClient(api.connection)

    def signal(pod: SignaledPod) -> BackendError | None:
        return _signal_pod(api, commands, pod, _command(key, pod.rank, name, shell=shell), deadline)

    with ThreadPoolExecutor(min(max(len(pods), 1), PARALLEL_COMMANDS), thread_name_prefix="signals") as executor:
        errors = [error for error in executor.map(signal, pods) if error]
    if errors:
        raise errors[0]


def _command(key: str, rank: int, name: str, *, shell: bool) -> Sequence[str]:
    script = SIGNAL_SCRIPT if shell else SIGNAL_ALL
    return ("sh", "-c", script, "acme", name, f"{PROCESS_VARIABLE}={key}", f"{key}-{rank}")


def _signal_pod(
    api: ApiClient, commands: ExecClient, pod: SignaledPod, command: Sequence[str], deadline: RequestDeadline
) -> BackendError | None:
    try:
        result = commands.run(pod.place, command, deadline)
    except BackendError as error:
        is_refusal = isinstance(error, ApiRefusal) and error.status < SERVER_ERRORS
        return None if _has_ended(api, pod.place, deadline) else RequestRejected(str(error)) if is_refusal else error
    if result.exit_code and not _has_ended(api, pod.place, deadline):
        words = shlex.join(result.stderr.split())[:200]
        return RequestRejected(f"pod {pod.place.pod}: exit code {result.exit_code} of the signal's command: {words}")
    return None


def _has_ended(api: ApiClient, place: ContainerPlace, deadline: RequestDeadline) -> bool:
    """Whether there is certainly nothing left to signal."""
    path = f"/api/v1/namespaces/{quote(place.namespace, safe='')}/pods/{quote(place.pod, safe='')}"
    try:
        pod = api.get(path, deadline)
    except ApiRefusal as refusal:
        return refusal.status == NOT_FOUND
    except ClusterUnreachable:
        return False
    states = [mapping_at(one, "state") for one in mappings_at(pod, "status", "containerStatuses")]
    return text_at(pod, "status", "phase") in ENDED_PHASES or any("terminated" in state for state in states)
