"""The peak power per GPU of attempts, from samples of telemetry. Pure.

All GPUs of a gang reach their peaks together or not, so the peak is that of the sum over its GPUs at one time, divided
by their number. A share of a GPU counts like the whole GPU, because the exporter measures whole GPUs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from scheduling.power.energy import MAX_GPU_POWER_W, GpuHold, PowerSample

Reading = tuple[int, float, float]  # attempt, time, watts of one GPU


def attempt_peaks(nodes: Iterable[tuple[Sequence[PowerSample], Sequence[GpuHold]]]) -> dict[int, float]:
    """The highest power per GPU by attempt, from the samples and the holds of each node. Attempts without a measured
    GPU are missing.
    """
    sums: dict[tuple[int, float], list[float]] = defaultdict(lambda: [0.0, 0])
    for samples, holds in nodes:
        for attempt, at_s, watts in _readings(samples, holds):
            together = sums[attempt, at_s]
            together[0] += watts
            together[1] += 1
    peaks: dict[int, float] = {}
    for (attempt, _), (watts, gpus) in sums.items():
        peaks[attempt] = max(peaks.get(attempt, 0.0), watts / gpus)
    return peaks


def _readings(samples: Sequence[PowerSample], holds: Sequence[GpuHold]) -> Iterator[Reading]:
    for hold in holds:
        if hold.gpu is None:
            continue
        for sample in samples:
            if hold.start_s <= sample.at_s < hold.end_s and hold.gpu < len(sample.power_w):
                watts = sample.power_w[hold.gpu]
                if watts is not None and 0 <= watts <= MAX_GPU_POWER_W:
                    yield hold.attempt, sample.at_s, watts
