"""Nodes of several GPU models in a replay, what its jobs request of them, and how fast jobs of each name are on each.

The run times of the trace are those on the first model of the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jobs.core.gpu_models import gpu_models
from jobs.traces.trace import EncodedColumn
from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.gpu_speeds import GivenSpeed, GpuSpeeds, SpeedScope

MAX_JOB_NAME = 120  # on a live cluster


@dataclass(frozen=True, kw_only=True)
class ReplayGpuTypes:
    """`nodes` are models and numbers of nodes, in the order of the nodes. `requested` is that of every job."""

    nodes: tuple[tuple[str, int], ...]
    requested: str
    speeds: tuple[GivenSpeed, ...] = ()

    @property
    def node_models(self) -> list[str]:
        """The model of each node."""
        return [model for model, count in self.nodes for _ in range(count)]

    @property
    def widest(self) -> int:
        """The most nodes of a model that jobs accept: none is wider, because a job never mixes models."""
        accepted = gpu_models(self.requested)
        return max((count for model, count in self.nodes if model in accepted), default=0)

    def slowdowns(self, name: str) -> tuple[float, ...]:
        """Those of jobs with this name."""
        return GpuSpeeds(given=self.speeds).slowdowns(SpeedScope("", name[:MAX_JOB_NAME], 0), self.requested)

    def codes(self, names: EncodedColumn) -> list[int]:
        """A number per word of the column, equal for words with equal slowdowns."""
        numbers: dict[tuple[float, ...], int] = {}
        return [numbers.setdefault(self.slowdowns(name), len(numbers)) for name in names.words]

    def longest(self, names: Sequence[str]) -> list[float]:
        """By how much each of these jobs runs longer on its slowest model."""
        return [max(self.slowdowns(name), default=1.0) for name in names]

    def completed(self, need: ResourceRequest, name: str) -> ResourceRequest:
        """The request with its GPU models and the slowdowns of jobs with this name; unchanged without whole GPUs."""
        return replace(need, gpu_model=self.requested, slowdowns=self.slowdowns(name)) if need.gpus else need
