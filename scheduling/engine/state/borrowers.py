"""The borrowers: running jobs that owners may preempt. `turns/claiming` explains how owners do that.

A borrower that its contract protects counts like an owner's job until the protection ends (`end_protections`).
"""

from __future__ import annotations

import math
import sys
from heapq import heappop, heappush
from typing import Any

from scheduling.engine.job import EngineJob
from scheduling.engine.resources import GpuPlacement, NodeResources


class Borrowers:
    """Running borrowers, and the free resources as if none of them ran.

    `owner_resources` are the free resources plus those that `jobs` hold, on the same open nodes. For rules without
    claims there are no borrowers, and it is the same object as the free resources.
    """

    __slots__ = ("_highest_class", "_lowest_class", "_protected", "jobs", "owner_resources", "prices")

    def __init__(self, resources: NodeResources, *, claims: bool) -> None:
        self.jobs: dict[int, EngineJob] = {}  # by number
        self.owner_resources = resources.copy() if claims else resources
        # A cache of `turns/claiming`: `ClaimPrices` of these jobs in this turn, or None
        self.prices: Any = None
        self._lowest_class, self._highest_class = sys.maxsize, -sys.maxsize
        self._protected: list[tuple[float, int, EngineJob]] = []  # a heap by the end of the protection

    def add(self, job: EngineJob) -> None:
        """Account for a job that starts, which may be a borrower. Its resources are taken already."""
        assert job.places is not None
        if job.is_reclaimable:
            self.jobs[job.number] = job
        else:
            self.owner_resources.move(job.places, job.group.need, -1)
        self._mark_prices_stale(job.places)

    def adopt(self, job: EngineJob) -> None:
        """Account for a running job whose resources are taken in `owner_resources` too."""
        if job.is_reclaimable:
            self.jobs[job.number] = job
            self.record_class(job.submitted_band)
            self.owner_resources.give(job.places or (), job.group.need)
        elif job.protected_until:
            self.record_class(job.submitted_band)
            heappush(self._protected, (job.protected_until, job.number, job))

    def protection_ends(self) -> list[float]:
        """The times at which protections end by themselves."""
        return [until for until, _, _ in self._protected if until < math.inf]

    def end_protections(self, now: float) -> bool:
        """Let owners preempt the borrowers whose protection has ended. Whether there were any."""
        ended = False
        while self._protected and self._protected[0][0] <= now:
            _, _, job = heappop(self._protected)
            if job.protected_until and job.places is not None:
                job.protected_until = 0.0
                self.jobs[job.number] = job
                self.owner_resources.give(job.places, job.group.need)
                ended = True
        return ended

    def remove(self, job: EngineJob) -> None:
        """Account for a job that stops or ends, before its resources are released."""
        assert job.places is not None
        if job.is_reclaimable:
            del self.jobs[job.number]
        else:
            self.owner_resources.move(job.places, job.group.need, 1)
        job.protected_until = 0.0
        self._mark_prices_stale(job.places)

    def _mark_prices_stale(self, places: GpuPlacement) -> None:
        if self.prices:
            self.prices.mark_nodes_stale(places)

    def record_class(self, priority_class: int) -> None:
        """Note that a job of this priority class exists."""
        if priority_class < self._lowest_class:
            self._lowest_class = priority_class
        if priority_class > self._highest_class:
            self._highest_class = priority_class

    @property
    def priority_classes_differ(self) -> bool:
        """Whether jobs of different priority classes have been submitted, so that borrowers may preempt borrowers."""
        return self._lowest_class < self._highest_class
