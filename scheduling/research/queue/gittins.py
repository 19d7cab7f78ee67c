"""The Gittins variant of Tiresias (NSDI'19): the job most likely to end soon per GPU-second spent goes first.

Nothing is known about a single job, but the distribution of service over all jobs is. The Gittins index of a job that
received `a` GPU-seconds is the maximum over all d of P(it ends within d more) / E[service received within d more].
Differences: the distribution is learned from jobs that have ended, while the authors' simulator reads it from the trace
itself; the index changes at service thresholds that double, like their queues, not continuously; and ties are broken as
in `tiresias`. Until enough jobs have ended, it equals `tiresias` with these thresholds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scheduling.engine.job import EngineJob
from scheduling.engine.policies.tiresias import TiresiasRules

Floats = npt.NDArray[np.float64]
DOUBLING_THRESHOLDS = tuple(1000.0 * 2**n for n in range(14))  # GPU-seconds, up to 95 days of one GPU
MAX_SERVICES = 20_000


class GittinsRules(TiresiasRules):
    """Tiresias with queues ordered by Gittins index."""

    name = "gittins"

    def __init__(self, thresholds: tuple[float, ...] = DOUBLING_THRESHOLDS, promote: float | None = None) -> None:
        super().__init__(thresholds, promote)
        self._served: list[float] = []  # GPU-seconds of ended jobs, the newest last
        self._learn_at = 100
        self._places = list(range(len(thresholds) + 1))  # level -> its place in the order of Gittins indices

    def _queue_level(self, job: EngineJob) -> int:
        return self._places[job.level]

    def on_job_end(self, job: EngineJob, now: float) -> None:
        self._served.append(job.attained + job.group.charged_gpus * (now - job.since))
        if len(self._served) >= self._learn_at:
            del self._served[:-MAX_SERVICES]
            self._learn_at = len(self._served) + max(100, len(self._served) // 4)
            index = gittins_index(np.sort(self._served), np.array([0.0, *self.thresholds]))
            order = np.argsort(-index, kind="stable").tolist()
            self._places = [order.index(level) for level in range(len(order))]


def gittins_index(served: Floats, attained: Floats) -> Floats:
    """The index at each of the `attained` services, where a job may also be stopped. `served` must be sorted."""
    below = np.concatenate([[0.0], np.cumsum(served)])
    ends = np.append(attained[1:], np.inf)
    passed = np.searchsorted(served, attained, side="right")
    until = np.searchsorted(served, ends, side="right")
    index = np.zeros(len(attained))
    for level, (attained_s, first) in enumerate(zip(attained, passed, strict=True)):
        last, far = until[level:], ends[level:]
        done = last - first
        beyond = np.where(last < len(served), (len(served) - last) * (np.minimum(far, 1e18) - attained_s), 0.0)
        expected_service = below[last] - below[first] - done * attained_s + beyond
        index[level] = np.max(done / np.maximum(expected_service, 1e-9), initial=0.0)
    return index
