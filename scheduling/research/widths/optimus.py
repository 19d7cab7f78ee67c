"""Optimus (EuroSys'18): each job gets one GPU, then every further GPU goes where it saves the most run time.

What a GPU saves is the forecast time that a job has left without it, less that with it. Jobs keep their batch size.
"""

from __future__ import annotations

import heapq

from scheduling.research.widths.placing import spread_places
from scheduling.research.widths.values import Places, WidthJob, WidthPolicy, WidthView


class MarginalGains(WidthPolicy):
    name = "optimus"

    def places(self, view: WidthView) -> dict[int, Places]:
        jobs = {job.number: job for job in view.jobs[: view.gpus]}
        widths = dict.fromkeys(jobs, 1)
        gains = [(-_saved_s(view, job, 1), job.number) for job in jobs.values()]
        heapq.heapify(gains)
        for _ in range(view.gpus - len(jobs)):
            gain, number = gains[0]
            if gain >= 0:
                break
            widths[number] += 1
            heapq.heapreplace(gains, (-_saved_s(view, jobs[number], widths[number]), number))
        return spread_places(view, dict(sorted(widths.items(), key=lambda item: item[1])))


def _saved_s(view: WidthView, job: WidthJob, gpus: int) -> float:
    """What one more GPU saves."""
    if gpus >= min(job.widest, view.gpus):
        return 0.0
    left = [job.forecast.seconds_left(count, view.fewest_nodes(count)) for count in (gpus, gpus + 1)]
    return left[0] - left[1]
