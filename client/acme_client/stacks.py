"""Prints the stacks of a program on a signal: the stack of every thread goes to its log.

`faulthandler` writes inside the signal handler, whatever the program waits for. It writes to a pipe that never blocks;
a thread prefixes each line with the rank and writes the whole at once, so stacks of several ranks do not mix. Standard
library only, because `acme exec` loads this file into programs that have none of our packages.

A signal without a handler ends a process. So stacks are announced only once every process that the cluster would signal
handles it (`is_signal_safe`): those below the task that the cluster started, and that task itself unless it is a batch
shell, which the cluster does not signal.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import threading
from collections.abc import Iterator, Mapping

ALLOWED_SIGNALS = ("USR1", "USR2")  # other signals have a meaning for programs that do not know Acme
DEFAULT_SIGNAL = "USR2"  # USR1 is the usual signal for a checkpoint
SIGNAL_VARIABLE = "ACME_STACKS_SIGNAL"
PARENT_ANNOUNCES_VARIABLE = "ACME_STACKS_ANNOUNCED"  # set if a parent process announces the stacks
RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
FLUSH_DELAY_S = 0.2
MAX_DUMP_BYTES = 256 * 1024  # per process
PIPE_BYTES = 1024 * 1024  # the maximum that Linux allows ordinary users

_registered_signals: set[int] = set()


def signal_number(word: str) -> int:
    """Return the number of USR2, or of B:USR2 (sent to the batch shell); 0 if the signal is not allowed."""
    name = word.removeprefix("B:")
    return int(getattr(signal, f"SIG{name}", 0)) if name in ALLOWED_SIGNALS else 0


def install_stack_handler(environment: Mapping[str, str] = os.environ, to: int = 2) -> str:
    """Install the handler once; return the signal's name, or empty if this process cannot use it."""
    word = environment.get(SIGNAL_VARIABLE) or DEFAULT_SIGNAL
    number = signal_number(word)
    if not number or not hasattr(faulthandler, "register"):
        return ""
    if number not in _registered_signals:
        if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN):
            return ""  # the program uses the signal itself
        _register_stack_dump(number, rank_from_environment(environment), to)
        _registered_signals.add(number)
    return word


def rank_from_environment(environment: Mapping[str, str]) -> str:
    return next((environment[name] for name in RANK_VARIABLES if environment.get(name, "").isdecimal()), "0")


def _register_stack_dump(number: int, rank: str, to: int) -> None:
    source, sink = os.pipe()
    os.set_blocking(sink, False)
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import fcntl

        fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    thread = threading.Thread(target=_forward_stacks, args=(source, to, rank), name="acme-stacks", daemon=True)
    thread.start()
    faulthandler.register(number, file=sink, all_threads=True)
    # A forked child (a data loader) has the pipe, but not the thread, so it must ignore the signal
    os.register_at_fork(after_in_child=lambda: _ignore_signal(number))


def _ignore_signal(number: int) -> None:
    faulthandler.unregister(number)
    signal.signal(number, signal.SIG_IGN)


def _forward_stacks(source: int, to: int, rank: str) -> None:
    while raw := os.read(source, MAX_DUMP_BYTES):
        while len(raw) < MAX_DUMP_BYTES and select.select([source], [], [], FLUSH_DELAY_S)[0]:
            raw += os.read(source, MAX_DUMP_BYTES)
        write_stacks(raw[:MAX_DUMP_BYTES].decode("utf-8", "replace"), rank, os.getpid(), to)


def write_stacks(text: str, rank: str, pid: int, to: int) -> None:
    """Write the stacks to the log in one piece."""
    if not text:
        return
    lines = [f"stacks of rank {rank} (pid {pid})", *text.splitlines()]
    with contextlib.suppress(OSError):
        _write_all(to, "".join(f"[rank{rank}]: {line}\n" for line in lines).encode())


def _write_all(to: int, text: bytes) -> None:
    while text:
        text = text[os.write(to, text) :]


# --- which processes get the signal


def slurm_signal_spec(word: str, environment: Mapping[str, str] = os.environ) -> str:
    """Prefix `B:` if this process replaced the batch shell, because signals to all but the shell do not reach it."""
    in_place = environment.get("SLURM_TASK_PID") == str(os.getpid()) and "SLURM_STEP_ID" not in environment
    return f"B:{word.removeprefix('B:')}" if in_place else word


def is_signal_safe(word: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether all processes that the cluster would signal handle the signal. False if it cannot be determined."""
    task = environment.get("SLURM_TASK_PID", "")
    if not task.isdecimal() or not signal_number(word):
        return False
    is_shell = "SLURM_STEP_ID" not in environment
    if word.startswith("B:"):
        return catches_or_ignores(int(task), signal_number(word))
    below = list(descendants(int(task)))
    reached = below if is_shell else [int(task), *below]
    return bool(reached) and all(catches_or_ignores(pid, signal_number(word)) for pid in reached)


def descendants(root: int) -> Iterator[int]:
    """Yield the pids of all processes below this one."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (parent := _proc_status_field(int(name), "PPid")):
            children.setdefault(int(parent), []).append(int(name))
    pending = list(children.get(root, ()))
    while pending:
        pid = pending.pop()
        pending += children.get(pid, ())
        yield pid


def catches_or_ignores(pid: int, number: int) -> bool:
    """Whether the process handles or ignores the signal. Ended processes and zombies cannot be harmed."""
    if _proc_status_field(pid, "State").startswith(("Z", "X")) or not _proc_status_field(pid, "State"):
        return True
    return bool((_signal_mask(pid, "SigCgt") | _signal_mask(pid, "SigIgn")) >> (number - 1) & 1)


def catches_signal(pid: int, number: int) -> bool:
    return bool(_signal_mask(pid, "SigCgt") >> (number - 1) & 1)


def is_python_process(pid: int) -> bool:
    return _proc_status_field(pid, "Name").startswith("python")


def process_rank(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/environ", encoding="utf-8", errors="replace") as file:
            return rank_from_environment(dict(entry.partition("=")[::2] for entry in file.read().split("\0")))
    except OSError:
        return "0"


def _signal_mask(pid: int, name: str) -> int:
    return int(_proc_status_field(pid, name) or "0", 16)


def _proc_status_field(pid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return next((row.partition(":")[2].strip() for row in file if row.startswith(f"{name}:")), "")
    except OSError:
        return ""
