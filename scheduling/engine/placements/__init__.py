"""All placements by the names that users type.

`cells`, `gradient`, `tune` and `exact` need more than the free resources, so each placement is created per engine:
`PLACEMENTS[name](context)`, where the context has the typical requests and the guaranteed nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.placement import PlacementFunction, consolidate, pack, spread
from scheduling.engine.placements.cells import CellPlacement
from scheduling.engine.placements.exact import ExactPlacement
from scheduling.engine.placements.gradient import GradientPlacement
from scheduling.engine.placements.tune import TunePlacement


@dataclass(frozen=True, kw_only=True)
class PlacementContext:
    """Facts about the workload, fixed for the lifetime of an engine."""

    typical_requests: Mapping[ResourceRequest, float] = field(default_factory=dict)  # with their frequencies
    guarantees: Mapping[str, int] = field(default_factory=dict)  # virtual cluster -> its guaranteed number of nodes
    elastic: bool = False  # whether CPUs and memory of a running job may shrink; only in replays


PLACEMENTS: dict[str, Callable[[PlacementContext], PlacementFunction]] = {
    "consolidate": lambda _: consolidate,
    "pack": lambda _: pack,
    "spread": lambda _: spread,
    "cells": lambda context: CellPlacement(context.guarantees),
    "gradient": lambda context: GradientPlacement(context.typical_requests),
    "tune": lambda context: TunePlacement(elastic=context.elastic),
    "exact": lambda _: ExactPlacement(),
}

PLACEMENTS_WITHOUT_POWER = ("exact", "tune")  # they place jobs without asking what power is left

__all__ = ["PLACEMENTS", "PLACEMENTS_WITHOUT_POWER", "PlacementContext"]
