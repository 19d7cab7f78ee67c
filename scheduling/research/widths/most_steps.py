"""As many steps per second as possible, over all jobs (max-sum of Gavel, OSDI'20, on GPUs of one type)."""

from __future__ import annotations

import numpy as np

from scheduling.research.widths.turns import TakeTurns
from scheduling.research.widths.values import WidthJob, WidthView


class MostSteps(TakeTurns):
    name = "max-sum"

    def fractions(self, view: WidthView) -> dict[int, float]:
        """All the time for the jobs with the most steps per GPU, while there are GPUs. The optimum of the program."""
        left = float(view.gpus)
        fractions: dict[int, float] = {}
        for job in sorted(view.jobs, key=lambda job: -_steps_per_gpu(view, job)):
            fractions[job.number] = min(1.0, left / job.requested)
            left -= fractions[job.number] * job.requested
        return fractions


def _steps_per_gpu(view: WidthView, job: WidthJob) -> float:
    widths = np.array([job.requested]), np.array([view.fewest_nodes(job.requested)])
    return float(job.forecast.speeds(*widths)[0]) / job.requested
