"""Shares of a GPU, in thousandths: how they are counted, written and rounded. Pure.

A GPU is divided into as many shards as its node says (Slurm's gres/shard; 8 shards: eighths of a GPU). A share is a
number of shards of one GPU. On nodes with gres/mps, its units are the shards, usually a hundred per GPU. Acme stores a
share in thousandths, rounded down, so that the shards of a GPU always fit on it. All accounts (quotas, fair share,
ledger, costs) count thousandths, and a whole GPU is 1000 of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from jobs.core.slurm_notation import format_count

WHOLE_GPU: Final = 1000
SHARD, MPS = "shard", "mps"  # Slurm's names of the resources that are parts of a GPU
# Whole numbers stay integers, to be shown and sent like counts. Compiled code would convert them where it reads `float`
GpuNumber: TypeAlias = int | float


def charged_milli(gpus: int, gpu_milli: int) -> int:
    """What a request or an allocation counts in accounts: whole GPUs and a share, in thousandths."""
    return WHOLE_GPU * gpus + gpu_milli


def gpu_number(milli: int) -> GpuNumber:
    """Thousandths as a number of GPUs; an integer if it is whole, so that it is shown and sent like a count."""
    whole, part = divmod(milli, WHOLE_GPU)
    return milli / WHOLE_GPU if part else whole


def format_gpus(milli: int, word: str = "GPU") -> str:
    """Return the number with its noun: `1 GPU`, `0.5 GPUs`, `16 GPUs`."""
    return format_count(gpu_number(milli), word)


def milli_of_shards(shards: int, shards_per_gpu: int) -> int:
    """The thousandths of a GPU that this many of its shards are."""
    return shards * WHOLE_GPU // shards_per_gpu


def shards_of_milli(milli: int, shards_per_gpu: int) -> int:
    """The fewest shards that hold these thousandths."""
    return -(-milli * shards_per_gpu // WHOLE_GPU)


def is_whole_shards(milli: int, shards_per_gpu: int) -> bool:
    """Whether a GPU with this many shards can be shared in exactly this way. Without shards it cannot be shared."""
    if not shards_per_gpu:
        return False
    return milli_of_shards(shards_of_milli(milli, shards_per_gpu), shards_per_gpu) == milli


def nearest_shares(milli: int, shards_per_gpu: int) -> list[int]:
    """The possible shares below and above, for messages. A share is less than a GPU."""
    above = shards_of_milli(milli, shards_per_gpu)
    near = (milli_of_shards(shards, shards_per_gpu) for shards in (above - 1, above))
    return [share for share in near if 0 < share < WHOLE_GPU]


def first_gap(ranges: Iterable[tuple[int, int]], milli: int) -> int | None:
    """The lowest thousandth from which this many are free, given (first, number) of the ranges held. None if the free
    ones are scattered or too few.
    """
    begin = 0
    for first, held in sorted(ranges):
        if first - begin >= milli:
            return begin
        begin = first + held
    return begin if begin + milli <= WHOLE_GPU else None
