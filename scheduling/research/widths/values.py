"""What a policy for elastic jobs sees and returns: jobs with their places and forecasts, and the GPUs of nodes.

The width of a job is its number of GPUs. Policies change widths; a job chooses its batch size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Places = tuple[tuple[int, int], ...]  # (node, GPUs there); empty while a job waits
NOWHERE: Places = ()


def width(places: Places) -> int:
    return sum(gpus for _, gpus in places)


class WidthForecast:
    """What is expected of a job. Widths are given as GPUs and as the nodes that these are on."""

    def speeds(self, gpus: Ints, nodes: Ints) -> Floats:
        """The progress per second at each of the widths."""
        raise NotImplementedError

    def seconds_left(self, gpus: int, nodes: int) -> float:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class WidthJob:
    """A job that has not ended."""

    number: int  # in order of submission
    age_s: float
    attained_gpu_s: float
    restarts: int  # changes of places after the first start
    restart_s: float  # how long a change of places stops it
    is_restarting: bool  # its places have changed and it makes no progress yet
    requested: int  # the width that its user asked for
    widest: int  # more GPUs than this are of no use
    places: Places
    forecast: WidthForecast
    deadline_s: float = math.inf  # when it should have ended, on the clock of the view

    @property
    def useful_part(self) -> float:
        """The part of its age in which it was not stopped by changes of places, if it restarts once more."""
        whole_s = self.age_s + self.restart_s
        return max(0.0, self.age_s - self.restarts * self.restart_s) / whole_s if whole_s else 1.0


@dataclass(frozen=True, kw_only=True)
class WidthView:
    """Everything that a policy may look at. Nodes have equally many GPUs of one type."""

    now: float
    round_s: float  # until the next decision
    nodes: int
    node_gpus: int
    jobs: tuple[WidthJob, ...]  # in order of submission

    @property
    def gpus(self) -> int:
        return self.nodes * self.node_gpus

    def fewest_nodes(self, gpus: int) -> int:
        return math.ceil(gpus / self.node_gpus)

    def free(self, taken: Iterable[Places]) -> list[int]:
        """The free GPUs of each node if these places are taken."""
        left = [self.node_gpus] * self.nodes
        for node, gpus in (place for places in taken for place in places):
            left[node] -= gpus
        return left


class WidthPolicy:
    """Decides the places of all jobs. One object serves one cluster and may remember what it decided."""

    name: str

    def refused(self, views: Sequence[WidthView]) -> frozenset[int]:
        """The numbers of jobs that will never get GPUs. They leave before the places of this round are decided. Most
        policies refuse none.
        """
        return frozenset()

    def places(self, view: WidthView) -> dict[int, Places]:
        """The places of jobs, by number. Jobs that are left out wait. The same places as before cost nothing."""
        raise NotImplementedError

    def places_by_type(self, views: Sequence[WidthView]) -> list[dict[int, Places]]:
        """The same for GPUs of several types, with one view for each: the same jobs with their forecasts on this type,
        and the places that they have there. A job gets GPUs of at most one type. Most policies know only one type.
        """
        (only,) = views
        return [self.places(only)]
