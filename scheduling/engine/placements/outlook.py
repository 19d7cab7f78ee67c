"""What a placement may know besides the free resources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduling.engine.cluster import ResourceRequest


@dataclass(frozen=True, kw_only=True)
class PlacementContext:
    """Facts about the workload, fixed for the lifetime of an engine."""

    typical_requests: Mapping[ResourceRequest, float] = field(
        default_factory=dict
    )  # typical requests and their frequencies
    guarantees: Mapping[str, int] = field(default_factory=dict)  # virtual cluster -> its guaranteed number of nodes
    elastic: bool = False  # whether CPUs and memory of a running job may shrink; only in replays
