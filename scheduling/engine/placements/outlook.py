"""What a placement may know besides the room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduling.engine.cluster import ResourceRequest


@dataclass(frozen=True, kw_only=True)
class PlacementContext:
    wishes: Mapping[ResourceRequest, float] = field(default_factory=dict)  # what is usually asked for, and how often
    guarantees: Mapping[str, int] = field(default_factory=dict)  # virtual cluster -> nodes that are always its own
    elastic: bool = False  # CPUs and memory of a job may shrink while it runs: in replays, on no cluster we drive
