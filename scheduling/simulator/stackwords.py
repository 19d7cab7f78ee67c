"""What the ranks of a played job that hangs print when they are asked for their stacks. Pure.

One of them has not come where the others wait: it reads data, or saves; or all have come and a link is dead. Drawn
from the play's dice, in the manner of `faulthandler`; the sentences are written without a look at who reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from .logtext import Script, rank_at_fault

ROOT = "/opt/train"
TORCH = "/usr/local/lib/python3.11/site-packages/torch"
Frames = tuple[tuple[str, int, str], ...]  # file, line, function; the innermost first

LOOP: Frames = (
    (f"{ROOT}/train/loop.py", 141, "train_step"),
    (f"{ROOT}/train/main.py", 88, "main"),
    (f"{ROOT}/train/main.py", 97, "<module>"),
)
WAITING: Frames = (
    (f"{TORCH}/distributed/distributed_c10d.py", 2806, "all_reduce"),
    (f"{TORCH}/distributed/c10d_logger.py", 81, "wrapper"),
    (f"{ROOT}/train/grads.py", 52, "reduce_gradients"),
    *LOOP,
)
ELSEWHERE: tuple[Frames, ...] = (
    (
        (f"{TORCH}/utils/data/dataloader.py", 1445, "_try_get_data"),
        (f"{TORCH}/utils/data/dataloader.py", 701, "__next__"),
        (f"{ROOT}/train/data.py", 63, "next_batch"),
        *LOOP[1:],
    ),
    (
        (f"{TORCH}/distributed/checkpoint/filesystem.py", 412, "_write_item"),
        (f"{TORCH}/distributed/checkpoint/state_dict_saver.py", 166, "save"),
        (f"{ROOT}/train/save.py", 31, "save_checkpoint"),
        *LOOP[1:],
    ),
    WAITING,
)
HELPER: Frames = (
    ("/usr/lib/python3.11/threading.py", 331, "wait"),
    (f"{ROOT}/train/heartbeat.py", 19, "run"),
    ("/usr/lib/python3.11/threading.py", 1002, "_bootstrap"),
)


def stacks(script: Script) -> Iterator[str]:
    """Every rank's lines, one rank after the other."""
    dice = Random(f"{script.play.dice}:stacks")
    fault, there = rank_at_fault(script), dice.choice(ELSEWHERE)
    for rank in range(script.ranks):
        where = there if rank == fault else WAITING
        yield from (f"[rank{rank}]: {line}" for line in _dump(rank, where, 40_000 + rank))


def _dump(rank: int, where: Frames, pid: int) -> Iterator[str]:
    yield f"stacks of rank {rank} (pid {pid})"
    yield f"Thread 0x{0x7F10_0000_0000 + pid:016x} (most recent call first):"
    yield from _frames(HELPER)
    yield ""
    yield f"Current thread 0x{0x7F20_0000_0000 + pid:016x} (most recent call first):"
    yield from _frames(where)


def _frames(where: Frames) -> Iterator[str]:
    return (f'  File "{file}", line {line} in {name}' for file, line, name in where)
