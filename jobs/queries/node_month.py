"""The last thirty days of one node: states, jobs and telemetry, for its page. Six short statements.

The allocations of the node are found by its key, the events and samples by indexes over node and time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection
from django.db.models import Count, Max, Min, Q

from jobs.core.charts import node_timeline
from jobs.core.charts.node_timeline import NodeSpan, NodeUse
from jobs.core.charts.timeline import TimelineBar, TimelineEntry, timeline_bars
from jobs.core.telemetry_math import interval_start
from jobs.models import Allocation, Attempt, Event, Node, Resolution

MONTH = timedelta(days=30)
MAX_USES = 3000  # attempts from which the states are computed; only very short jobs exceed it
MAX_JOBS_DRAWN = 400
MAX_LANES = 8
UTILIZATION_SCALE = (0.0, 100.0)
TEMPERATURE_SCALE = (20.0, 100.0)
TELEMETRY_SQL = """
SELECT extract(epoch FROM at)::bigint, (SELECT avg(value) FROM unnest(gpu_util) AS value),
  (SELECT max(value) FROM unnest(gpu_temperature_c) AS value)
FROM jobs_sample WHERE node_id = %s AND resolution = %s AND at >= %s AND at < %s
"""
# Failed attempts are high, completed ones of medium height, others low
BAR_HEIGHTS = {"bad": 0.88, "warn": 0.88, "running": 0.88, "good": 0.58}
LOW_BAR = 0.3
DRAIN_TYPES = ("node.drained", "node.resumed")


@dataclass(frozen=True, kw_only=True)
class StateShare:
    name: str
    tone: str
    percent: float


@dataclass(frozen=True, kw_only=True)
class NodeLine:
    """A line of hourly telemetry. `lowest` and `highest` are None without readings."""

    segments: Sequence[str]
    lowest: float | None
    highest: float | None


@dataclass(frozen=True, kw_only=True)
class NodeJob:
    """One attempt on the node. `attempt` is None for jobs that the viewer may not see."""

    attempt: Attempt | None
    use: NodeUse
    bar: TimelineBar
    lane: int

    @property
    def top(self) -> float:
        """The upper edge: the height repeats what the color says, how the attempt ended."""
        return round(self.lane + 0.94 - self.height, 2)

    @property
    def height(self) -> float:
        return BAR_HEIGHTS.get(self.bar.tone, LOW_BAR)


@dataclass(frozen=True, kw_only=True)
class DayTick:
    position: float  # percent
    label: str

    @property
    def height(self) -> int:
        return 6 if self.label else 3


@dataclass(frozen=True, kw_only=True)
class NodeMonth:
    begin: datetime
    end: datetime
    ticks: Sequence[DayTick]
    states: Sequence[TimelineBar]
    shares: Sequence[StateShare]
    utilization: NodeLine
    temperature: NodeLine
    jobs: Sequence[NodeJob]
    attempt_count: str

    @property
    def lanes(self) -> int:
        return max((job.lane + 1 for job in self.jobs), default=1)

    @property
    def states_label(self) -> str:
        return "States: " + ", ".join(f"{share.name} {share.percent:.1f} percent" for share in self.shares)


def node_month(node: Node, visible: Iterable[int] | None, now: datetime) -> NodeMonth:
    """The month until now. `visible` are the teams whose jobs the viewer may see; None means all."""
    begin = now - MONTH
    uses = _uses(node, begin)
    spans = node_timeline.node_spans(
        node.gpus, _conditions(node, begin), _drains(node, begin), [use for _, use in uses], begin, now
    )
    shares = node_timeline.state_shares(spans)
    utilization, temperature = _hourly_telemetry(node, begin, now)
    return NodeMonth(
        begin=begin,
        end=now,
        ticks=day_ticks(begin, now),
        states=timeline_bars(map(_span_entry, spans), begin, now),
        shares=[
            StateShare(name=name, tone=node_timeline.SPAN_TONES[name], percent=share) for name, share in shares.items()
        ],
        utilization=_line(utilization, UTILIZATION_SCALE),
        temperature=_line(temperature, TEMPERATURE_SCALE),
        jobs=_node_jobs(uses[:MAX_JOBS_DRAWN], visible, begin, now),
        attempt_count=f"{len(uses):,}" if len(uses) < MAX_USES else f"newest {MAX_USES:,}",
    )


def day_ticks(begin: datetime, end: datetime) -> list[DayTick]:
    """A tick at each midnight; Mondays have the date as label."""
    midnight = begin.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    ticks = []
    while midnight < end:
        label = f"{midnight:%b} {midnight.day}" if midnight.weekday() == 0 else ""
        ticks.append(DayTick(position=round(100 * ((midnight - begin) / (end - begin)), 3), label=label))
        midnight += timedelta(days=1)
    return ticks


def _span_entry(span: NodeSpan) -> TimelineEntry:
    name = f"{span.state} from {span.begin:%Y-%m-%d %H:%M} to {span.end:%Y-%m-%d %H:%M} UTC"
    return TimelineEntry(name=name, tone=node_timeline.SPAN_TONES[span.state], begin=span.begin, end=span.end)


def _uses(node: Node, begin: datetime) -> list[tuple[int, NodeUse]]:
    """The attempts that held something on the node since the begin, newest first."""
    held = Allocation.objects.filter(node=node).filter(Q(released_at=None) | Q(released_at__gt=begin)).order_by()
    rows = held.values_list("attempt_id").annotate(Count("gpu", distinct=True), Min("held_at"), Max("released_at"))
    return [
        (attempt, NodeUse(begin=since, end=until, gpus=gpus))
        for attempt, gpus, since, until in rows.order_by("-attempt_id")[:MAX_USES]
    ]


def _conditions(node: Node, begin: datetime) -> list[tuple[datetime, str]]:
    """The condition at the begin and its changes since. Before its first event, a node had the state that the event
    changed."""
    events = Event.objects.filter(node=node, type="node.state_changed")
    before = events.filter(at__lt=begin).order_by("-at", "-id").values_list("to_state", flat=True)[:1]
    since = list(events.filter(at__gte=begin).order_by("at", "id").values_list("at", "from_state", "to_state"))
    first = next(iter(before), None) or (since[0][1] if since else node.condition)
    return [(begin, first), *((at, to) for at, _, to in since)]


def _drains(node: Node, begin: datetime) -> list[tuple[datetime, bool]]:
    """Whether a drain was requested at the begin, and the changes since."""
    events = Event.objects.filter(node=node, type__in=DRAIN_TYPES)
    before = events.filter(at__lt=begin).order_by("-at", "-id").values_list("at", "type")[:1]
    since = events.filter(at__gte=begin).order_by("at", "id").values_list("at", "type")
    return [(at, kind == "node.drained") for at, kind in [*before, *since]]


def _hourly_telemetry(node: Node, begin: datetime, end: datetime) -> tuple[list[float | None], list[float | None]]:
    """Mean utilization and highest temperature of each hour; None without a reading."""
    first = interval_start(begin, Resolution.HOUR)
    hours = int((end - first).total_seconds()) // Resolution.HOUR + 1
    utilization: list[float | None] = [None] * hours
    temperature: list[float | None] = [None] * hours
    with connection.cursor() as cursor:
        cursor.execute(TELEMETRY_SQL, [node.pk, Resolution.HOUR, first, end])
        for at, busy, hottest in cursor.fetchall():
            hour = int(at - first.timestamp()) // Resolution.HOUR
            utilization[hour], temperature[hour] = busy, hottest
    return utilization, temperature


def _line(values: Sequence[float | None], scale: tuple[float, float]) -> NodeLine:
    known = [value for value in values if value is not None and value == value]  # NaN differs from itself
    return NodeLine(
        segments=node_timeline.line_segments(values, scale),
        lowest=min(known, default=None),
        highest=max(known, default=None),
    )


def _node_jobs(
    uses: Sequence[tuple[int, NodeUse]], visible: Iterable[int] | None, begin: datetime, end: datetime
) -> list[NodeJob]:
    attempts = Attempt.objects.filter(pk__in=[attempt for attempt, _ in uses]).select_related("job__user")
    known = attempts.defer("job__command", "job__environment", "job__labels").in_bulk()
    teams = None if visible is None else set(visible)
    lanes = node_timeline.packed_lanes([use for _, use in uses], MAX_LANES)
    return [
        _node_job(known[attempt], use, lane, teams is None or known[attempt].job.team_id in teams, begin, end)
        for (attempt, use), lane in zip(uses, lanes, strict=True)
        if attempt in known  # retention may have deleted it meanwhile
    ]


def _node_job(attempt: Attempt, use: NodeUse, lane: int, is_visible: bool, begin: datetime, end: datetime) -> NodeJob:
    until = f"{use.end:%m-%d %H:%M}" if use.end else "now"
    name = f"{attempt.job.name} of {attempt.job.owner_name}: {attempt.badge.label}" if is_visible else HIDDEN_JOB_NAME
    name = f"{name}, {use.gpus} GPUs, {use.begin:%m-%d %H:%M} to {until} UTC"
    tone = attempt.badge.tone if is_visible else "quiet"
    (bar,) = timeline_bars([TimelineEntry(name=name, tone=tone, begin=use.begin, end=use.end)], begin, end)
    return NodeJob(attempt=attempt if is_visible else None, use=use, bar=bar, lane=lane)


HIDDEN_JOB_NAME = "job of another team"
