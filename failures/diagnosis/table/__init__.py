"""Every signature, in the order of its module. The order breaks no ties; it only makes lists readable. Pure."""

from __future__ import annotations

from ..signatures import Signature
from . import (
    accelerators,
    endings,
    exceptions,
    framework,
    hardware,
    harmless,
    hints,
    memory,
    network,
    scheduler,
    storage,
)

SIGNATURES: tuple[Signature, ...] = (
    *hardware.ROWS, *accelerators.ROWS, *network.ROWS, *scheduler.ROWS, *memory.ROWS, *storage.ROWS, *framework.ROWS,
    *exceptions.ROWS, *hints.ROWS,
    *endings.ROWS, *harmless.ROWS,
)  # fmt: skip
