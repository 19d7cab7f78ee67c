"""Shares of a GPU, in thousandths: how they are counted, written and rounded. Pure.

A GPU is divided into as many shards as its node says (Slurm's gres/shard; 8 shards: eighths of a GPU). A share is a
number of shards of one GPU. On nodes with gres/mps, its units are the shards, usually a hundred per GPU. Acme stores a
share in thousandths, rounded down, so that the shards of a GPU always fit on it. All accounts (quotas, fair share,
ledger, costs) count thousandths, and a whole GPU is 1000 of them.

MIG slices are parts of a GPU that are devices of their own, requested by the name of their profile. A node lists its
devices in this order: its whole GPUs, then the slices of each profile, sorted by profile. So a slice has an index like
a GPU. A job holds all of a slice, and accounts count the part of the GPU's compute that it has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from jobs.core.slurm_notation import format_count

WHOLE_GPU: Final = 1000
SHARD, MPS = "shard", "mps"  # Slurm's names of the resources that are parts of a GPU
MIG_RESOURCE_PREFIX: Final = "nvidia.com/mig-"
MAX_MIG_PROFILE_LENGTH: Final = 32
MIG_PROFILE: Final = re.compile(r"[1-9]g\.[1-9][0-9]{0,3}gb(\.[a-z0-9.-]{1,20})?", re.ASCII)  # 1g.10gb, 1g.10gb.me
# GPUs with four compute slices (A30, RTX PRO 6000) and their profiles; all others have seven
OF_FOUR_SLICES: Final = frozenset({"1g.6gb", "2g.12gb", "4g.24gb", "1g.24gb", "2g.48gb", "4g.96gb"})
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


def profile_milli(profile: str) -> int:
    """The thousandths of a GPU that accounts count for a slice: 142 for 1g of 7. Always less than a GPU."""
    plain = ".".join(profile.split(".")[:2])
    return min(int(profile[0]) * WHOLE_GPU // (4 if plain in OF_FOUR_SLICES else 7), WHOLE_GPU - 1)


def slice_devices(gpus: int, slices: Mapping[str, int]) -> dict[int, str]:
    """The profile by index of each slice of a node with this many devices, the whole GPUs included."""
    profiles = [profile for profile in sorted(slices) for _ in range(slices[profile])]
    return dict(enumerate(profiles, max(0, gpus - len(profiles))))


def whole_gpus(gpus: int, slices: Mapping[str, int]) -> int:
    """How many devices of a node are whole GPUs."""
    return max(0, gpus - sum(slices.values()))
