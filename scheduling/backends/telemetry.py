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


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One page of an exporter."""

    gpus: tuple[GpuReading, ...]
    skipped: int = 0
    by_place: Mapping[tuple[str, int], GpuReading] = field(default_factory=dict, repr=False)


class BadLine(ValueError):
    pass


def parse(page: str) -> Reading:
    """The GPUs of a page in the order of node and index, and how many lines could not be read."""
    found: dict[tuple[str, int], GpuReading] = {}
    skipped = 0
    for line in _samples(page):
        try:
            _take(found, line)
        except BadLine:
            skipped += 1
    ordered = dict(sorted(found.items()))
    return Reading(gpus=tuple(ordered.values()), skipped=skipped, by_place=ordered)


def _samples(page: str) -> Iterable[str]:
    return (line for line in page.split("\n") if line.strip() and not line.lstrip().startswith("#"))


def _take(found: dict[tuple[str, int], GpuReading], line: str) -> None:
    name, labels, value = _sample(line)
    if name not in METRICS:
        return
    node, gpu = labels.get("hostname") or labels.get("Hostname", ""), labels.get("gpu", "")
    if not node or not (gpu.isascii() and gpu.isdigit()):
        raise BadLine(line)
    if math.isnan(value):  # DCGM's word for "not measured just now"
        return
    known = found.get((node, int(gpu))) or _new(node, int(gpu), labels)
    found[node, int(gpu)] = replace(known, **{METRICS[name]: _as_field(METRICS[name], value)})


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
    """One look at an exporter. Not answering says nothing about its GPUs."""
    try:
        response = httpx.get(address, timeout=timeout_s, trust_env=False)
        response.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unreachable(f"{address}: {error or type(error).__name__}") from error
    return parse(response.text)
