"""The placements by the names that users type.

Most need nothing but the room. `cells`, `gradient`, `tune` and `exact` look further, so each is made for an engine:
`PLACEMENTS[name](outlook)`, where the outlook says what is usually asked for and who is guaranteed what.
"""

from __future__ import annotations

from collections.abc import Callable

from scheduling.engine.placement import PlacementFunction, consolidate, pack, spread
from scheduling.engine.placements.cells import CellPlacement
from scheduling.engine.placements.exact import ExactPlacement
from scheduling.engine.placements.gradient import GradientPlacement
from scheduling.engine.placements.outlook import PlacementContext
from scheduling.engine.placements.tune import TunePlacement

PLACEMENTS: dict[str, Callable[[PlacementContext], PlacementFunction]] = {
    "consolidate": lambda _: consolidate,
    "pack": lambda _: pack,
    "spread": lambda _: spread,
    "cells": lambda outlook: CellPlacement(outlook.guarantees),
    "gradient": lambda outlook: GradientPlacement(outlook.wishes),
    "tune": lambda outlook: TunePlacement(elastic=outlook.elastic),
    "exact": lambda _: ExactPlacement(),
}

__all__ = ["PLACEMENTS", "PlacementContext"]
