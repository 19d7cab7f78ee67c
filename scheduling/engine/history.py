"""What a scheduling decision may know about the past. Plain frozen values.

A live cluster reads them from its rows (`scheduling.queries.history`); a replay keeps the same figures in its engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

WEEK_S: Final = 7 * 86_400.0
UNKNOWN_S: Final = -1.0  # instead of a predicted run time


@dataclass(frozen=True, kw_only=True)
class SchedulingHistory:
    """Usage, attained service and learned run times of one cluster at the time of a snapshot.

    usage              account -> GPU-seconds until now, including those of running jobs, halved every `half_life_s`
    attained           waiting or running job -> GPU-seconds of its attempts that have ended
    attained_by_speed  the same, where a second counts by the speed of the GPU model, compared with the first requested
    predicted_s        waiting or running job -> run time that was predicted at its first turn from similar jobs
    trees_s            the same, blended with trees, if they had been trained by then
    """

    half_life_s: float = WEEK_S
    usage: Mapping[str, float] = field(default_factory=dict)
    attained: Mapping[int, float] = field(default_factory=dict)
    attained_by_speed: Mapping[int, float] = field(default_factory=dict)
    predicted_s: Mapping[int, float] = field(default_factory=dict)
    trees_s: Mapping[int, float] = field(default_factory=dict)

    def prediction_s(self, job_id: int, *, trees: bool = False) -> float:
        """The predicted run time; `UNKNOWN_S` without one. `trees`: the one of trees if there is one."""
        rolling_s = self.predicted_s.get(job_id, UNKNOWN_S)
        return self.trees_s.get(job_id, rolling_s) if trees else rolling_s
