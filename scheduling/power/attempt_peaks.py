"""The peak power per GPU of attempts, from samples of telemetry. Pure.

All GPUs of a gang reach their peaks together or not, so the peak is that of the sum over its GPUs at one time, divided
by their number. A share of a GPU counts like the whole GPU, because the exporter measures whole GPUs. The peak of a MIG
slice is scaled to a whole GPU. An attempt whose GPUs are not known by index, as on Kubernetes, counts with the highest
of those that nobody else holds.
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
    for sample in samples:
        held = [hold for hold in holds if hold.start_s <= sample.at_s < hold.end_s]
        watts = {gpu: value for gpu, value in enumerate(sample.power_w) if value is not None and _is_believed(value)}
        for hold in held:
            if hold.gpu is not None and hold.gpu in watts:
                yield hold.attempt, sample.at_s, watts[hold.gpu] / hold.part
        others = sorted((watts[gpu] for gpu in watts.keys() - {hold.gpu for hold in held}), reverse=True)
        for hold in held:
            if hold.gpu is None:
                yield from ((hold.attempt, sample.at_s, value) for value in others[: hold.gpus])


def _is_believed(watts: float) -> bool:
    return 0 <= watts <= MAX_GPU_POWER_W
