"""`acme exec COMMAND`: run a command so that the stacks of its ranks can be requested.

The command gets every signal that this process gets, and its exit code becomes ours. Processes below ignore the signal
for stacks unless they handle it, so shells and launchers survive it. Python programs get a handler
(`site/sitecustomize.py`), unless they have their own. Slurm signals only its own tasks, so the signal is passed on to
processes with a handler; for other Python processes `py-spy` prints the stacks, if it is installed. The first rank
announces to Acme that stacks can be requested.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import httpx

from acme_client import stacks

SITE_DIRECTORY = Path(__file__).parent / "site"
FORWARDED_SIGNALS = ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "CONT", "WINCH")
EXIT_CANNOT_START = 127
PY_SPY_TIMEOUT_S = 20.0
ANNOUNCE_TIMEOUT_S = 300.0  # with a server that is not responding


def run_wrapped_command(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Run the command and return its exit code; 128 plus the signal after a signal, like shells."""
    word = environment.get(stacks.SIGNAL_VARIABLE) or stacks.DEFAULT_SIGNAL
    number = stacks.signal_number(word)
    if number:
        signal.signal(number, signal.SIG_IGN)  # inherited, so no child dies of it
    try:
        child = subprocess.Popen(command, env=_child_environment(environment, word))  # noqa: S603 - running a command is its purpose
    except OSError as error:
        print(f"acme exec: {command[0]}: {error.strerror}", file=sys.stderr)
        return EXIT_CANNOT_START
    for name in FORWARDED_SIGNALS:
        _forward_signal(int(getattr(signal, f"SIG{name}")), child.pid)
    if number:
        signal.signal(number, lambda *_: _request_stacks(number))
        threading.Thread(target=announce_stacks, args=(word, environment), daemon=True).start()
    status = child.wait()
    return 128 - status if status < 0 else status


def _child_environment(environment: Mapping[str, str], word: str) -> dict[str, str]:
    path = [str(SITE_DIRECTORY), *filter(None, [environment.get("PYTHONPATH", "")])]
    # Unbuffered, so lines reach the log at once; with block buffering a hang would be detected late, or never
    return {
        "PYTHONUNBUFFERED": "1",
        **environment,
        "PYTHONPATH": os.pathsep.join(path),
        stacks.SIGNAL_VARIABLE: word,
        stacks.PARENT_ANNOUNCES_VARIABLE: "1",
    }


def _forward_signal(number: int, child: int) -> None:
    def forward_to_child(received: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, received)

    signal.signal(number, forward_to_child)


def _request_stacks(number: int) -> None:
    """Pass the signal on to all descendants with a handler; use py-spy for other Python processes."""
    without_handler = []
    for pid in stacks.descendants(os.getpid()):
        if stacks.catches_signal(pid, number):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        elif stacks.is_python_process(pid):
            without_handler.append(pid)
    if without_handler and (spy := shutil.which("py-spy")):
        threading.Thread(target=_dump_with_py_spy, args=(spy, without_handler), daemon=True).start()


def _dump_with_py_spy(spy: str, pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(  # noqa: S603 - found on the path, with a number
                [spy, "dump", "--pid", str(pid)], capture_output=True, text=True, timeout=PY_SPY_TIMEOUT_S, check=False
            )
            stacks.write_stacks(done.stdout if not done.returncode else "", stacks.process_rank(pid), pid, 2)


def announce_stacks(word: str, environment: Mapping[str, str], transport: httpx.BaseTransport | None = None) -> bool:
    """Announce once, on the first rank, that stacks can be requested, as long as the signal kills no process."""
    url, token = environment.get("ACME_URL", ""), environment.get("ACME_PROGRESS_TOKEN", "")
    if not (url and token) or any(environment.get(name, "0") != "0" for name in stacks.RANK_VARIABLES):
        return False
    signal_spec = stacks.slurm_signal_spec(word, environment)
    deadline = time.monotonic() + ANNOUNCE_TIMEOUT_S
    headers = {"Authorization": f"Bearer {token}", "User-Agent": "acme-client"}
    with httpx.Client(base_url=f"{url.rstrip('/')}/api/v1/", headers=headers, timeout=20, transport=transport) as http:
        while stacks.is_signal_safe(signal_spec, environment):
            try:
                response = http.post("progress/", json={"stacks": signal_spec})
            except httpx.HTTPError:
                response = None
            if response is not None and (response.is_success or response.status_code < 500):
                return response.is_success
            if time.monotonic() > deadline:
                return False
            time.sleep(5)
    return False
