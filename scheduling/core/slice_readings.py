"""Which telemetry belongs to which device of a node with MIG slices. Pure.

The exporter numbers slices by GPU and instance; Kubernetes only says how many of each profile a pod holds, and Acme
numbers them after the whole GPUs (`jobs.core.gpu_shares`). The pod that the exporter names for a slice decides; slices
without a pod of Acme get the devices that are left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from jobs.core.gpu_shares import WHOLE_GPU, profile_milli, slice_devices, whole_gpus

if TYPE_CHECKING:
    from scheduling.backends.telemetry import GpuReading


def device_readings(
    gpus: int, slices: Mapping[str, int], readings: Sequence[GpuReading], held: Mapping[str, int]
) -> list[GpuReading | None]:
    """The reading of each device, None without one. `held`: the device of each attempt of Acme, by the name of its
    pods or of their owner.

    An exporter that does not measure slices reports all GPUs of the node alike. Then it is not known which of them are
    divided, and no device has a reading.
    """
    devices, count = slice_devices(gpus, slices), whole_gpus(gpus, slices)
    found: list[GpuReading | None] = [None] * gpus
    whole = [reading for reading in readings if not reading.mig_profile]
    if len(whole) <= count:
        found[: len(whole)] = whole
    others: list[GpuReading] = []
    for reading in (_of_slice(reading) for reading in readings if reading.mig_profile in slices):
        device = _held_device(reading.pod, held)
        if device is not None and devices.get(device) == reading.mig_profile and found[device] is None:
            found[device] = reading
        else:
            others.append(reading)
    left = [device for device in devices if found[device] is None and device not in held.values()]
    for reading in others:
        if (device := next((one for one in left if devices[one] == reading.mig_profile), None)) is not None:
            left.remove(device)
            found[device] = reading
    return found


def _held_device(pod: str, held: Mapping[str, int]) -> int | None:
    """Pods have the name of their owner, followed by parts that depend on its kind."""
    name = pod.partition("/")[2]
    while name:
        if name in held:
            return held[name]
        name = name.rpartition("-")[0]
    return None


def _of_slice(reading: GpuReading) -> GpuReading:
    """The slice with its utilization, and with its part of the power of its GPU, by compute."""
    part = profile_milli(reading.mig_profile) / WHOLE_GPU
    active = reading.engine_active_ratio
    return replace(
        reading,
        util_percent=100 * active if active is not None else reading.util_percent,
        power_w=None if reading.power_w is None else part * reading.power_w,
        energy_mj=None if reading.energy_mj is None else part * reading.energy_mj,
    )
