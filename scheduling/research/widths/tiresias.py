"""Tiresias (NSDI'19) in two queues, at the widths that users ask for: no elastic width.

Jobs begin in the first queue and move to the second once they have used 16 GPU-hours. The first queue goes first, and
in each queue the job that entered it first. Jobs that fit run; those that no longer fit are stopped.
"""

from __future__ import annotations

from scheduling.research.widths.placing import spread_places
from scheduling.research.widths.values import Places, WidthJob, WidthPolicy, WidthView

FIRST_QUEUE_GPU_S = 16 * 3600.0


class TwoQueues(WidthPolicy):
    name = "tiresias"

    def __init__(self) -> None:
        self._demoted: dict[int, float] = {}  # when each job entered the second queue

    def places(self, view: WidthView) -> dict[int, Places]:
        for job in view.jobs:
            if job.attained_gpu_s >= FIRST_QUEUE_GPU_S:
                self._demoted.setdefault(job.number, view.now)
        left = view.gpus
        widths: dict[int, int] = {}
        for job in sorted(view.jobs, key=self._turn):
            if job.requested <= left:
                widths[job.number] = job.requested
                left -= job.requested
        return spread_places(view, widths)

    def _turn(self, job: WidthJob) -> tuple[float, int]:
        return self._demoted.get(job.number, -1.0), job.number
