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

SITE = Path(__file__).parent / "site"
PASSED_ON = ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "CONT", "WINCH")
CANNOT_START = 127
SPY_S = 20.0
PATIENCE_S = 300.0  # with a server that does not answer


def execute(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Run it, and return its exit code; by a signal, 128 and the signal, as shells do."""
    word = environment.get(stacks.WORD) or stacks.USUAL
    number = stacks.number_of(word)
    if number:
        signal.signal(number, signal.SIG_IGN)  # inherited: nobody below dies of it
    try:
        child = subprocess.Popen(command, env=_environment(environment, word))  # noqa: S603 - that is its purpose
    except OSError as error:
        print(f"acme exec: {command[0]}: {error.strerror}", file=sys.stderr)
        return CANNOT_START
    for name in PASSED_ON:
        _pass_on(int(getattr(signal, f"SIG{name}")), child.pid)
    if number:
        signal.signal(number, lambda *_: _ask(number))
        threading.Thread(target=declare, args=(word, environment), daemon=True).start()
    status = child.wait()
    return 128 - status if status < 0 else status


def _environment(environment: Mapping[str, str], word: str) -> dict[str, str]:
    path = [str(SITE), *filter(None, [environment.get("PYTHONPATH", "")])]
    # Lines reach the log as they are written: a hang of who writes by blocks is found late, or never
    return {
        "PYTHONUNBUFFERED": "1",
        **environment,
        "PYTHONPATH": os.pathsep.join(path),
        stacks.WORD: word,
        stacks.TELLS: "1",
    }


def _pass_on(number: int, child: int) -> None:
    def passed(received: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, received)

    signal.signal(number, passed)


def _ask(number: int) -> None:
    """Everybody below us: who listens gets the signal, of other Python processes py-spy tells."""
    mute = []
    for pid in stacks.descendants(os.getpid()):
        if stacks.catches(pid, number):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        elif stacks.is_python(pid):
            mute.append(pid)
    if mute and (spy := shutil.which("py-spy")):
        threading.Thread(target=_spy, args=(spy, mute), daemon=True).start()


def _spy(spy: str, pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(  # noqa: S603 - found on the path, with a number
                [spy, "dump", "--pid", str(pid)], capture_output=True, text=True, timeout=SPY_S, check=False
            )
            stacks.tell(done.stdout if not done.returncode else "", stacks.rank_of(pid), pid, 2)


def declare(word: str, environment: Mapping[str, str], transport: httpx.BaseTransport | None = None) -> bool:
    """The first rank says, once, that its attempt can be asked; while nobody whom the signal reaches dies of it."""
    url, token = environment.get("ACME_URL", ""), environment.get("ACME_PROGRESS_TOKEN", "")
    if not (url and token) or any(environment.get(name, "0") != "0" for name in stacks.RANKS):
        return False
    said = stacks.aimed(word, environment)
    until = time.monotonic() + PATIENCE_S
    headers = {"Authorization": f"Bearer {token}", "User-Agent": "acme-client"}
    with httpx.Client(base_url=f"{url.rstrip('/')}/api/v1/", headers=headers, timeout=20, transport=transport) as http:
        while stacks.survives(said, environment):
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
