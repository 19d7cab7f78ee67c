"""Runs the site's program that sets the clocks of GPUs.

The program and its arguments come from the environment of the server only. It runs without a shell, as the user of
Acme's processes, in a session of its own and with none of Acme's environment variables, which contain passwords. It
gets one JSON object on its standard input:

    {"cluster": "seren", "clocks": {"seren-001": 1110, "seren-002": null}}

null is the highest clock. Exit status 0 means that all nodes have their clock. The same object may come again, also
after it was done. The program is killed with its children when its time is over. An alarm that it inherits ends it soon
after that even if Acme was killed meanwhile, so it cannot set old clocks after those of another worker.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress

TAIL_BYTES = 2_000
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
    """The clocks of at least one node may not be set. The message is a sentence for users."""


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
        tail = _tail(output.fileno())
    how = f"did not end within {timeout_s:g} s" if status is None else _status_text(status)
    raise ClocksNotSet(f"The power cap command {how}.{f' Its output ends with: {tail}' if tail else ''}")


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


def _tail(output: int) -> str:
    size = os.fstat(output).st_size
    raw = os.pread(output, TAIL_BYTES, max(0, size - TAIL_BYTES))
    return raw.decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}").strip()
