"""Tiresias' Gittins variant (NSDI'19): who is likeliest to end soon for the GPU-seconds that it costs goes first.

Nothing is known of a job, but how much service jobs take is known as a distribution. The Gittins index of a job that
has had `a` GPU-seconds is the best of P(it ends within d more) / E[service given within d more], over all d.
Differences: the distribution is learned from jobs that have ended, where the authors' simulator reads it off the trace
itself; the index changes at service thresholds that double, as their queues do, and not continuously; and ties are as
in `tiresias`. Before anybody has ended it is `tiresias` with these thresholds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scheduling.engine.engine import EngineJob
from scheduling.engine.policies.tiresias import TiresiasRules

Floats = npt.NDArray[np.float64]
DOUBLING_THRESHOLDS = tuple(1000.0 * 2**n for n in range(14))  # GPU-seconds, up to 95 days of one GPU
MAX_SERVICES = 20_000


class GittinsRules(TiresiasRules):
    name = "gittins"

    def __init__(self, thresholds: tuple[float, ...] = DOUBLING_THRESHOLDS, promote: float | None = None) -> None:
        super().__init__(thresholds, promote)
        self._served: list[float] = []  # by the jobs that have ended, newest last
        self._learn_at = 100
        self._places = list(range(len(thresholds) + 1))  # of the levels, by their index

    def _queue(self, job: EngineJob) -> int:
        return self._places[job.level]

    def ended(self, job: EngineJob, now: float) -> None:
        self._served.append(job.attained + job.ask.gpus * (now - job.since))
        if len(self._served) >= self._learn_at:
            del self._served[:-MAX_SERVICES]
            self._learn_at = len(self._served) + max(100, len(self._served) // 4)
            index = gittins_index(np.sort(self._served), np.array([0.0, *self.thresholds]))
            order = np.argsort(-index, kind="stable").tolist()
            self._places = [order.index(level) for level in range(len(order))]


def gittins_index(served: Floats, attained: Floats) -> Floats:
    """The index at each of the `attained` services, which are also where a job may be stopped; `served` is sorted."""
    below = np.concatenate([[0.0], np.cumsum(served)])
    ends = np.append(attained[1:], np.inf)
    passed = np.searchsorted(served, attained, side="right")
    until = np.searchsorted(served, ends, side="right")
    index = np.zeros(len(attained))
    for level, (had, first) in enumerate(zip(attained, passed, strict=True)):
        last, far = until[level:], ends[level:]
        done = last - first
        beyond = np.where(last < len(served), (len(served) - last) * (np.minimum(far, 1e18) - had), 0.0)
        given = below[last] - below[first] - done * had + beyond
        index[level] = np.max(done / np.maximum(given, 1e-9), initial=0.0)
    return index
