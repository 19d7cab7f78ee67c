"""MIG slices: parts of a GPU that are devices of their own, requested by the name of their profile. Pure.

A node lists its devices in this order: its whole GPUs, then the slices of each profile, sorted by profile. So a slice
has an index like a GPU. A job holds all of a slice, and accounts count the part of the GPU's compute that it has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from jobs.core.gpu_shares import WHOLE_GPU

RESOURCE_PREFIX: Final = "nvidia.com/mig-"
MAX_PROFILE_LENGTH: Final = 32
PROFILE: Final = re.compile(r"[1-9]g\.[1-9][0-9]{0,3}gb(\.[a-z0-9.-]{1,20})?", re.ASCII)  # 1g.10gb, 1g.10gb.me
# GPUs with four compute slices (A30, RTX PRO 6000) and their profiles; all others have seven
OF_FOUR_SLICES: Final = frozenset({"1g.6gb", "2g.12gb", "4g.24gb", "1g.24gb", "2g.48gb", "4g.96gb"})


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
