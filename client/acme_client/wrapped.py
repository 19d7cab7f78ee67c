"""`acme exec COMMAND`: the same command, which can be asked where its ranks stand.

The command gets every signal that we get, and its end is ours. Below us the signal for stacks is ignored by whoever has
no use for it, so a shell or a launcher outlives it; Python programs get a handler (`site/sitecustomize.py`), unless
they have one for that signal. Slurm sends a signal to its own tasks alone, so we pass it on to whoever listens; of
Python processes that do not, `py-spy` tells the stacks where it is installed. The first rank tells Acme that it may
ask.
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
ANNOUNCE_TIMEOUT_S = 300.0  # with a server that does not answer


def run_wrapped_command(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Run it, and return its exit code; by a signal, 128 and the signal, as shells do."""
    word = environment.get(stacks.SIGNAL_VARIABLE) or stacks.DEFAULT_SIGNAL
    number = stacks.signal_number(word)
    if number:
        signal.signal(number, signal.SIG_IGN)  # inherited: nobody below dies of it
    try:
        child = subprocess.Popen(command, env=_child_environment(environment, word))  # noqa: S603 - that is its purpose
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
    # Lines reach the log as they are written: a hang of who writes by blocks is found late, or never
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
    """Everybody below us: who listens gets the signal, of other Python processes py-spy tells."""
    mute = []
    for pid in stacks.descendants(os.getpid()):
        if stacks.catches_signal(pid, number):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        elif stacks.is_python_process(pid):
            mute.append(pid)
    if mute and (spy := shutil.which("py-spy")):
        threading.Thread(target=_dump_with_py_spy, args=(spy, mute), daemon=True).start()


def _dump_with_py_spy(spy: str, pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(  # noqa: S603 - found on the path, with a number
                [spy, "dump", "--pid", str(pid)], capture_output=True, text=True, timeout=PY_SPY_TIMEOUT_S, check=False
            )
            stacks.write_stacks(done.stdout if not done.returncode else "", stacks.process_rank(pid), pid, 2)


def announce_stacks(word: str, environment: Mapping[str, str], transport: httpx.BaseTransport | None = None) -> bool:
    """The first rank says, once, that its attempt can be asked; while nobody whom the signal reaches dies of it."""
    url, token = environment.get("ACME_URL", ""), environment.get("ACME_PROGRESS_TOKEN", "")
    if not (url and token) or any(environment.get(name, "0") != "0" for name in stacks.RANK_VARIABLES):
        return False
    said = stacks.slurm_signal_spec(word, environment)
    until = time.monotonic() + ANNOUNCE_TIMEOUT_S
    headers = {"Authorization": f"Bearer {token}", "User-Agent": "acme-client"}
    with httpx.Client(base_url=f"{url.rstrip('/')}/api/v1/", headers=headers, timeout=20, transport=transport) as http:
        while stacks.is_signal_safe(said, environment):
            try:
                answer = http.post("progress/", json={"stacks": said})
            except httpx.HTTPError:
                answer = None
            if answer is not None and (answer.is_success or answer.status_code < 500):
                return answer.is_success
            if time.monotonic() > until:
                return False
            time.sleep(5)
    return False
