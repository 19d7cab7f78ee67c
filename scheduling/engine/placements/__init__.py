"""The placements by the names that users type.

Most need nothing but the room. `cells`, `gradient`, `tune` and `exact` look further, so each is made for an engine:
`PLACEMENTS[name](outlook)`, where the outlook says what is usually asked for and who is guaranteed what.
"""

from __future__ import annotations

from collections.abc import Callable

from scheduling.engine.placement import Placement, consolidate, pack, spread
from scheduling.engine.placements.cells import Cells
from scheduling.engine.placements.exact import Exact
from scheduling.engine.placements.gradient import Gradient
from scheduling.engine.placements.outlook import Outlook
from scheduling.engine.placements.tune import Tune

PLACEMENTS: dict[str, Callable[[Outlook], Placement]] = {
    "consolidate": lambda _: consolidate,
    "pack": lambda _: pack,
    "spread": lambda _: spread,
    "cells": lambda outlook: Cells(outlook.guarantees),
    "gradient": lambda outlook: Gradient(outlook.wishes),
    "tune": lambda outlook: Tune(elastic=outlook.elastic),
    "exact": lambda _: Exact(),
}

__all__ = ["PLACEMENTS", "Outlook"]
