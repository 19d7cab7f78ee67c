"""How the speed of a job grows with its width, at widths that are powers of two."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduling.research.widths.values import Floats, Ints, WidthJob, WidthView, width


@dataclass(frozen=True)
class ScalingCurve:
    """The useful widths of a job, after a first 0: powers of two at which it is faster than at all narrower ones."""

    job: WidthJob
    widths: Ints
    speeds: Floats  # progress per second
    work: float  # the progress that is left; infinite if nothing is known

    @staticmethod
    def of(job: WidthJob, view: WidthView) -> ScalingCurve:
        widest = min(job.widest, view.gpus)
        gpus = 2 ** np.arange(widest.bit_length(), dtype=np.int64)
        speeds = job.forecast.speeds(gpus, -(-gpus // view.node_gpus))
        fastest_narrower = np.maximum.accumulate(np.append(0.0, speeds[:-1]))
        useful = speeds > fastest_narrower
        work = job.forecast.seconds_left(1, 1) * float(speeds[0])
        return ScalingCurve(job, np.append(0, gpus[useful]), np.append(0.0, speeds[useful]), work)

    def level(self, gpus: int) -> int:
        """The position of the widest width of at most so many GPUs."""
        return int(np.searchsorted(self.widths, gpus, side="right")) - 1

    def gpu_seconds(self, level: int) -> float:
        """What is left, in GPU-seconds at this width."""
        return self.work / float(self.speeds[level]) * int(self.widths[level])

    def progress(self, levels: Ints, seconds: Floats) -> Floats:
        """The progress after each of some slots of time. A change of width costs a restart."""
        widths = self.widths[levels]
        changes = np.diff(widths, prepend=width(self.job.places)) != 0
        changes[:1] |= self.job.is_restarting
        running_s = seconds - self.job.restart_s * (changes & (widths > 0))
        return np.cumsum(self.speeds[levels] * running_s)
