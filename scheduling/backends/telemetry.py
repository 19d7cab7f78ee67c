"""What the GPUs say: a DCGM exporter's Prometheus page, read into one value per GPU.

We need one sample shape (name, labels, number) of the text format, so the reader is a few lines of our own and not a
dependency. A line that makes no sense is skipped and counted: one broken exporter must not blind us for the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from .base import Unreachable
from .http_client import read_text

LARGEST_PAGE = 64 << 20
LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
LABEL = re.compile(r'\s*([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
ESCAPES = {"n": "\n", "\\": "\\", '"': '"'}

# A metric's name and the field that it fills.
METRICS = {
    "DCGM_FI_DEV_GPU_UTIL": "util_percent",
    "DCGM_FI_DEV_FB_USED": "memory_used_mib",
    "DCGM_FI_DEV_GPU_TEMP": "temperature_c",
    "DCGM_FI_DEV_POWER_USAGE": "power_w",
    "DCGM_FI_DEV_XID_ERRORS": "last_xid",
    "DCGM_FI_PROF_SM_ACTIVE": "sm_active_ratio",
}
# What is counted or flagged besides, under names of ours; most of it is 0 for months.
COUNTERS = {
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
# Bits of the reasons that tell of trouble: hardware slowdown, heat by software and hardware, power brake. An idle GPU,
# a power cap and clocks that somebody set are no trouble.
TROUBLED = 0x8 | 0x20 | 0x40 | 0x80
BLANK = 2**47  # DCGM's words for "not supported" begin there
NIC_STATE, NIC_ACTIVE = "node_infiniband_state_id", 4  # node_exporter's, where a page brings its lines along
IDENTITY = {"UUID": "uuid", "pci_bus_id": "pci_bus_id", "modelName": "model"}


@dataclass(frozen=True, kw_only=True)
class GpuReading:
    """One GPU at one look. None is a value the exporter does not give."""

    node: str
    gpu: int
    util_percent: float | None = None
    memory_used_mib: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    sm_active_ratio: float | None = None
    last_xid: int | None = None  # the exporter never takes it back, so it is the last one, not a current one
    uuid: str = ""
    pci_bus_id: str = ""
    model: str = ""
    counted: Mapping[str, float] = field(default_factory=dict)  # by the names of COUNTERS


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One page of an exporter."""

    gpus: tuple[GpuReading, ...]
    nics_down: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of each node that has one
    skipped: int = 0
    by_place: Mapping[tuple[str, int], GpuReading] = field(default_factory=dict, repr=False)


class BadLine(ValueError):
    pass


def parse(page: str) -> Reading:
    """The GPUs of a page in the order of node and index, and how many lines could not be read."""
    found: dict[tuple[str, int], GpuReading] = {}
    down: dict[str, list[str]] = {}
    skipped = 0
    for line in _samples(page):
        try:
            _take_nic(down, line) if line.startswith(NIC_STATE) else _take(found, line)
        except BadLine:
            skipped += 1
    ordered, nics = dict(sorted(found.items())), {node: tuple(sorted(names)) for node, names in sorted(down.items())}
    return Reading(gpus=tuple(ordered.values()), nics_down=nics, skipped=skipped, by_place=ordered)


def _samples(page: str) -> Iterable[str]:
    return (line for line in page.split("\n") if line.strip() and not line.lstrip().startswith("#"))


def _take(found: dict[tuple[str, int], GpuReading], line: str) -> None:
    name, labels, value = _sample(line)
    if name not in METRICS and name not in COUNTERS:
        return
    node, gpu = labels.get("hostname") or labels.get("Hostname", ""), labels.get("gpu", "")
    if not node or not (gpu.isascii() and gpu.isdigit()):
        raise BadLine(line)
    if math.isnan(value):  # DCGM's word for "not measured just now"
        return
    known = found.get((node, int(gpu))) or _new(node, int(gpu), labels)
    if name in COUNTERS:
        found[node, int(gpu)] = replace(known, counted={**known.counted, **_counted(COUNTERS[name], value)})
        return
    found[node, int(gpu)] = replace(known, **{METRICS[name]: _as_field(METRICS[name], value)})


def _counted(name: str, value: float) -> dict[str, float]:
    if not 0 <= value < BLANK:
        return {}
    return {name: float(int(value) & TROUBLED) if name == "slowed" else value}


def _take_nic(down: dict[str, list[str]], line: str) -> None:
    name, labels, value = _sample(line)
    node = labels.get("hostname") or labels.get("Hostname") or labels.get("instance", "").rpartition(":")[0]
    if name != NIC_STATE:
        return
    if not node or not labels.get("device"):
        raise BadLine(line)
    if value != NIC_ACTIVE and not math.isnan(value):
        down.setdefault(node, []).append(f"{labels['device']}:{labels.get('port', '1')}"[:64])


def _new(node: str, gpu: int, labels: Mapping[str, str]) -> GpuReading:
    identity: dict[str, Any] = {ours: labels.get(theirs, "") for theirs, ours in IDENTITY.items()}
    return GpuReading(node=node, gpu=gpu, **identity)


def _as_field(name: str, value: float) -> Any:
    if math.isinf(value):
        raise BadLine(name)
    return int(value) if name == "last_xid" else value


def _sample(line: str) -> tuple[str, dict[str, str], float]:
    match = LINE.match(line.strip())
    if match is None:
        raise BadLine(line)
    try:
        return match[1], _labels(match[2] or ""), float(match[3])
    except ValueError:
        raise BadLine(line) from None


def _labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = LABEL.match(text, at)
        if match is None:
            raise BadLine(text)
        labels[match[1]] = re.sub(r"\\(.)", lambda m: ESCAPES.get(m[1], m[0]), match[2])
        at = match.end()
    return labels


def read(address: str, *, timeout_s: float = 5.0) -> Reading:
    """One look at an exporter, within `timeout_s` in total. Not answering says nothing about its GPUs."""
    try:
        page = read_text(address, timeout_s=timeout_s, largest=LARGEST_PAGE)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unreachable(f"{address}: {error or type(error).__name__}") from error
    return parse(page)
