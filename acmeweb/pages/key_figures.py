"""The key figures on the page Now: GPUs, queue, goodput, ETTR and incidents, each with the trend of one day.

Each figure comes from the function that its own page uses. All but the incidents are the same for every viewer. What
needs the rows of a day is computed once per minute in each process; the ledger's ratios come from the loop that
computes them for `/metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.core.cache import cache
from django.db.models import Count
from django.urls import reverse

from failures.models import IncidentState
from failures.models import permissions as failure_permissions
from failures.queries.incident_trend import unresolved_counts
from jobs.core.charts import sparkline
from jobs.core.charts.trends import change_text
from jobs.core.gpu_capacity import total_capacity
from jobs.models.permissions import Caller
from jobs.queries.cluster_minutes import DAY_STEP, DAY_STEP_COUNT, DayUsage, day_usage
from jobs.queries.cluster_summary import ClusterSummary
from jobs.queries.queue_waits import recent_queue_waits
from scheduling.ledger.reads import figures as ledger_figures
from scheduling.ledger.rules.last_day import RatioTrend

KEPT_FOR_S = 120
LEAST_POINTS = 20.0  # percent that a trend line's height stands for at least
LEAST_COUNT = 4.0


@dataclass(frozen=True, kw_only=True)
class KeyFigure:
    """One figure. `value` is None if it is unknown."""

    id: str
    label: str
    about: str  # what it is, as a tooltip
    term: str
    url: str
    value: int | None
    unit: str = ""
    detail: str = ""
    wait: timedelta | None = None  # shown after the detail
    computed_at: datetime | None = None  # shown after the detail
    change: str = ""
    line: str = ""


def shared_figures(summaries: Sequence[ClusterSummary], now: datetime) -> list[KeyFigure]:
    """Return the figures that are the same for every viewer; none without clusters."""
    if not summaries:
        return []
    usage, waits = _of_this_minute(now)
    return [
        _allocation_figure(summaries, usage),
        _utilization_figure(usage),
        _queue_figure(summaries, usage, waits),
        *_ledger_figures([summary.cluster.name for summary in summaries]),
    ]


def _of_this_minute(now: datetime) -> tuple[DayUsage, float | None]:
    """Return the usage of the day, and the median wait in seconds of the jobs that started within the last hour."""

    def read() -> tuple[DayUsage, float | None]:
        overall = recent_queue_waits(now, (0.5,)).overall
        return day_usage(now), overall[0] if overall else None

    return _once_per_minute("key-figures", now, read)


def _once_per_minute(name: str, now: datetime, read: Callable[[], Any]) -> Any:
    return cache.get_or_set(f"{name}:{now:%Y%m%d%H%M}", read, KEPT_FOR_S)


def _allocation_figure(summaries: Sequence[ClusterSummary], usage: DayUsage) -> KeyFigure:
    capacity = total_capacity(summary.capacity for summary in summaries)
    return KeyFigure(
        id="allocated",
        label="GPUs allocated",
        about="GPUs that jobs hold, as a share of all GPUs",
        term="Allocation",
        url=reverse("nodes"),
        value=capacity.used_percent,
        unit="%",
        detail=f"{capacity.allocated:,} of {capacity.total:,}",
        change=change_text(capacity.used_percent, usage.allocated_percent[0], "%"),
        line=sparkline.sparkline_points(usage.allocated_percent, least_range=LEAST_POINTS),
    )


def _utilization_figure(usage: DayUsage) -> KeyFigure:
    recent = usage.recent_utilization
    value = None if recent is None else round(recent)
    return KeyFigure(
        id="utilization",
        label="GPU utilization",
        about="Mean utilization of all GPUs in the last five minutes, from telemetry",
        term="GPU utilization",
        url=f"{reverse('home')}#usage",
        value=value,
        unit="%",
        detail="mean of all GPUs" if value is not None else "no telemetry",
        change=change_text(value, usage.utilization[0], "%"),
        line=sparkline.sparkline_points(usage.utilization, least_range=LEAST_POINTS),
    )


def _queue_figure(summaries: Sequence[ClusterSummary], usage: DayUsage, wait_s: float | None) -> KeyFigure:
    pending = sum(summary.waiting for summary in summaries)
    return KeyFigure(
        id="pending",
        label="Pending jobs",
        about="Jobs that wait for a start, and the median wait of the jobs that started within the last hour",
        term="Queue wait",
        url=reverse("queue"),
        value=pending,
        detail="no starts in the last hour" if wait_s is None else "median wait",
        wait=None if wait_s is None else timedelta(seconds=wait_s),
        change=change_text(pending, usage.pending[0]),
        line=sparkline.sparkline_points(usage.pending, least_range=LEAST_COUNT),
    )


def _ledger_figures(clusters: Sequence[str]) -> list[KeyFigure]:
    day = ledger_figures.last_day(clusters)
    common: dict[str, Any] = {
        "url": f"{reverse('reports')}?days=1",
        "unit": "%",
        "detail": "updated" if day else "first value within 5 min",
        "computed_at": day.until if day else None,
    }
    return [
        KeyFigure(
            id="goodput",
            label="Goodput, 24 h",
            about="Productive share of all GPU-hours of the last 24 hours",
            term="Goodput",
            **_ratio_fields(day.goodput if day else None),
            **common,
        ),
        KeyFigure(
            id="ettr",
            label="ETTR, 24 h",
            about="Productive share of the time since the jobs of the last 24 hours first started",
            term="ETTR",
            **_ratio_fields(day.ettr if day else None),
            **common,
        ),
    ]


def _ratio_fields(trend: RatioTrend | None) -> dict[str, Any]:
    if trend is None:
        return {"value": None}
    value = None if trend.last_day is None else round(100 * trend.last_day)
    before = None if trend.day_before is None else 100 * trend.day_before
    percent = [None if ratio is None else 100 * ratio for ratio in trend.hours]
    return {
        "value": value,
        "change": change_text(value, before, "%"),
        "line": sparkline.sparkline_points(percent, least_range=LEAST_POINTS),
    }


def incident_figure(caller: Caller, now: datetime) -> KeyFigure:
    """Return the unresolved incidents of the platform that the viewer may see."""
    rows = failure_permissions.visible_incidents(caller).of_platform()
    counts = dict(rows.unresolved().order_by().values_list("state").annotate(Count("pk")))
    times = [now - number * DAY_STEP for number in reversed(range(DAY_STEP_COUNT))]
    viewer = "all" if failure_permissions.counted_team_ids(caller) is None else str(caller.user.pk)
    trend = _once_per_minute(f"incident-trend:{viewer}", now, lambda: unresolved_counts(rows, times))
    unacknowledged, acknowledged = (counts.get(state, 0) for state in (IncidentState.OPEN, IncidentState.ACKNOWLEDGED))
    value = unacknowledged + acknowledged
    return KeyFigure(
        id="incidents",
        label="Incidents",
        about="Unresolved incidents of hardware, the network or a service",
        term="Incident",
        url=f"{reverse('failures')}?state=unresolved&reach=platform",
        value=value,
        detail=f"{unacknowledged} open, {acknowledged} acknowledged",
        change=change_text(value, trend[0]),
        line=sparkline.sparkline_points(trend, least_range=LEAST_COUNT),
    )
