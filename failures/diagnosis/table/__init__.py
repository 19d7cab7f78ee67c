"""The table of all signatures. Their order has no effect on a diagnosis. Pure."""

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
    kubernetes,
    memory,
    network,
    scheduler,
    storage,
)

SIGNATURES: tuple[Signature, ...] = (
    *hardware.ROWS, *accelerators.ROWS, *network.ROWS, *scheduler.ROWS, *kubernetes.ROWS, *memory.ROWS, *storage.ROWS,
    *framework.ROWS, *exceptions.ROWS, *hints.ROWS,
    *endings.ROWS, *harmless.ROWS,
)  # fmt: skip
