"""Gandiva (OSDI'18): jobs grow to idle GPUs, and shrink to what their users ask for when other jobs come.

While not all jobs fit, they run in turns, for equal time. Once none waits, the jobs that came first double their width,
one after the other, as long as GPUs are idle. Nothing is known of their speeds, so a job may grow without being faster.
Packing is another policy (`rounds gandiva`); moves to nodes with better links are missing, since nodes are equal here.
"""

from __future__ import annotations

from scheduling.research.widths.placing import spread_places
from scheduling.research.widths.turns import EqualTime
from scheduling.research.widths.values import Places, WidthView


class GrowToIdleGpus(EqualTime):
    name = "gandiva"

    def places(self, view: WidthView) -> dict[int, Places]:
        widths = self.next_widths(view)
        if len(widths) == len(view.jobs):
            widths |= grown(view, widths)
        return spread_places(view, dict(sorted(widths.items(), key=lambda item: item[1])))


def grown(view: WidthView, widths: dict[int, int]) -> dict[int, int]:
    """Widths that are doubled while GPUs are idle, at most once for each job before another one is."""
    left = view.gpus - sum(widths.values())
    found = dict(widths)
    growing = list(view.jobs)
    while growing:
        able, growing = growing, []
        for job in able:
            gpus = found[job.number]
            if 2 * gpus <= job.widest and gpus <= left:
                found[job.number] += gpus
                left -= gpus
                growing.append(job)
    return found
