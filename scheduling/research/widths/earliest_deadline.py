"""EDF, the baseline of ElasticFlow: the job with the earliest deadline gets as many GPUs as make it faster, and so on.

Widths are powers of two. Nothing is refused. Jobs without a deadline come last.
"""

from __future__ import annotations

from scheduling.research.widths.placing import pack_all
from scheduling.research.widths.scaling import ScalingCurve
from scheduling.research.widths.values import Places, WidthPolicy, WidthView


class EarliestDeadline(WidthPolicy):
    name = "edf"

    def places(self, view: WidthView) -> dict[int, Places]:
        left = view.gpus
        widths: dict[int, int] = {}
        for job in sorted(view.jobs, key=lambda job: (job.deadline_s, job.number)):
            if not left:
                break
            curve = ScalingCurve.of(job, view)
            if gpus := int(curve.widths[curve.level(left)]):
                widths[job.number] = gpus
                left -= gpus
        return pack_all(view, widths)
