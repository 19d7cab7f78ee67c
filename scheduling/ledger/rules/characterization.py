"""The figures of the Acme study for a period of one's own history, next to those of Seren and Kalos. Pure.

Jobs come as counts by kind, state, size and intervals of time, so that a million jobs are a few thousand rows. Times
are known by powers of two, and quantiles are interpolated between these on a logarithmic scale, as are those of the
study.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from jobs.core.lifecycle import FAILURE_STATES, JobKind, State
from scheduling.core.charts import BarChart, BarSeries, Chart, Curve, LineChart, Point
from scheduling.core.number_texts import duration_text, format_number

BOUNDS_S = tuple(2.0**power for power in range(22))
OWN_NAME = "Your jobs"
QUANTILES = (25, 50, 75, 90, 99)
MAX_CAUSES = 10
STATE_GROUPS = ("completed", "cancelled", "failed", "preempted")


@dataclass(frozen=True, kw_only=True)
class JobCell:
    """Jobs that are alike. Times are the number of the first of BOUNDS_S that is not smaller."""

    kind: str
    state: str
    gpus: int
    ran: int
    waited: int
    jobs: int
    gpu_s: float


@dataclass(frozen=True, kw_only=True)
class StudyFigures:
    """The published figures of one cluster for the selected kind of jobs; None where nothing was published."""

    name: str
    run_times: Sequence[Point] | None
    waits: Sequence[Point] | None
    gpus: Mapping[JobKind, tuple[int, int, int]]
    gpu_time_by_kind: Mapping[JobKind, float]
    jobs_by_state: Sequence[float]
    gpu_time_by_state: Sequence[float]
    utilization: Sequence[Point]


@dataclass(frozen=True, kw_only=True)
class CauseFigures:
    """Failures with one cause. Minutes are means; GPU-hours per failure are those of the ledger."""

    cause: str
    category: str
    failures: int
    gpu_time_pct: float
    ran_min: float
    restart_min: float | None
    hours_per_failure: float | None
    published_pct: float | None


@dataclass(frozen=True, kw_only=True)
class StudyPlot:
    """A chart with its explanation and the same figures as a table."""

    key: str
    chart: Chart
    note: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


# --- distributions


def distribution(cells: Iterable[JobCell], of: Callable[[JobCell], int]) -> list[Point]:
    """The percent of the jobs at or below each of BOUNDS_S. Empty without jobs."""
    counts: Counter[int] = Counter()
    for cell in cells:
        counts[of(cell)] += cell.jobs
    if not (total := counts.total()):
        return []
    points, below = [], 0
    for number in range(max(counts) + 1):
        below += counts[number]
        points.append((2.0**number, 100 * below / total))
    return points


def quantile(points: Sequence[Point], percent: float) -> float | None:
    """The value below which `percent` of the jobs are, interpolated on a logarithmic scale; None if unknown."""
    before: Point | None = None
    for value, share in points:
        if share >= percent:
            if before is None or share == before[1]:
                return value
            part = (percent - before[1]) / (share - before[1])
            return math.exp(math.log(before[0]) + part * (math.log(value) - math.log(before[0])))
        before = (value, share)
    return None


def run_time_plot(cells: Sequence[JobCell], study: Sequence[StudyFigures]) -> StudyPlot:
    curves = [(OWN_NAME, distribution(cells, lambda cell: cell.ran)), *((one.name, one.run_times) for one in study)]
    return _time_plot(
        "run-time",
        "Run time",
        curves,
        "From the last start to the end. Run times in Kalos include queueing, because its trace counts them so.",
    )


def queue_wait_plot(cells: Sequence[JobCell], study: Sequence[StudyFigures]) -> StudyPlot:
    curves = [(OWN_NAME, distribution(cells, lambda cell: cell.waited)), *((one.name, one.waits) for one in study)]
    note = "From the submission to the first start. The study calls this the queueing delay."
    return _time_plot("queue-wait", "Queue wait", curves, note)


def _time_plot(key: str, title: str, curves: Sequence[tuple[str, Sequence[Point] | None]], note: str) -> StudyPlot:
    present = [(name, points, style) for style, (name, points) in enumerate(curves) if points]
    chart = LineChart(
        title=title,
        x_label="logarithmic",
        y_label="% of jobs",
        log_seconds=True,
        y_most=100.0,
        curves=[Curve(name=name, points=points, style=style) for name, points, style in present],
    )
    rows = [[name, *(_quantile_text(points, percent) for percent in QUANTILES)] for name, points, _ in present]
    return StudyPlot(
        key=key, chart=chart, note=note, headings=["Jobs", *(f"p{percent}" for percent in QUANTILES)], rows=rows
    )


def _quantile_text(points: Sequence[Point], percent: float) -> str:
    value = quantile(points, percent)
    if value is None:
        return f"over {duration_text(points[-1][0])}"
    return f"≤ {duration_text(value)}" if value == points[0][0] else duration_text(value)


# --- sizes, kinds and states


def gpus_plot(cells: Sequence[JobCell], study: Sequence[StudyFigures]) -> StudyPlot:
    own = {kind: box for kind in JobKind if (box := size_quartiles(cell for cell in cells if cell.kind == kind))}
    boxes = [(OWN_NAME, own), *((one.name, one.gpus) for one in study)]
    kinds = [kind for kind in JobKind if any(kind in box for _, box in boxes)]
    chart = BarChart(
        title="GPUs per job by kind",
        unit="GPUs, logarithmic: median and quartiles",
        categories=[str(kind) for kind in kinds],
        log=True,
        series=[
            BarSeries(
                name=name,
                style=style,
                low=[_part(box, kind, 0) for kind in kinds],
                values=[_part(box, kind, 1) for kind in kinds],
                high=[_part(box, kind, 2) for kind in kinds],
            )
            for style, (name, box) in enumerate(boxes)
        ],
    )
    rows = [[str(kind), *(_box_text(box.get(kind)) for _, box in boxes)] for kind in kinds]
    return StudyPlot(
        key="gpus",
        chart=chart,
        note="A bar spans the middle half of the jobs; the mark is the median.",
        headings=["Kind", *(name for name, _ in boxes)],
        rows=rows,
    )


def size_quartiles(cells: Iterable[JobCell]) -> tuple[int, int, int] | None:
    """The quartiles of the requested GPUs; None without jobs."""
    counts: Counter[int] = Counter()
    for cell in cells:
        counts[cell.gpus] += cell.jobs
    if not (total := counts.total()):
        return None
    quartiles: list[int] = []
    below = 0
    for gpus in sorted(counts):
        below += counts[gpus]
        quartiles += [gpus] * (sum(below >= total * part for part in (0.25, 0.5, 0.75)) - len(quartiles))
    return quartiles[0], quartiles[1], quartiles[2]


def _part(box: Mapping[JobKind, tuple[int, int, int]], kind: JobKind, number: int) -> float | None:
    return float(box[kind][number]) if kind in box else None


def _box_text(box: tuple[int, int, int] | None) -> str:
    return f"{box[1]} ({box[0]}–{box[2]})" if box else "–"


def kinds_plot(cells: Sequence[JobCell], study: Sequence[StudyFigures]) -> StudyPlot:
    own = _shares(cells, lambda cell: cell.kind, lambda cell: cell.gpu_s)
    published = ((one.name, {str(kind): share for kind, share in one.gpu_time_by_kind.items()}) for one in study)
    series: list[tuple[str, dict[str, float]]] = [(OWN_NAME, own), *published]
    kinds = [kind for kind in JobKind if any(values.get(kind) for _, values in series)]
    return _share_plot(
        "gpu-time-by-kind",
        "GPU time by kind",
        [str(kind) for kind in kinds],
        [(name, [values.get(kind) for kind in kinds]) for name, values in series],
        "All attempts of the jobs that were submitted in the period.",
    )


def states_plot(cells: Sequence[JobCell], study: Sequence[StudyFigures]) -> StudyPlot:
    own = _shares(cells, lambda cell: state_group(cell.state), lambda cell: cell.gpu_s)
    plot = _share_plot(
        "gpu-time-by-state",
        "GPU time by final state",
        STATE_GROUPS,
        [
            (OWN_NAME, [own.get(group, 0.0) if own else None for group in STATE_GROUPS]),
            *((one.name, [*one.gpu_time_by_state, None]) for one in study),
        ],
        "Failed includes timeouts and node failures. The study does not list preempted jobs.",
    )
    counts = _shares(cells, lambda cell: state_group(cell.state), lambda cell: float(cell.jobs))
    columns = [[counts.get(group) for group in STATE_GROUPS], *([*one.jobs_by_state, None] for one in study)]
    rows = [[*row, *(_percent(column[number]) for column in columns)] for number, row in enumerate(plot.rows)]
    names = [OWN_NAME, *(one.name for one in study)]
    headings = ["State", *(f"{name}, GPU time" for name in names), *(f"{name}, jobs" for name in names)]
    return StudyPlot(key=plot.key, chart=plot.chart, note=plot.note, headings=headings, rows=rows)


def state_group(state: str) -> str:
    """The group of a final state in the study."""
    if state in FAILURE_STATES:
        return "failed"
    return {State.COMPLETED: "completed", State.PREEMPTED: "preempted"}.get(State(state), "cancelled")


def _shares(
    cells: Iterable[JobCell], of: Callable[[JobCell], str], size: Callable[[JobCell], float]
) -> dict[str, float]:
    """Percent by group. Empty if all sizes are 0."""
    sums: dict[str, float] = {}
    for cell in cells:
        sums[of(cell)] = sums.get(of(cell), 0.0) + size(cell)
    total = math.fsum(sums.values())
    return {name: 100 * value / total for name, value in sums.items()} if total else {}


def _share_plot(
    key: str, title: str, categories: Sequence[str], series: Sequence[tuple[str, Sequence[float | None]]], note: str
) -> StudyPlot:
    chart = BarChart(
        title=title,
        unit="% of GPU time",
        categories=categories,
        series=[BarSeries(name=name, values=values, style=style) for style, (name, values) in enumerate(series)],
    )
    rows = [[name, *(_percent(values[row]) for _, values in series)] for row, name in enumerate(categories)]
    headings = [title.rpartition(" ")[2].capitalize(), *(name for name, _ in series)]
    return StudyPlot(key=key, chart=chart, note=note, headings=headings, rows=rows)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}%"


# --- utilization


def utilization_plot(counts: Mapping[int, int], study: Sequence[StudyFigures], interval: str) -> StudyPlot:
    """`counts`: GPU samples by whole percent, rounded down. `interval`: what one sample is the mean of."""
    curves = [(OWN_NAME, utilization_points(counts)), *((one.name, one.utilization) for one in study)]
    present = [(name, points, style) for style, (name, points) in enumerate(curves) if points]
    chart = LineChart(
        title="GPU utilization",
        x_label="utilization, %",
        y_label="% of samples",
        y_most=100.0,
        curves=[Curve(name=name, points=points, style=style) for name, points, style in present],
    )
    return StudyPlot(
        key="utilization",
        chart=chart,
        note=f"Your samples are means of {interval}, those of the study readings every 15 s, which vary more.",
        headings=["GPUs", "p25", "p50", "p75", "Below 5%"],
        rows=[
            [name, *(_percent(_value_at(points, percent)) for percent in (25, 50, 75)), _percent(_share_at(points, 5))]
            for name, points, _ in present
        ],
    )


def utilization_points(counts: Mapping[int, int]) -> list[Point]:
    """The percent of the samples below each whole percent of utilization. Empty without samples."""
    if not (total := sum(counts.values())):
        return []
    points, below = [(0.0, 0.0)], 0
    for percent in range(101):
        below += counts.get(percent, 0)
        points.append((float(min(100, percent + 1)), 100 * below / total))
    return points


def _value_at(points: Sequence[Point], percent: float) -> float | None:
    return next((value for value, share in points if share >= percent), None)


def _share_at(points: Sequence[Point], value: float) -> float:
    return max((share for at, share in points if at <= value), default=0.0)


# --- failures


def failures_plot(causes: Sequence[CauseFigures], unknown: str = "–") -> StudyPlot:
    """The causes with the most GPU time, with time to failure and to restart. `unknown` stands for a missing MTTF."""
    shown = sorted(causes, key=lambda one: (-one.gpu_time_pct, -one.failures, one.cause))[:MAX_CAUSES]
    chart = BarChart(
        title="Failures by cause",
        unit="% of the GPU time of failures",
        categories=[one.cause for one in shown],
        series=[
            BarSeries(name=OWN_NAME, values=[one.gpu_time_pct for one in shown], style=0),
            BarSeries(name="Seren and Kalos 2023", values=[one.published_pct for one in shown], style=1),
        ],
    )
    return StudyPlot(
        key="failures",
        chart=chart,
        note=(
            "The published shares are those that the paper's text gives. In the study, infrastructure causes 11% of the"
            " failures and 82% of their GPU time."
        ),
        headings=[
            *("Cause", "Category", "Failures", "GPU time", "Study", "Time to failure", "GPU-hours per failure (MTTF)"),
            "Time to restart (MTTR)",
        ],
        rows=[
            [
                *(one.cause, one.category, f"{one.failures:,}", _percent(one.gpu_time_pct)),
                _percent(one.published_pct),
                duration_text(60 * one.ran_min),
                unknown if one.hours_per_failure is None else format_number(one.hours_per_failure),
                "–" if one.restart_min is None else duration_text(60 * one.restart_min),
            ]
            for one in shown
        ],
    )
