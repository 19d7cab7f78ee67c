"""Runs the site's program that sets the clocks of GPUs.

The program and its arguments come from the environment of the server only. It runs without a shell, as the user of
Acme's processes, in a session of its own and with none of Acme's environment variables, which contain passwords. It
gets one JSON object on its standard input:

    {"cluster": "seren", "clocks": {"seren-001": 1110, "seren-002": null}}

null is the highest clock. Exit status 0 means that all nodes have their clock. With another one, the last line of its
output may say on which nodes it failed: `{"failed": ["seren-002"]}`; without such a line, all count as failed. The same
object may come again, also after it was done.

The program is killed with its children when its time is over. An alarm that it inherits ends it soon after that even if
Acme was killed meanwhile, so it cannot set old clocks after those of another worker.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

TAIL_BYTES, MAX_LINE_BYTES = 2_000, 1 << 20
WITH_ALARM = """
import os, signal, sys
signal.alarm(int(sys.argv[1]))
try:
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"{sys.argv[2]} cannot be started: {error.strerror}")
"""
PASSED_VARIABLES = ("PATH", "HOME", "USER", "LANG", "TZ")  # `ssh` and scripts need them


class ClocksNotSet(Exception):
    """The clocks of these nodes may not be set; without `nodes`, of any. The message is a sentence for users."""

    def __init__(self, message: str, nodes: Collection[str] | None = None) -> None:
        super().__init__(message)
        self.nodes = nodes

    def concerns(self, node: str) -> bool:
        return self.nodes is None or node in self.nodes


def run_clock_command(
    command: Sequence[str], cluster: str, clocks: Mapping[str, int | None], *, timeout_s: float
) -> None:
    """Run the program and wait for its end. Raises ClocksNotSet."""
    text = json.dumps({"cluster": cluster, "clocks": dict(clocks)}, sort_keys=True).encode()
    with tempfile.TemporaryFile() as request, tempfile.TemporaryFile() as output:
        request.write(text)
        request.seek(0)
        status = _run(command, request.fileno(), output.fileno(), timeout_s)
        if status == 0:
            return
        tail = _tail(output.fileno(), TAIL_BYTES)
        failed = None if status is None else _failed_nodes(_tail(output.fileno(), MAX_LINE_BYTES))
    how = f"did not end within {timeout_s:g} s" if status is None else _status_text(status)
    raise ClocksNotSet(f"The power cap command {how}.{f' Its output ends with: {tail}' if tail else ''}", failed)


def _failed_nodes(output: str) -> frozenset[str] | None:
    """The nodes that the last line names; None if it names none, as then any may have failed."""
    try:
        nodes = json.loads(output.rpartition("\n")[2])["failed"]
        return frozenset(map(str, nodes)) if nodes and isinstance(nodes, list) else None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def _run(command: Sequence[str], request: int, output: int, timeout_s: float) -> int | None:
    """The exit status; None if the time was over. Files instead of pipes: a program that does not read its input or
    leaves children behind cannot block the caller."""
    environment = {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}
    words = [sys.executable, "-I", "-S", "-c", WITH_ALARM, str(math.ceil(timeout_s) + 1), *command]
    process = subprocess.Popen(  # noqa: S603 - set by the administrator of the server
        words, stdin=request, stdout=output, stderr=output, env=environment, cwd="/", start_new_session=True
    )
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _status_text(status: int) -> str:
    return f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"


def _tail(output: int, length: int) -> str:
    size = os.fstat(output).st_size
    raw = os.pread(output, length, max(0, size - length))
    return raw.decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}").strip()
