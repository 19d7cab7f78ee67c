"""A program that can be asked where it stands: at a signal, the stack of every thread goes into its log.

`faulthandler` writes from within the signal, whatever the program waits for. It writes to a pipe that never blocks it;
a thread puts the rank before each line and passes the whole on at once, so that the stacks of many ranks do not run
into each other. Standard library only, for `acme exec` brings this file to programs that have none of ours.

A signal that a process does not expect ends it. So nobody is told that a program can be asked before every process that
the cluster would send it to expects it (`survives`): those below the task that the cluster started, and that task
itself unless it is a batch shell, which the cluster leaves out.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import threading
from collections.abc import Iterator, Mapping

ALLOWED_SIGNALS = ("USR1", "USR2")  # any other means something to programs that know nothing of us
DEFAULT_SIGNAL = "USR2"  # USR1 is what checkpoints are usually asked for by
SIGNAL_VARIABLE = "ACME_STACKS"
PARENT_ANNOUNCES_VARIABLE = "ACME_STACKS_TOLD"  # somebody above says that the job can be asked
RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
FLUSH_DELAY_S = 0.2
MAX_DUMP_BYTES = 256 * 1024  # of one process
PIPE_BYTES = 1024 * 1024  # as much as Linux lets an ordinary user have

_registered_signals: set[int] = set()


def signal_number(word: str) -> int:
    """USR2, and B:USR2 for one that the batch shell's place takes; 0 for what may not be asked by."""
    name = word.removeprefix("B:")
    return int(getattr(signal, f"SIG{name}", 0)) if name in ALLOWED_SIGNALS else 0


def install_stack_handler(environment: Mapping[str, str] = os.environ, to: int = 2) -> str:
    """From now on this process answers; the word of the signal, empty where it cannot. Once is enough."""
    word = environment.get(SIGNAL_VARIABLE) or DEFAULT_SIGNAL
    number = signal_number(word)
    if not number or not hasattr(faulthandler, "register"):
        return ""
    if number not in _registered_signals:
        if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN):
            return ""  # the program has a use for it
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
    # A forked child (a data loader) has the pipe, but not the thread: it says nothing, and lives on
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
    """Into the log, in one piece."""
    if not text:
        return
    told = [f"stacks of rank {rank} (pid {pid})", *text.splitlines()]
    with contextlib.suppress(OSError):
        _write_all(to, "".join(f"[rank{rank}]: {line}\n" for line in told).encode())


def _write_all(to: int, text: bytes) -> None:
    while text:
        text = text[os.write(to, text) :]


# --- who would get the signal


def slurm_signal_spec(word: str, environment: Mapping[str, str] = os.environ) -> str:
    """`B:` where this process has taken the batch shell's place: signals to all but the shell do not reach it."""
    in_place = environment.get("SLURM_TASK_PID") == str(os.getpid()) and "SLURM_STEP_ID" not in environment
    return f"B:{word.removeprefix('B:')}" if in_place else word


def is_signal_safe(word: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether all whom the cluster would send it to expect it. False where nobody can tell."""
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
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (parent := _proc_status_field(int(name), "PPid")):
            children.setdefault(int(parent), []).append(int(name))
    left = list(children.get(root, ()))
    while left:
        pid = left.pop()
        left += children.get(pid, ())
        yield pid


def catches_or_ignores(pid: int, number: int) -> bool:
    """It has a handler of its own for it, or ignores it. Who is gone, or a zombie, has nothing to fear."""
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
            return rank_from_environment(dict(one.partition("=")[::2] for one in file.read().split("\0")))
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
