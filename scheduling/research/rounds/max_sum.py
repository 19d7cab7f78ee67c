"""Maximum total throughput of Gavel (OSDI'20): the cluster runs as many steps as possible, whoever runs them.

Jobs with fast steps win, and others starve. Not aware of GPU types, a job is believed to run everywhere as fast as on
the first type.
"""

from __future__ import annotations

import numpy as np

from scheduling.research.rounds.programs import Arrangements, JobClasses, most_total_gain
from scheduling.research.rounds.values import RoundPolicy, RoundView, TimeShares


class MaxSum(RoundPolicy):
    """Believes that all types are as fast as the first."""

    name = "max-sum"
    aware = False

    def shares(self, view: RoundView) -> TimeShares:
        classes = JobClasses.of(view)
        alone = Arrangements.alone(classes.speeds(view)[:, :1])
        time = most_total_gain(classes, alone, np.array([view.types.total]))
        return TimeShares.alone(classes.per_job(time) * view.types.parts)


class AwareMaxSum(RoundPolicy):
    """Knows the speeds of the jobs on each type."""

    name = "max-sum-aware"

    def shares(self, view: RoundView) -> TimeShares:
        classes = JobClasses.of(view)
        time = most_total_gain(classes, Arrangements.alone(classes.speeds(view)), view.types.counts)
        return TimeShares.alone(classes.per_job(time))
