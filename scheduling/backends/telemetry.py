"""Reads GPU telemetry: parses a DCGM exporter's Prometheus page into one reading per GPU, or per MIG slice of a GPU.

A malformed line is skipped and counted, so that one broken exporter does not hide the GPUs of the others. The parser of
prometheus_client is not used: it stops at the first malformed line, needs quadratic time for a line with many labels or
escapes, and takes twice as long for a page of 10,000 GPUs. Acme needs only names, labels and numbers.

The exporter numbers slices by GPU and instance; Kubernetes only says how many of each profile a pod holds, and Acme
numbers them after the whole GPUs (`jobs.core.gpu_shares`). The pod that the exporter names for a slice decides; slices
without a pod of Acme get the devices that are left.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import httpx

from acmeweb.common.errors import MalformedResponse
from acmeweb.common.http_client import fetch_text
from jobs.core.gpu_shares import WHOLE_GPU, profile_milli, slice_devices, whole_gpus

from .base import ClusterUnreachable

GpuPlace = tuple[str, int, int]  # node, GPU, MIG slice
WHOLE = -1  # the place of a GPU's slice, for the GPU itself
MAX_INSTANCE_DIGITS = 4
MAX_PAGE_BYTES = 64 << 20  # 16,000 GPUs with 20 lines of 200 bytes
SAMPLE_PATTERN = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+(-?\d+))?\s*$")
LABEL_PATTERN = re.compile(r'\s*([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
ESCAPES = {"n": "\n", "\\": "\\", '"': '"'}

# Metric name -> field of GpuReading
GPU_FIELDS = {
    "DCGM_FI_DEV_GPU_UTIL": "util_percent",
    "DCGM_FI_DEV_FB_USED": "memory_used_mib",
    "DCGM_FI_DEV_GPU_TEMP": "temperature_c",
    "DCGM_FI_DEV_POWER_USAGE": "power_w",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "energy_mj",
    "DCGM_FI_DEV_XID_ERRORS": "last_xid",
    "DCGM_FI_PROF_SM_ACTIVE": "sm_active_ratio",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": "engine_active_ratio",
}
# Counters and flags, by the names used in `counted`; most values are 0 for months
GPU_COUNTERS = {
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "ecc_dbe",  # volatile: since the driver was loaded
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": "ecc_sbe",
    "DCGM_FI_DEV_RETIRED_PENDING": "rows_pending",  # pages, before Ampere
    "DCGM_FI_DEV_ROW_REMAP_PENDING": "rows_pending",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": "remap_failed",
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": "nvlink_crc",
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": "nvlink_data",
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": "nvlink_replay",
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": "nvlink_recovery",
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": "slowed",
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": "slowed",  # its name before DCGM 3.3
}
# Throttle reasons that indicate a problem: hardware slowdown, thermal slowdown in software and hardware, power brake.
# An idle GPU, a power cap and application clocks are normal.
THROTTLE_REASON_BITS = 0x8 | 0x20 | 0x40 | 0x80
DCGM_BLANK = 2**47  # DCGM's "not supported" values begin here
NIC_STATE, NIC_ACTIVE = "node_infiniband_state_id", 4  # a metric of node_exporter, on pages that include it
# Metrics of ipmi_exporter and redfish_exporter, on pages that include them. A chassis may contain another one
NODE_POWER = ("ipmi_dcmi_power_consumption_watts", "redfish_chassis_power_average_consumed_watts")
MAX_NODE_POWER_W = 1_000_000.0
ENERGY_BLANK = 2.0**62  # DCGM's "not supported" of 64 bits; a counter of years exceeds DCGM_BLANK
MAX_POD_LENGTH = 320  # of a namespace and a name, which Kubernetes limits to 63 and 253 characters
IDENTITY_LABELS = {"UUID": "uuid", "pci_bus_id": "pci_bus_id", "modelName": "model"}


@dataclass(frozen=True, kw_only=True)
class GpuReading:
    """One GPU or MIG slice at one poll. None means that the exporter does not provide the value.

    DCGM measures the activity and memory of a slice. Power, energy, temperature and errors are those of its whole GPU.
    """

    node: str
    gpu: int
    instance: int = WHOLE  # DCGM's number of the MIG slice on this GPU
    mig_profile: str = ""  # of a MIG slice
    util_percent: float | None = None
    memory_used_mib: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    energy_mj: float | None = None  # since the driver was loaded
    sm_active_ratio: float | None = None
    engine_active_ratio: float | None = None  # the utilization of a MIG slice, for which DCGM has no other
    last_xid: int | None = None  # the exporter never resets it, so it is the last error, not a current one
    uuid: str = ""
    pci_bus_id: str = ""
    model: str = ""
    pod: str = ""  # "namespace/name" of the pod that holds it, on Kubernetes
    counted: Mapping[str, float] = field(default_factory=dict)  # by the names in GPU_COUNTERS


@dataclass(frozen=True, kw_only=True)
class ExporterPage:
    """One parsed page of an exporter."""

    gpus: tuple[GpuReading, ...]
    nics_down: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by node, only of nodes with a port down
    node_power_w: Mapping[str, float] = field(default_factory=dict)
    unreadable_lines: int = 0
    by_place: Mapping[tuple[str, int], GpuReading] = field(default_factory=dict, repr=False)


class PageSample(NamedTuple):
    """One line of a page. `at_s` is set on pages of Prometheus' federation."""

    name: str
    labels: dict[str, str]
    value: float
    at_s: float | None


def parse(page: str) -> ExporterPage:
    """The GPUs and slices of a page, ordered by node and index, and the number of unreadable lines."""
    gpus: dict[GpuPlace, GpuReading] = {}
    down: dict[str, list[str]] = {}
    power: dict[str, float] = {}
    skipped = 0
    for line in _sample_lines(page):
        try:
            if line.startswith(NIC_STATE):
                _apply_nic_sample(down, line)
            elif line.startswith(NODE_POWER):
                _apply_node_power(power, line)
            else:
                _apply_gpu_sample(gpus, line)
        except MalformedResponse:
            skipped += 1
    ordered = dict(sorted(gpus.items()))
    whole = {(node, gpu): reading for (node, gpu, instance), reading in ordered.items() if instance == WHOLE}
    nics = {node: tuple(sorted(names)) for node, names in sorted(down.items())}
    return ExporterPage(
        gpus=tuple(ordered.values()), nics_down=nics, node_power_w=power, unreadable_lines=skipped, by_place=whole
    )


def _sample_lines(page: str) -> Iterable[str]:
    return (line for line in page.split("\n") if line.strip() and not line.lstrip().startswith("#"))


def _apply_gpu_sample(gpus: dict[GpuPlace, GpuReading], line: str) -> None:
    name, labels, value, _ = parse_sample(line)
    if name not in GPU_FIELDS and name not in GPU_COUNTERS:
        return
    node, gpu = labels.get("hostname") or labels.get("Hostname", ""), labels.get("gpu", "")
    if not node or not (gpu.isascii() and gpu.isdigit()):
        raise MalformedResponse(line)
    if math.isnan(value):  # DCGM reports NaN if a value is not measured now
        return
    place = node, int(gpu), _instance_label(labels)
    known = gpus.get(place) or _new_gpu_reading(place, labels)
    if name in GPU_COUNTERS:
        gpus[place] = replace(known, counted={**known.counted, **_counter_values(GPU_COUNTERS[name], value)})
        return
    gpus[place] = replace(known, **{GPU_FIELDS[name]: _field_value(GPU_FIELDS[name], value)})


def _instance_label(labels: Mapping[str, str]) -> int:
    text = labels.get("GPU_I_ID", "")
    if not text:
        return WHOLE
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_INSTANCE_DIGITS):
        raise MalformedResponse(text)
    return int(text)


def _counter_values(name: str, value: float) -> dict[str, float]:
    if not 0 <= value < DCGM_BLANK:
        return {}
    return {name: float(int(value) & THROTTLE_REASON_BITS) if name == "slowed" else value}


def _apply_nic_sample(down: dict[str, list[str]], line: str) -> None:
    name, labels, value, _ = parse_sample(line)
    node = node_label(labels)
    if name != NIC_STATE:
        return
    if not node or not labels.get("device"):
        raise MalformedResponse(line)
    if value != NIC_ACTIVE and not math.isnan(value):
        down.setdefault(node, []).append(f"{labels['device']}:{labels.get('port', '1')}"[:64])


def _apply_node_power(power: dict[str, float], line: str) -> None:
    name, labels, value, _ = parse_sample(line)
    if name not in NODE_POWER or math.isnan(value):
        return
    if not (node := node_label(labels)) or not 0 <= value <= MAX_NODE_POWER_W:
        raise MalformedResponse(line)
    power[node] = max(value, power.get(node, 0.0))


def node_label(labels: Mapping[str, str]) -> str:
    return labels.get("hostname") or labels.get("Hostname") or labels.get("instance", "").rpartition(":")[0]


def _new_gpu_reading(place: GpuPlace, labels: Mapping[str, str]) -> GpuReading:
    node, gpu, instance = place
    profile = labels.get("GPU_I_PROFILE", "").replace("+", ".") if instance != WHOLE else ""
    identity: dict[str, Any] = {ours: labels.get(theirs, "") for theirs, ours in IDENTITY_LABELS.items()}
    return GpuReading(
        node=node, gpu=gpu, instance=instance, mig_profile=profile[:32], pod=_pod_label(labels), **identity
    )


def _pod_label(labels: Mapping[str, str]) -> str:
    """Prometheus renames the labels of a page that it has scraped, because it sets `pod` and `namespace` itself."""
    for prefix in ("exported_", ""):
        namespace, pod = labels.get(f"{prefix}namespace", ""), labels.get(f"{prefix}pod", "")
        if namespace and pod:
            return f"{namespace}/{pod}"[:MAX_POD_LENGTH]
    return ""


def _field_value(name: str, value: float) -> Any:
    if math.isinf(value):
        raise MalformedResponse(name)
    if name == "energy_mj":
        return value if 0 <= value < ENERGY_BLANK else None
    return int(value) if name == "last_xid" else value


def parse_sample(line: str) -> PageSample:
    """Raises MalformedResponse."""
    match = SAMPLE_PATTERN.match(line.strip())
    if match is None:
        raise MalformedResponse(line)
    try:
        at_s = float(match[4]) / 1000 if match[4] else None
        return PageSample(match[1], _parse_labels(match[2] or ""), float(match[3]), at_s)
    except ValueError:
        raise MalformedResponse(line) from None


def _parse_labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = LABEL_PATTERN.match(text, at)
        if match is None:
            raise MalformedResponse(text)
        labels[match[1]] = re.sub(r"\\(.)", lambda m: ESCAPES.get(m[1], m[0]), match[2])
        at = match.end()
    return labels


def read_exporter(address: str, *, timeout_s: float = 5.0) -> ExporterPage:
    """Fetch and parse an exporter's page within `timeout_s`. Raises ClusterUnreachable if it does not respond."""
    return parse(fetch_page(address, timeout_s=timeout_s))


def fetch_page(address: str, *, timeout_s: float) -> str:
    try:
        return fetch_text(address, timeout_s=timeout_s, largest=MAX_PAGE_BYTES)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ClusterUnreachable(f"{address}: {error or type(error).__name__}") from error


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
        device = _device_of_pod(reading.pod, held)
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


def _device_of_pod(pod: str, held: Mapping[str, int]) -> int | None:
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
