"""Reads only the power of GPUs and nodes from a page of telemetry, which takes a small part of the time of reading all.

Of about twenty lines per GPU one is its power; the others are skipped before they are parsed. Where the page comes from
Prometheus' federation, only the power is requested, and each value has the time at which Prometheus scraped it. A page
of an exporter has no times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from acmeweb.common.errors import MalformedResponse

from .telemetry import MAX_NODE_POWER_W, NODE_POWER, PageSample, fetch_page, node_label, parse_sample

GPU_POWER = "DCGM_FI_DEV_POWER_USAGE"
POWER_METRICS = (GPU_POWER, *NODE_POWER)
SELECTOR = "match[]"  # the parameter of Prometheus' federation
MAX_GPU_DIGITS = 2
MAX_NODE_LAG_S = 5.0  # the power of a node that is older than that of its GPUs by more is left out


@dataclass(kw_only=True, slots=True)
class NodePower:
    """The power of one node. Times are those of the scrape; None if the page has none."""

    gpu_w: dict[int, float] = field(default_factory=dict)
    node_w: float | None = None
    gpus_at_s: float | None = None
    node_at_s: float | None = None

    @property
    def at_s(self) -> float | None:
        return self.node_at_s if self.gpus_at_s is None else self.gpus_at_s

    @property
    def current_node_w(self) -> float | None:
        """The power of the whole node, unless that of its GPUs is newer: BMCs are often read once a minute."""
        is_old = self.gpus_at_s is not None and self.node_at_s is not None
        return None if is_old and self.node_at_s < self.gpus_at_s - MAX_NODE_LAG_S else self.node_w  # type: ignore[operator]


PowerPage = dict[str, NodePower]  # by name of the node


def parse_power(page: str) -> PowerPage:
    """The power of each node. Lines that cannot be read are skipped."""
    found: PowerPage = {}
    for sample in _power_samples(page):
        node = node_label(sample.labels)
        if sample.name != GPU_POWER:
            if node and 0 <= sample.value <= MAX_NODE_POWER_W:
                row = found.setdefault(node, NodePower())
                row.node_w, row.node_at_s = max(sample.value, row.node_w or 0.0), sample.at_s
        elif node and _is_gpu_index(index := sample.labels.get("gpu", "")):
            row = found.setdefault(node, NodePower())
            row.gpu_w[int(index)], row.gpus_at_s = sample.value, sample.at_s
    return found


def _is_gpu_index(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_GPU_DIGITS


def _power_samples(page: str) -> Iterable[PageSample]:
    for line in page.split("\n"):
        if line.startswith(POWER_METRICS):
            try:
                sample = parse_sample(line)
            except MalformedResponse:
                continue
            if sample.name in POWER_METRICS and math.isfinite(sample.value):
                yield sample


def power_address(address: str) -> str:
    """The address that has the power only, if it is one of Prometheus' federation; otherwise the same."""
    parts = urlsplit(address)
    query = parse_qsl(parts.query, keep_blank_values=True)
    chosen = [_power_selector(value) for name, value in query if name == SELECTOR]
    if not any(chosen):
        return address
    others = [(name, value) for name, value in query if name != SELECTOR]
    selectors = [(SELECTOR, value) for value in chosen if value]
    return urlunsplit(parts._replace(query=urlencode([*others, *selectors])))


def _power_selector(selector: str) -> str:
    """The part of a selector that has power; empty if it has none. Matchers of a selector must all hold."""
    text = selector.strip()
    if not text.startswith("{"):
        return text if text.startswith(POWER_METRICS) else ""
    inside = text[1 : text.rfind("}")].strip().rstrip(",")
    names = f'__name__=~"{"|".join(POWER_METRICS)}"'
    return "{" + (f"{inside},{names}" if inside else names) + "}"


def read_power(address: str, *, timeout_s: float = 5.0) -> PowerPage:
    """Fetch and parse the power within `timeout_s`. Raises ClusterUnreachable if the exporter does not respond."""
    return parse_power(fetch_page(power_address(address), timeout_s=timeout_s))
