"""The stacks that the ranks of a hanging simulated job print. Pure.

One rank has not reached the collective where the others wait: it reads data or saves; or all have reached it and a link
is dead. Drawn from the run's seed, in the format of `faulthandler`, without regard to what parses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from .job_output import PlannedLog, rank_at_fault

TRAINER_PATH = "/opt/train"
TORCH_PATH = "/usr/local/lib/python3.11/site-packages/torch"
Frames = tuple[tuple[str, int, str], ...]  # file, line, function; innermost first

TRAINING_LOOP_FRAMES: Frames = (
    (f"{TRAINER_PATH}/train/loop.py", 141, "train_step"),
    (f"{TRAINER_PATH}/train/main.py", 88, "main"),
    (f"{TRAINER_PATH}/train/main.py", 97, "<module>"),
)
ALL_REDUCE_FRAMES: Frames = (
    (f"{TORCH_PATH}/distributed/distributed_c10d.py", 2806, "all_reduce"),
    (f"{TORCH_PATH}/distributed/c10d_logger.py", 81, "wrapper"),
    (f"{TRAINER_PATH}/train/grads.py", 52, "reduce_gradients"),
    *TRAINING_LOOP_FRAMES,
)
CULPRIT_FRAMES: tuple[Frames, ...] = (
    (
        (f"{TORCH_PATH}/utils/data/dataloader.py", 1445, "_try_get_data"),
        (f"{TORCH_PATH}/utils/data/dataloader.py", 701, "__next__"),
        (f"{TRAINER_PATH}/train/data.py", 63, "next_batch"),
        *TRAINING_LOOP_FRAMES[1:],
    ),
    (
        (f"{TORCH_PATH}/distributed/checkpoint/filesystem.py", 412, "_write_item"),
        (f"{TORCH_PATH}/distributed/checkpoint/state_dict_saver.py", 166, "save"),
        (f"{TRAINER_PATH}/train/save.py", 31, "save_checkpoint"),
        *TRAINING_LOOP_FRAMES[1:],
    ),
    ALL_REDUCE_FRAMES,
)
HEARTBEAT_FRAMES: Frames = (
    ("/usr/lib/python3.11/threading.py", 331, "wait"),
    (f"{TRAINER_PATH}/train/heartbeat.py", 19, "run"),
    ("/usr/lib/python3.11/threading.py", 1002, "_bootstrap"),
)


def stack_lines(script: PlannedLog) -> Iterator[str]:
    """The stack lines of all ranks, in order of rank."""
    dice = Random(f"{script.play.dice}:stacks")
    fault, culprit_frames = rank_at_fault(script), dice.choice(CULPRIT_FRAMES)
    for rank in range(script.ranks):
        frames = culprit_frames if rank == fault else ALL_REDUCE_FRAMES
        yield from (f"[rank{rank}]: {line}" for line in _rank_stack_lines(rank, frames, 40_000 + rank))


def _rank_stack_lines(rank: int, where: Frames, pid: int) -> Iterator[str]:
    yield f"stacks of rank {rank} (pid {pid})"
    yield f"Thread 0x{0x7F10_0000_0000 + pid:016x} (most recent call first):"
    yield from _frame_lines(HEARTBEAT_FRAMES)
    yield ""
    yield f"Current thread 0x{0x7F20_0000_0000 + pid:016x} (most recent call first):"
    yield from _frame_lines(where)


def _frame_lines(where: Frames) -> Iterator[str]:
    return (f'  File "{file}", line {line} in {name}' for file, line, name in where)
