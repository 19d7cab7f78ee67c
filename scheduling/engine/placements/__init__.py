"""All placements by the names that users type.

`cells`, `gradient`, `tune` and `exact` need more than the free resources, so each placement is created per engine:
`PLACEMENTS[name](context)`, where the context has the typical requests and the guaranteed nodes.
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
    "gradient": lambda outlook: GradientPlacement(outlook.typical_requests),
    "tune": lambda outlook: TunePlacement(elastic=outlook.elastic),
    "exact": lambda _: ExactPlacement(),
}

PLACEMENTS_WITHOUT_POWER = ("exact", "tune")  # they place jobs without asking what power is left

__all__ = ["PLACEMENTS", "PLACEMENTS_WITHOUT_POWER", "PlacementContext"]
