"""The states of one node over a period, and its lines of telemetry, on one time axis. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from jobs.core.lifecycle import ASLEEP_NODE_FLAGS, NodeFlag, NodeState, node_state_for_usage, parse_node_condition

LINE_WIDTH, LINE_HEIGHT = 100.0, 20.0
# The states of the bar, with their tones, in the order of the legend
SPAN_TONES = {
    "allocated": "running",
    "mixed": "starting",
    "idle": "good",
    "asleep": "waiting",
    "drained": "drain",
    "down": "bad",
    "unknown": "quiet",
}


@dataclass(frozen=True, kw_only=True)
class NodeUse:
    """GPUs that one attempt held; `end` is None while it holds them. An attempt without GPUs uses CPUs only."""

    begin: datetime
    end: datetime | None
    gpus: int


@dataclass(frozen=True, kw_only=True)
class NodeSpan:
    state: str
    begin: datetime
    end: datetime


def node_spans(
    gpus: int,
    conditions: Iterable[tuple[datetime, str]],
    drains: Iterable[tuple[datetime, bool]],
    uses: Iterable[NodeUse],
    begin: datetime,
    end: datetime,
) -> list[NodeSpan]:
    """The states from begin to end, without gaps.

    `conditions` are the changes of the reported health (`lifecycle.node_condition`), `drains` those of the requested
    drain; the first of each may be before the begin. Before the first condition the state is unknown. A node that is
    down or on which jobs run is shown as such, also while it is drained.
    """
    changes: list[tuple[datetime, str, object]] = [(at, "condition", text) for at, text in conditions]
    changes += [(at, "drain", drained) for at, drained in drains]
    for use in uses:
        changes += [(use.begin, "use", (1, use.gpus))]
        changes += [(use.end, "use", (-1, -use.gpus))] if use.end else []
    spans: list[NodeSpan] = []
    node = _NodeNow(gpus=gpus)
    at = begin
    for moment, kind, value in sorted(changes, key=lambda change: change[0]):
        if moment > end:
            break
        if moment > at:
            _append_span(spans, NodeSpan(state=node.state, begin=at, end=moment))
            at = moment
        node.apply(kind, value)
    if end > at:
        _append_span(spans, NodeSpan(state=node.state, begin=at, end=end))
    return spans


@dataclass(kw_only=True)
class _NodeNow:
    """The node at one moment of the sweep."""

    gpus: int
    condition: str = NodeState.UNKNOWN
    is_drain_requested: bool = False
    jobs: int = 0
    held: int = 0

    def apply(self, kind: str, value: object) -> None:
        match kind, value:
            case "condition", str(text):
                self.condition = text
            case "drain", bool(drained):
                self.is_drain_requested = drained
            case "use", (int(jobs), int(gpus)):
                self.jobs += jobs
                self.held += gpus

    @property
    def state(self) -> str:
        health, flags = parse_node_condition(self.condition)
        if health != "UP":
            return "unknown" if health == NodeState.UNKNOWN else "down"
        if NodeFlag.NOT_RESPONDING in flags:
            return "down"
        usage = node_state_for_usage(self.gpus, self.held, self.jobs > 0)
        if usage == NodeState.IDLE and (self.is_drain_requested or NodeFlag.DRAIN in flags):
            return "drained"
        if usage == NodeState.IDLE and not set(ASLEEP_NODE_FLAGS).isdisjoint(flags):
            return "asleep"
        return str(usage).lower()


def _append_span(spans: list[NodeSpan], span: NodeSpan) -> None:
    """Append the span, or extend the last one if it has the same state."""
    if spans and spans[-1].state == span.state:
        span = NodeSpan(state=span.state, begin=spans.pop().begin, end=span.end)
    spans.append(span)


def state_shares(spans: Sequence[NodeSpan]) -> Mapping[str, float]:
    """The share of the time in each state that occurs, in percent, in the order of `SPAN_TONES`."""
    seconds: Counter[str] = Counter()
    for span in spans:
        seconds[span.state] += round((span.end - span.begin).total_seconds())
    total = max(1, seconds.total())
    return {state: 100 * seconds[state] / total for state in SPAN_TONES if seconds[state]}


def line_segments(values: Sequence[float | None], scale: tuple[float, float]) -> list[str]:
    """The `points` of SVG polylines, one for each run of readings: missing readings leave a gap.

    The first value is at the left edge, the last one at the right. Readings outside of the scale are drawn at its edge.
    """
    low, high = scale
    across, down = LINE_WIDTH / max(1, len(values) - 1), LINE_HEIGHT / (high - low)
    segments: list[list[str]] = [[]]
    for number, value in enumerate(values):
        if value is None or not math.isfinite(value):
            segments.append([])
            continue
        y = LINE_HEIGHT - (min(high, max(low, value)) - low) * down
        segments[-1].append(f"{number * across:.2f},{y:.1f}")
    # A single reading is drawn as a short dash: a polyline of one point is invisible
    return [" ".join(points if len(points) > 1 else points * 2) for points in segments if points]


def packed_lanes(uses: Sequence[NodeUse], most: int) -> list[int]:
    """The lane of each use, so that uses at the same time are in different lanes as far as there are lanes."""
    ends: list[datetime | None] = []
    lanes = [0] * len(uses)
    for index in sorted(range(len(uses)), key=lambda index: uses[index].begin):
        use = uses[index]
        free = next((lane for lane, end in enumerate(ends) if end is not None and end <= use.begin), None)
        if free is None:
            free = len(ends) if len(ends) < most else most - 1
            ends += [None] * (free + 1 - len(ends))
        ends[free] = use.end
        lanes[index] = free
    return lanes
