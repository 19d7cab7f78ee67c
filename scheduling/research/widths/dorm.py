"""Dorm (SMARTCOMP'17): all jobs get equally many GPUs, and a running job is resized only if it is far from its part.

The equal part of a job is what it gets if GPUs go to the narrowest job, one after the other, up to the widest useful
width. A running job keeps its width while that differs from its part by at most a fifth, or by one GPU. If the widths
that are kept leave too few GPUs for the others, those that are furthest above their parts are resized too. The authors
solve an integer program with limits on unfairness and on the number of resized jobs, for CPUs, memory and GPUs; here
only GPUs count.
"""

from __future__ import annotations

import heapq

from scheduling.research.widths.placing import spread_places
from scheduling.research.widths.values import Places, WidthPolicy, WidthView, width

KEPT_WITHIN = 0.2  # of the equal part
KEPT_WITHIN_GPUS = 1


class EqualParts(WidthPolicy):
    name = "dorm"

    def places(self, view: WidthView) -> dict[int, Places]:
        parts = equal_parts(view)
        present = {job.number: width(job.places) for job in view.jobs}
        kept = {number: present[number] for number, part in parts.items() if is_close(present[number], part)}
        above = sorted(kept, key=lambda number: kept[number] - parts[number])
        while sum((parts | kept).values()) > view.gpus:
            del kept[above.pop()]
        widths = parts | kept
        return spread_places(view, dict(sorted(widths.items(), key=lambda item: item[1])))


def equal_parts(view: WidthView) -> dict[int, int]:
    """The GPUs of each job, the narrowest first. If there are more jobs than GPUs, those that came last wait."""
    jobs = view.jobs[: view.gpus]
    parts = {job.number: 1 for job in jobs}
    queue = [(1, job.number, job.widest) for job in jobs if job.widest > 1]
    heapq.heapify(queue)
    for _ in range(view.gpus - len(jobs)):
        if not queue:
            break
        part, number, widest = heapq.heappop(queue)
        parts[number] = part + 1
        if part + 1 < widest:
            heapq.heappush(queue, (part + 1, number, widest))
    return parts


def is_close(present: int, part: int) -> bool:
    return present > 0 and abs(present - part) <= max(KEPT_WITHIN_GPUS, KEPT_WITHIN * part)
